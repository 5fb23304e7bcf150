"""The signature of a handler: its parameters, their hints, and the one that receives the context.

Hints may be strings (`from __future__ import annotations`). Each is resolved for itself, with the names of
the function's module, of the functions and classes around it, so that one that cannot be resolved (imported
under `TYPE_CHECKING` only) costs the check of that one parameter and nothing else.
"""

from __future__ import annotations

import inspect
import logging
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from kiwi_worker.callables import closure_of, globals_of, place_of
from kiwi_worker.context import Context
from kiwi_worker.errors import DefinitionError
from kiwi_worker.readers import UnreadableType, readable

__all__ = ["Parameter", "Signature", "read_signature"]

_log = logging.getLogger("kiwi_worker.methods")
_FRAMES_SEARCHED = 12
_CONTEXT_NAMES: Mapping[str, Any] = {"Context": Context}


class Parameter(msgspec.Struct, frozen=True, eq=False):
    """One parameter of a handler.

    Attributes:
        name: as it is written in the signature, and as a caller writes it.
        hint: its type; `Any` when it has none, or none that can be resolved.
        required: whether it has no default.
        default: its default, when it is not required.
        annotated: whether the signature gives it a type.
    """

    name: str
    kind: inspect._ParameterKind
    hint: Any
    required: bool
    default: Any
    annotated: bool

    @property
    def is_positional(self) -> bool:
        """Whether it can be given by its position."""
        return self.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Signature(msgspec.Struct, frozen=True, eq=False):
    """What a handler takes, apart from the context.

    Attributes:
        positional: parameters that can be given by position, in order.
        keyword_only: parameters that can be given by name only.
        var_positional: the `*args` parameter.
        var_keyword: the `**kwargs` parameter.
        context_name: the parameter that receives the context, None when there is none.
        context_index: its position among the positional ones, None when it is passed by name.
    """

    positional: tuple[Parameter, ...]
    keyword_only: tuple[Parameter, ...]
    var_positional: Parameter | None
    var_keyword: Parameter | None
    context_name: str | None
    context_index: int | None

    @property
    def named(self) -> tuple[Parameter, ...]:
        """Every parameter that can be given by name."""
        return self.positional + self.keyword_only


def read_signature(function: Callable[..., Any], label: str, *, strict: bool = True) -> Signature:
    """Read the signature of a handler.

    Args:
        function: the handler.
        label: its name, for messages.
        strict: whether values are read without conversions ("5" is no int).

    Raises:
        DefinitionError: the callable has no readable signature, two parameters ask for the context, or a
            parameter has a type that cannot be read from JSON.
    """
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise DefinitionError(f"`{label}`: {place_of(function)} has no readable signature: {error}") from None
    hints = _Hints(function, label, strict)
    parameters = [_parameter(entry, hints) for entry in found.parameters.values()]
    hints.warn()
    return _sorted_out(parameters, label)


def _parameter(entry: inspect.Parameter, hints: _Hints) -> Parameter:
    required = entry.default is entry.empty
    annotated = entry.annotation is not entry.empty
    hint = hints.resolve(entry.name, entry.annotation) if annotated else Any
    if entry.default is None:
        hint = typing.Optional[hint]  # noqa: UP045 - `|` does not take every hint
    return Parameter(entry.name, entry.kind, hint, required, None if required else entry.default, annotated)


def _sorted_out(parameters: list[Parameter], label: str) -> Signature:
    context = _context_of(parameters, label)
    positional = [parameter for parameter in parameters if parameter.is_positional]
    index = positional.index(context) if context in positional else None
    return Signature(
        positional=tuple(parameter for parameter in positional if parameter is not context),
        keyword_only=_of_kind(parameters, inspect.Parameter.KEYWORD_ONLY, context),
        var_positional=_first(parameters, inspect.Parameter.VAR_POSITIONAL),
        var_keyword=_first(parameters, inspect.Parameter.VAR_KEYWORD),
        context_name=None if context is None else context.name,
        context_index=index,
    )


def _context_of(parameters: list[Parameter], label: str) -> Parameter | None:
    asking = [parameter for parameter in parameters if is_context(parameter.hint)]
    if len(asking) > 1:
        names = " and ".join(f"`{parameter.name}`" for parameter in asking)
        raise DefinitionError(f"`{label}`: {names} both ask for the context; only one can receive it")
    if asking and not asking[0].is_positional and asking[0].kind is not inspect.Parameter.KEYWORD_ONLY:
        raise DefinitionError(
            f"`{label}`: `{asking[0].name}` gathers parameters, it cannot receive the context"
        )
    return asking[0] if asking else None


def is_context(hint: Any) -> bool:
    """Whether a hint is `Context`, a class derived from it, or one of them or None."""
    if isinstance(hint, type):
        return issubclass(hint, Context)
    if typing.get_origin(hint) is typing.Annotated:
        return is_context(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(is_context(member) for member in typing.get_args(hint))
    return False


def _of_kind(
    parameters: list[Parameter], kind: inspect._ParameterKind, without: Parameter | None
) -> tuple[Parameter, ...]:
    return tuple(entry for entry in parameters if entry.kind is kind and entry is not without)


def _first(parameters: list[Parameter], kind: inspect._ParameterKind) -> Parameter | None:
    return next((entry for entry in parameters if entry.kind is kind), None)


class _Hints:
    """Resolves the hints of one function, and warns once about those it could not."""

    def __init__(self, function: Callable[..., Any], label: str, strict: bool) -> None:
        self._globals = globals_of(function)
        self._function = function
        self._label = label
        self._strict = strict
        self._unresolved: dict[str, str] = {}

    def resolve(self, name: str, annotation: Any) -> Any:
        """The type that an annotation stands for, as it is read from JSON; Any when it cannot be resolved."""
        problem = ""
        for names in (dict, self._surrounding_names):
            try:
                hint = _evaluated(annotation, self._globals, names())
                return hint if is_context(hint) else readable(hint, strict=self._strict)
            except UnreadableType as error:
                raise DefinitionError(f"`{self._label}`: parameter `{name}`: {error}") from None
            except Exception as error:  # noqa: BLE001 - an annotation is code of the user: it may raise anything
                problem = f"{type(error).__name__}: {error}"
        self._unresolved[name] = problem
        return Any

    def warn(self) -> None:
        """One warning for all that could not be resolved, if any."""
        if not self._unresolved:
            return
        problems = "; ".join(f"`{name}` ({problem})" for name, problem in self._unresolved.items())
        _log.warning(
            "`%s`: type hints that cannot be resolved, so the values of these parameters are not checked: %s",
            self._label,
            problems,
            extra={"action": "skip_type_hint", "method": self._label},
        )

    def _surrounding_names(self) -> dict[str, Any]:
        return {**_CONTEXT_NAMES, **_frame_locals(self._globals), **closure_of(self._function)}


def _evaluated(annotation: Any, global_names: dict[str, Any], local_names: dict[str, Any]) -> Any:
    carrier = types.SimpleNamespace(__annotations__={"hint": annotation})
    hints = typing.get_type_hints(
        carrier, globalns=global_names, localns=local_names or None, include_extras=True
    )
    return hints["hint"]


def _frame_locals(global_names: dict[str, Any]) -> dict[str, Any]:
    """The local names at the place where the decorator is used, the nearest first: classes defined inside a
    function or a class are known only there."""
    names: dict[str, Any] = {}
    frame: types.FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES_SEARCHED):
        if frame is None:
            break
        if frame.f_globals is global_names:
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names
