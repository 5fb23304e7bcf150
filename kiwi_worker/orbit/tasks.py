"""Tasks: definitions by the pair of name and contract version, and the error a handler may raise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from kiwi_worker.callables import require_handler
from kiwi_worker.errors import DefinitionError, DeliberateError
from kiwi_worker.inputs import InputPlan
from kiwi_worker.methods import (
    HandlerDefinition,
    HandlerKeywords,
    HandlerOptions,
    HandlerRegistry,
    handler_facts,
)
from kiwi_worker.signatures import read_signature

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["TaskDefinition", "TaskError", "TaskKey", "TaskRegistry"]

Function = TypeVar("Function", bound=Callable[..., Any])
TaskKey = tuple[str, str]
RESERVED = "orbit."


class TaskError(DeliberateError):
    """Raise it in a handler to fail the attempt.

    Args:
        code: machine-readable, not empty, for example `CARD_DECLINED`; retry policies name it.
        message: for people.
        retryable: False fails the step whatever its retry policy says.
        details: any JSON value, kept with the error.

    Raises:
        DefinitionError: the code is empty.
    """

    def __init__(self, code: str, message: str = "", *, retryable: bool = True, details: Any = None) -> None:
        if not isinstance(code, str) or not code.strip():
            raise DefinitionError("TaskError: the code is empty; the runtime refuses a failure without one")
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.details = details

    @property
    def answer(self) -> Mapping[str, Any]:  # type: ignore[override]
        """What the failure says."""
        return {
            "error_code": self.code,
            "error_message": self.message,
            "retryable": self.retryable,
            "details": self.details,
        }


class TaskDefinition(HandlerDefinition, frozen=True, eq=False):
    """One task of an ORBIT worker.

    Attributes:
        version: the contract version.
    """

    plan: InputPlan
    version: str

    @classmethod
    def of(
        cls, name: str, version: str, function: Callable[..., Any], options: HandlerOptions
    ) -> TaskDefinition:
        """Make the definition of a task.

        Raises:
            DefinitionError: name, version or function cannot be served.
        """
        _check(name, version)
        handler = require_handler(function)
        plan = InputPlan(read_signature(handler, name, strict=options.strict), name, strict=options.strict)
        return cls(name=name, version=version, plan=plan, **handler_facts(name, handler, options))

    def __reduce__(self) -> tuple[Any, ...]:
        """As a child process makes it anew: from the function, which it finds by its module and name."""
        return TaskDefinition.of, (self.name, self.version, self.function, self.options)

    @property
    def key(self) -> TaskKey:
        """Name and contract version."""
        return self.name, self.version

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"`{self.name}` {self.version}"


class TaskRegistry(HandlerRegistry[TaskKey, TaskDefinition]):
    """The tasks of an ORBIT worker, or of a part of one; two versions of a task stand side by side."""

    def task(
        self, name: str, *, version: str, **options: Unpack[HandlerKeywords]
    ) -> Callable[[Function], Function]:
        """Register a function as a task: `@registry.task("payments.charge", version="1.0.0")`.

        Name and version are those of the `.orbit` files, exactly. The function is given back as it is. It
        takes the input, and the context as its second parameter or as the one annotated with it.

        Raises:
            DefinitionError: name, version, an option or the signature cannot be served, or both are taken.
        """
        return partial(self._define, name, version, checked=HandlerOptions.of(options))

    def _define(self, name: str, version: str, function: Function, checked: HandlerOptions) -> Function:
        definition = TaskDefinition.of(name, version, function, checked)
        self.add(definition.key, definition)
        return function


def _check(name: str, version: str) -> None:
    for what, value in (("task name", name), ("version", version)):
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise DefinitionError(f"{what} {value!r}: give the one from the .orbit file")
    if name.startswith(RESERVED):
        raise DefinitionError(f"task name {name!r}: names that begin with `{RESERVED}` are the runtime's own")
