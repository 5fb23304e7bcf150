"""From the one input of a task to the arguments of a handler.

A handler takes the whole input as its first parameter, and the context as its second one or as the one
annotated `Context`, wherever that stands; either may be left out. The same function can be a method, whose
params are given to its parameters one by one (`kiwi_worker.params`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from kiwi_worker.errors import DefinitionError, InvalidParameters
from kiwi_worker.mismatch import describe
from kiwi_worker.params import Arguments, schema_of
from kiwi_worker.readers import read_hook
from kiwi_worker.signatures import Parameter, Signature

__all__ = ["InputPlan"]

_CONTEXT_NAMES = frozenset({"context", "ctx"})
_INPUT, _CONTEXT = object(), object()


class InputPlan:
    """How the input of a task becomes the arguments of one handler; made once, when it is defined.

    Args:
        signature: what the handler takes.
        label: the name of the task, for messages.
        strict: no conversions: "5" and 3.0 are no int.

    Raises:
        DefinitionError: the handler requires more than an input and a context.
    """

    def __init__(self, signature: Signature, label: str, *, strict: bool = True) -> None:
        self.signature = signature
        self.label = label
        self._strict = strict
        self._roles = _roles(signature, label)
        self._hint = Any if self._roles.taker is None else self._roles.taker.hint
        self._hook = read_hook(strict)
        self._decode = msgspec.json.Decoder(self._hint, strict=strict, dec_hook=self._hook).decode

    @property
    def wants_context(self) -> bool:
        """Whether the handler receives the context."""
        roles = self._roles
        return _CONTEXT in roles.positions or any(role is _CONTEXT for _, role in roles.keys)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the input, as far as its type has one."""
        return schema_of(self._hint)

    def bind(self, params: bytes | msgspec.Raw | None, context: object) -> Arguments:
        """The arguments for an input given as JSON text; nothing, or no text, is an absent input.

        Raises:
            InvalidParameters: the input does not fit the parameter.
        """
        if params is None or not bytes(params):
            return self._bind_absent(context)
        return self._arranged(self._read(self._decode, params), context)

    def bind_value(self, value: object, context: object) -> Arguments:
        """The arguments for an input that is already decoded to plain Python values.

        Raises:
            InvalidParameters: the input does not fit the parameter.
        """
        return self._arranged(self._read(self._convert, value), context)

    def _bind_absent(self, context: object) -> Arguments:
        taker = self._roles.taker
        if taker is not None and not taker.required:
            return self._arranged(taker.default, context)
        return self.bind_value(None, context)

    def _convert(self, value: object) -> Any:
        if self._hint is Any:
            return value
        return msgspec.convert(value, self._hint, strict=self._strict, dec_hook=self._hook)

    def _read(self, read: Callable[[Any], Any], value: object) -> Any:
        if not self._roles.takes_input:
            return None
        try:
            return read(value)
        except Exception as error:  # noqa: BLE001 - types of the user may raise anything while they are read
            problem = describe(error, self._name, hint=self._hint)
        raise InvalidParameters(f"Invalid input for `{self.label}`: {problem}")

    @property
    def _name(self) -> str:
        return "input" if self._roles.taker is None else self._roles.taker.name

    def _arranged(self, value: object, context: object) -> Arguments:
        roles = self._roles
        args = tuple(context if role is _CONTEXT else value for role in roles.positions)
        return args, {name: context if role is _CONTEXT else value for name, role in roles.keys}


class _Roles(msgspec.Struct, frozen=True, eq=False):
    """Which parameter receives what.

    Attributes:
        taker: the parameter that receives the input, None when no named one does.
        positions: what is given by position.
        keys: what is given by name.
    """

    taker: Parameter | None
    positions: tuple[object, ...]
    keys: tuple[tuple[str, object], ...] = ()

    @property
    def takes_input(self) -> bool:
        """Whether the handler sees the input at all."""
        return _INPUT in self.positions or self.taker is not None


def _roles(signature: Signature, label: str) -> _Roles:
    context = signature.context_name or _unannotated_context(signature)
    takers = [entry for entry in signature.named if entry.name != context]
    _refuse_more(takers[1:], label)
    if not signature.named and signature.var_positional is not None:
        return _Roles(None, (_INPUT,) if context else (_INPUT, _CONTEXT), _keys({context: _CONTEXT}))
    taker = takers[0] if takers else None
    wanted = {context: _CONTEXT} | ({taker.name: _INPUT} if taker else {})
    positions = []
    for name in _positional_names(signature):
        if name not in wanted:
            break
        positions.append(wanted.pop(name))
    return _Roles(taker, tuple(positions), _keys(wanted))


def _unannotated_context(signature: Signature) -> str | None:
    """The parameter that receives the context when none is annotated: the second one, or one of its name."""
    bare = [entry for entry in signature.named if not entry.annotated]
    named = [entry.name for entry in bare if entry.name in _CONTEXT_NAMES]
    second = [entry.name for entry in signature.positional[1:2] if entry in bare and entry.required]
    return next(iter(named + second), None)


def _refuse_more(others: Sequence[Parameter], label: str) -> None:
    required = [f"`{entry.name}`" for entry in others if entry.required]
    if required:
        raise DefinitionError(
            f"`{label}`: a task gives its handler one input and the context, but {', '.join(required)} is "
            "required too: take one input (a dataclass, say), and annotate the context's parameter `Context`"
        )


def _positional_names(signature: Signature) -> list[str]:
    names = [entry.name for entry in signature.positional]
    if signature.context_index is not None:
        names.insert(signature.context_index, str(signature.context_name))
    return names


def _keys(roles: Mapping[str | None, object]) -> tuple[tuple[str, object], ...]:
    return tuple((name, role) for name, role in roles.items() if name is not None)
