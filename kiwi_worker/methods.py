"""Definitions of handlers, and the registries that collect them without connecting to anything.

A decorator makes a frozen definition, keeps it in its registry and gives the function back unchanged: it can
be called, tested, typed and pickled like before, and registered a second time elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypedDict, TypeVar, overload

import msgspec

from kiwi_worker.callables import doc_of, is_async, name_of, place_of, require_handler
from kiwi_worker.errors import DefinitionError
from kiwi_worker.mismatch import unknown_text
from kiwi_worker.params import Arguments, CallPlan, ExtraKeys
from kiwi_worker.signatures import read_signature

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "HandlerDefinition",
    "HandlerKeywords",
    "HandlerOptions",
    "HandlerRegistry",
    "MethodDefinition",
    "Plan",
    "Registry",
    "handler_facts",
]

Function = TypeVar("Function", bound=Callable[..., Any])
Key = TypeVar("Key", bound=Hashable)


class Plan(Protocol):
    """How what a caller sent becomes the arguments of a handler."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of what a caller sends."""

    @property
    def wants_context(self) -> bool:
        """Whether the handler receives the context."""

    @property
    def bind(self) -> Callable[[bytes | msgspec.Raw | None, object], Arguments]:
        """`bind(params, context)` gives `(args, kwargs)` and raises only `InvalidParameters`."""


class HandlerKeywords(TypedDict, total=False):
    """The options as keywords of a decorator; see `HandlerOptions`."""

    time_limit: float | None
    concurrency: int | None
    executor: Literal["thread", "process"]
    on_crash: Literal["report", "run_again"]
    idempotent: bool
    extra_keys: ExtraKeys
    strict: bool


class HandlerOptions(msgspec.Struct, frozen=True):
    """What a definition says about running its handler.

    Attributes:
        time_limit: seconds a call may take; None for the worker's own limit.
        concurrency: how many calls of this handler run at once in a worker; None for no limit of its own.
        executor: where a plain function runs. An async one always runs on the event loop.
        on_crash: what a restarted worker with a journal does with a call that was running.
        idempotent: whether running a call twice does no harm.
        extra_keys: what happens to keys of the params that are no parameters.
        strict: whether parameters are checked without conversions ("5" and 3.0 are no int).

    Raises:
        DefinitionError: an option is out of range; the text names it.
    """

    time_limit: float | None = None
    concurrency: int | None = None
    executor: Literal["thread", "process"] = "thread"
    on_crash: Literal["report", "run_again"] = "report"
    idempotent: bool = False
    extra_keys: ExtraKeys = "refuse"
    strict: bool = True

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> HandlerOptions:
        """Options from the keywords of a decorator."""
        unknown = [name for name in keywords if name not in cls.__struct_fields__]
        if unknown:
            raise DefinitionError(unknown_text(unknown, cls.__struct_fields__, noun="option"))
        return cls(**keywords)

    def __post_init__(self) -> None:
        limit, concurrency = self.time_limit, self.concurrency
        if limit is not None and not _is_positive(limit):
            raise _bad_option("time_limit", limit, "a positive number of seconds, or None")
        if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
            raise _bad_option("concurrency", concurrency, "a whole number from 1 on, or None")
        _require_one_of("executor", self.executor, "thread", "process")
        _require_one_of("on_crash", self.on_crash, "report", "run_again")
        _require_one_of("extra_keys", self.extra_keys, "refuse", "ignore")
        for name in ("idempotent", "strict"):
            if type(getattr(self, name)) is not bool:
                raise _bad_option(name, getattr(self, name), "True or False")


class HandlerDefinition(msgspec.Struct, frozen=True, eq=False):
    """One handler, ready to be served.

    Attributes:
        name: what callers call it by.
        function: what is called; not always the decorated object itself (a staticmethod is opened).
        is_async: whether calling it gives a coroutine. A plain function may still return an awaitable: its
            result tells, see `kiwi_worker.callables.is_awaitable`.
        options: how to run it.
        plan: how params become its arguments.
        doc: its docstring, "" when it has none.
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    options: HandlerOptions
    plan: Plan
    doc: str

    @property
    def key(self) -> Hashable:
        """What it is found by in a registry."""
        return self.name

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"`{self.name}`"

    @property
    def params_schema(self) -> dict[str, Any]:
        """The JSON schema of what a caller sends, as far as the types have one."""
        return self.plan.schema


class MethodDefinition(HandlerDefinition, frozen=True, eq=False):
    """One method of a Kiwi worker."""

    plan: CallPlan

    @classmethod
    def of(cls, name: str | None, function: Callable[..., Any], options: HandlerOptions) -> MethodDefinition:
        """Make the definition of a method.

        Raises:
            DefinitionError: the name or the function cannot be served.
        """
        function = require_handler(function)
        name = name_of(function) if name is None else name
        _check_method_name(name, function)
        signature = read_signature(function, name, strict=options.strict)
        plan = CallPlan(signature, name, strict=options.strict, extra_keys=options.extra_keys)
        return cls(name=name, plan=plan, **handler_facts(name, function, options))

    def __reduce__(self) -> tuple[Any, ...]:
        """As a child process makes it anew: from the function, which it finds by its module and name."""
        return MethodDefinition.of, (self.name, self.function, self.options)


def handler_facts(name: str, function: Callable[..., Any], options: HandlerOptions) -> dict[str, Any]:
    """The fields of a definition that every kind of definition takes from the function itself.

    Raises:
        DefinitionError: the function cannot run where the options say.
    """
    asynchronous = is_async(function)
    if asynchronous and options.executor == "process":
        raise DefinitionError(
            f"`{name}`: an async function runs on the event loop, not in a process: make it a plain one, "
            'or leave out executor="process"'
        )
    return {
        "function": function,
        "is_async": asynchronous,
        "options": options,
        "doc": doc_of(function),
    }


Definition = TypeVar("Definition", bound=HandlerDefinition)


class HandlerRegistry(Generic[Key, Definition]):
    """Definitions by their key, in the order of their definition; each key once."""

    def __init__(self) -> None:
        self._definitions: dict[Key, Definition] = {}

    def add(self, key: Key, definition: Definition) -> None:
        """Keep a definition.

        Raises:
            DefinitionError: the key is taken; the text names both functions.
        """
        present = self._definitions.setdefault(key, definition)
        if present is not definition:
            raise DefinitionError(
                f"{definition.label} is defined twice: by {place_of(present.function)} "
                f"and by {place_of(definition.function)}"
            )

    def include(self, other: HandlerRegistry[Key, Definition]) -> None:
        """Take over the definitions another registry holds now; one that is here already is left alone.

        Raises:
            DefinitionError: a key is taken by another function.
        """
        for key in other:
            self.add(key, other[key])

    def get(self, key: Key) -> Definition | None:
        """The definition of a key, None when there is none."""
        return self._definitions.get(key)

    def names(self) -> list[Key]:
        """Every key, in the order of definition."""
        return list(self._definitions)

    def __getitem__(self, key: Key) -> Definition:
        return self._definitions[key]

    def __contains__(self, key: object) -> bool:
        return key in self._definitions

    def __iter__(self) -> Iterator[Key]:
        return iter(self._definitions)

    def __len__(self) -> int:
        return len(self._definitions)


class Registry(HandlerRegistry[str, MethodDefinition]):
    """The methods of a Kiwi worker, or of a part of one: a module can fill one without knowing the worker."""

    @overload
    def method(self, function: Function, /) -> Function: ...

    @overload
    def method(
        self, name: str | None = None, /, **options: Unpack[HandlerKeywords]
    ) -> Callable[[Function], Function]: ...

    def method(self, name: Any = None, /, **options: Any) -> Any:
        """Register a function as a method: `@registry.method`, or `@registry.method("name", time_limit=5)`.

        The function is given back as it is. Without a name it is called as the function is. The options are
        those of `HandlerOptions`.

        Raises:
            DefinitionError: the name, an option or the signature cannot be served, or the name is taken.
        """
        checked = HandlerOptions.of(options)
        if name is not None and not isinstance(name, str):
            return self._define(None, name, checked)
        return partial(self._define, name, checked=checked)

    def _define(self, name: str | None, function: Function, checked: HandlerOptions) -> Function:
        definition = MethodDefinition.of(name, function, checked)
        self.add(definition.name, definition)
        return function


def _check_method_name(name: str, function: Callable[..., Any]) -> None:
    if not name:
        raise DefinitionError(f'{place_of(function)} has no name of its own: give one, `method("name")`')
    if "/" in name or not name.isprintable() or name != name.strip():
        raise DefinitionError(
            f"method name {name!r} ({place_of(function)}): a name has no slash (callers put the service "
            "before it), no control characters, and no blanks around it"
        )


def _is_positive(seconds: object) -> bool:
    return isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 < seconds < math.inf


def _require_one_of(option: str, value: object, *allowed: str) -> None:
    if value not in allowed:
        raise _bad_option(option, value, " or ".join(f'"{word}"' for word in allowed))


def _bad_option(option: str, value: object, expected: str) -> DefinitionError:
    return DefinitionError(f"option `{option}`: expected {expected}, got {value!r}")
