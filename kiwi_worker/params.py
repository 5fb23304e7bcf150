"""From the params of a message to the arguments of a handler.

How params reach parameters (the protocol page leaves it open):

- a JSON object gives arguments by name, to positional-only parameters too; `**kwargs` takes the other keys;
- an array gives arguments by position; `*args` takes the rest; parameters left out keep their defaults;
- null, nothing at all, `{}` and `[]` give none;
- a string that itself holds a JSON object or array is read like that object or array;
- anything else is an error, and so are unknown keys unless the handler ignores them.

`def f(input: dict)` therefore receives `params["input"]`. The parameter that receives the context is not part
of the params: a key of its name is an unknown key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any, Literal

import msgspec

from kiwi_worker.errors import InvalidParameters
from kiwi_worker.mismatch import describe, missing_text, unknown_text
from kiwi_worker.readers import read_hook, schema_hook
from kiwi_worker.signatures import Parameter, Signature

__all__ = ["Arguments", "Bind", "CallPlan", "ExtraKeys", "parameters_struct"]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Bind = Callable[["bytes | msgspec.Raw | None", object], Arguments]
ExtraKeys = Literal["refuse", "ignore"]

_NOTHING = frozenset({b"", b"null", b"{}", b"[]"})
_SHARED_DEFAULTS = frozenset({type(None), bool, bytes, float, int, str})
_whole_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_whole_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_whole_string = msgspec.json.Decoder(str).decode
_astuple = msgspec.structs.astuple


class CallPlan:
    """How the params of a message become the arguments of one handler; made once, when it is defined.

    Args:
        signature: what the handler takes.
        label: the name of the method, for messages.
        strict: no conversions: "5" and 3.0 are no int. Otherwise strings that spell a number, a bool or null
            and floats that are whole are taken as well.
        extra_keys: what happens to keys that are no parameters.

    Attributes:
        bind: `bind(params, context)` gives `(args, kwargs)`; params are the JSON text of the value. Raises
            `InvalidParameters` and nothing else.
    """

    bind: Bind

    def __init__(
        self, signature: Signature, label: str, *, strict: bool = True, extra_keys: ExtraKeys = "refuse"
    ) -> None:
        self.signature = signature
        self.label = label
        self._names = [parameter.name for parameter in signature.named]
        self._refuses_extra = extra_keys == "refuse"
        self._decoder = partial(msgspec.json.Decoder, strict=strict, dec_hook=read_hook(strict))
        self._named = parameters_struct(label, signature.named, kw_only=True, **self._forbidding())
        self._decode_named = self._decoder(self._named).decode
        self.bind = self._quickest()

    @property
    def wants_context(self) -> bool:
        """Whether the handler receives the context."""
        return self.signature.context_name is not None

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the params given by name, as far as the types have one."""
        return schema_of(self._named)

    def _forbidding(self) -> dict[str, bool]:
        return {"forbid_unknown_fields": self._refuses_extra and self.signature.var_keyword is None}

    def _quickest(self) -> Bind:
        signature = self.signature
        if signature.var_keyword is not None:
            return self._bind_carefully
        if not signature.named:
            return _without_parameters(signature, self._bind_carefully)
        if not signature.keyword_only and signature.context_index is None:
            return _by_position(self._decode_named, signature.context_name, self._bind_carefully)
        return _arranged(self._decode_named, self._arrange, self._bind_carefully)

    def _bind_carefully(self, params: bytes | msgspec.Raw | None, context: object) -> Arguments:
        """Every form of params, and every fault in them."""
        try:
            return self._bind_any(params, context)
        except InvalidParameters:
            raise
        except Exception as error:  # noqa: BLE001 - types of the user may raise anything while they are read
            raise self._invalid(describe(error, "params")) from None

    def _bind_any(self, params: bytes | msgspec.Raw | None, context: object) -> Arguments:
        text = self._opened(b"" if params is None else bytes(params).strip(b" \t\r\n"))
        if text[:1] == b"{":
            return self._bind_object(text, context)
        if text[:1] == b"[":
            return self._bind_array(text, context)
        raise self._invalid(f"params must be an object, an array or null, got {_kind_of(text)}")

    def _opened(self, text: bytes) -> bytes:
        if text in _NOTHING:
            return b"{}"
        if text[:1] != b'"':
            return text
        inner = _whole_string(text).strip(" \t\r\n")
        return inner.encode() if inner[:1] in ("{", "[") else text

    def _bind_object(self, text: bytes, context: object) -> Arguments:
        try:
            values = _astuple(self._decode_named(text))
        except Exception as error:  # noqa: BLE001 - as above
            raise self._object_fault(text, error) from None
        args, kwargs = self._arrange(values, context)
        if self.signature.var_keyword is not None:
            kwargs.update(self._extra_values(text))
        return args, kwargs

    def _extra_values(self, text: bytes) -> dict[str, Any]:
        extra = self._extra_keys(_whole_object(text))
        if self.signature.context_name in extra:
            if self._refuses_extra:
                raise self._invalid(unknown_text([str(self.signature.context_name)], self._names))
            del extra[str(self.signature.context_name)]
        return {name: self._extra_value(name, value) for name, value in extra.items()}

    def _extra_value(self, name: str, value: msgspec.Raw) -> Any:
        try:
            return self._decode_extra(value)
        except Exception as error:  # noqa: BLE001 - as above
            raise self._invalid(describe(_moved(error, f".{name}"), "params")) from None

    @cached_property
    def _decode_extra(self) -> Callable[[msgspec.Raw], Any]:
        gathered = self.signature.var_keyword
        return self._decoder(Any if gathered is None else gathered.hint).decode

    def _extra_keys(self, entries: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        return {name: value for name, value in entries.items() if name not in self._names}

    def _object_fault(self, text: bytes, error: Exception) -> InvalidParameters:
        entries = _whole_object(text)
        required = [entry.name for entry in self.signature.named if entry.required]
        missing = [name for name in required if name not in entries]
        forbidden = list(self._extra_keys(entries)) if self._forbidding()["forbid_unknown_fields"] else []
        texts = [missing_text(missing)] if missing else []
        texts += [unknown_text(forbidden, self._names)] if forbidden else []
        return self._invalid("; ".join(texts) or describe(error, "params", hint=self._named))

    def _bind_array(self, text: bytes, context: object) -> Arguments:
        positions = [parameter.name for parameter in self.signature.positional]
        try:
            elements = _whole_array(text)
            self._check_count(elements)
            given, rest = elements[: len(positions)], elements[len(positions) :]
            values = _astuple(self._decode_positional(_as_array(given)))
        except InvalidParameters:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            raise self._invalid(describe(error, "params", positions, self._positional)) from None
        args, kwargs = self._arrange(values, context)
        return args + self._rest_values(rest, len(positions)), kwargs

    def _check_count(self, elements: Sequence[msgspec.Raw]) -> None:
        signature, count = self.signature, len(elements)
        if count > len(signature.positional) and signature.var_positional is None:
            most = len(signature.positional)
            raise self._invalid(f"takes at most {most} value{'s' * (most != 1)} by position, got {count}")
        missing = [entry.name for entry in signature.positional[count:] if entry.required]
        missing += [entry.name for entry in signature.keyword_only if entry.required]
        if missing:
            raise self._invalid(missing_text(missing))

    @cached_property
    def _positional(self) -> type[msgspec.Struct]:
        return parameters_struct(self.label, self.signature.positional, array_like=True)

    @cached_property
    def _decode_positional(self) -> Callable[[bytes], Any]:
        return self._decoder(self._positional).decode

    def _rest_values(self, elements: Sequence[msgspec.Raw], offset: int) -> tuple[Any, ...]:
        return tuple(self._rest_value(value, offset, index) for index, value in enumerate(elements))

    def _rest_value(self, value: msgspec.Raw, offset: int, index: int) -> Any:
        try:
            return self._decode_rest(value)
        except Exception as error:  # noqa: BLE001 - as above
            moved = _moved(error, f"[{offset + index}]")
        gathered = self.signature.var_positional
        name = "" if gathered is None else gathered.name
        raise self._invalid(describe(moved, "params", [*[""] * offset, *[f"{name}[{index}]"] * (index + 1)]))

    @cached_property
    def _decode_rest(self) -> Callable[[msgspec.Raw], Any]:
        gathered = self.signature.var_positional
        return self._decoder(Any if gathered is None else gathered.hint).decode

    def _arrange(self, values: tuple[Any, ...], context: object) -> Arguments:
        """Arguments from the values of the positional parameters, then those of the keyword-only ones when
        they are there."""
        signature = self.signature
        count = len(signature.positional)
        args, named = values[:count], values[count:]
        kwargs = {entry.name: value for entry, value in zip(signature.keyword_only, named, strict=False)}
        if signature.context_index is not None:
            args = (*args[: signature.context_index], context, *args[signature.context_index :])
        elif signature.context_name is not None:
            kwargs[signature.context_name] = context
        return args, kwargs

    def _invalid(self, problem: str) -> InvalidParameters:
        return InvalidParameters(f"Invalid parameters for `{self.label}`: {problem}")


def parameters_struct(label: str, parameters: Iterable[Parameter], **options: Any) -> type[msgspec.Struct]:
    """A struct with one field per parameter, in their order."""
    fields = [(f"p{index}", parameter.hint, _field(parameter)) for index, parameter in enumerate(parameters)]
    return msgspec.defstruct(label, fields, gc=False, **options)


def schema_of(hint: Any) -> dict[str, Any]:
    """The JSON schema of a type; a schema that allows everything when it has none."""
    try:
        schema = msgspec.json.schema(hint, schema_hook=schema_hook)
    except Exception:  # noqa: BLE001 - a schema is for readers only: types of the user may refuse to give one
        return {}
    definitions: dict[str, Any] = {}
    _hoist(schema, definitions)
    return schema | ({"$defs": definitions} if definitions else {})


def _hoist(node: Any, definitions: dict[str, Any]) -> None:
    """References start at the root of the whole schema, but models bring definitions of their own."""
    if isinstance(node, dict):
        for name, definition in node.pop("$defs", {}).items():
            definitions[name] = definition
            _hoist(definition, definitions)
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        _hoist(child, definitions)


def _field(parameter: Parameter) -> Any:
    if parameter.required:
        return msgspec.field(name=parameter.name)
    if type(parameter.default) in _SHARED_DEFAULTS:
        return msgspec.field(name=parameter.name, default=parameter.default)
    return msgspec.field(name=parameter.name, default_factory=partial(_same, parameter.default))


def _same(value: Any) -> Any:
    return value


def _by_position(decode: Callable[[Any], Any], context_name: str | None, carefully: Bind) -> Bind:
    def bind(params: bytes | msgspec.Raw | None, context: object) -> Arguments:
        try:
            return _astuple(decode(params)), {}
        except Exception:  # noqa: BLE001 - the careful way finds out what it was, and whether it is a fault
            return carefully(params, context)

    def bind_with_context(params: bytes | msgspec.Raw | None, context: object) -> Arguments:
        try:
            return _astuple(decode(params)), {name: context}
        except Exception:  # noqa: BLE001 - as above
            return carefully(params, context)

    name = context_name or ""
    return bind if context_name is None else bind_with_context


def _arranged(
    decode: Callable[[Any], Any], arrange: Callable[[tuple[Any, ...], object], Arguments], carefully: Bind
) -> Bind:
    def bind(params: bytes | msgspec.Raw | None, context: object) -> Arguments:
        try:
            return arrange(_astuple(decode(params)), context)
        except Exception:  # noqa: BLE001 - as above
            return carefully(params, context)

    return bind


def _without_parameters(signature: Signature, carefully: Bind) -> Bind:
    name, is_positional = signature.context_name, signature.context_index is not None

    def bind(params: bytes | msgspec.Raw | None, context: object) -> Arguments:
        if params is not None and bytes(params) not in _NOTHING:
            return carefully(params, context)
        if name is None:
            return (), {}
        return ((context,), {}) if is_positional else ((), {name: context})

    return bind


def _as_array(elements: Sequence[msgspec.Raw]) -> bytes:
    return b"[" + b",".join(bytes(element) for element in elements) + b"]"


def _moved(error: Exception, step: str) -> Exception:
    """The error of one value, with its place inside the params."""
    if isinstance(error, msgspec.ValidationError):
        return msgspec.ValidationError(f"{error} - at `${step}`")
    return error


def _kind_of(text: bytes) -> str:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return "what is not valid JSON"
    return f"`{type(value).__name__}`"
