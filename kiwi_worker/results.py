"""From what a handler returns to JSON text.

| returned | JSON |
|---|---|
| None, bool, int (of any size), float, str | themselves |
| dict, any Mapping | object; keys may be str, int, float, Enum, UUID, Decimal, date and time types, bytes |
| list, tuple, named tuple, set, frozenset, deque, range, dict views | array |
| dataclass, attrs class, msgspec.Struct, TypedDict, pydantic model | object |
| Enum | its value |
| datetime, date, time, timedelta, UUID, Decimal, Path, IP address | string |
| bytes, bytearray, memoryview | string, base64 |
| numpy scalar, array (and whatever has `dtype` and `tolist()`) | what `tolist()` gives |

Everything else is refused, and so are NaN and infinities (JSON has none, and null would say something else),
text that is not Unicode (lone surrogates), values that contain themselves or are nested too deep.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from functools import cache
from typing import Any

import msgspec

from kiwi_worker import pydantic_types
from kiwi_worker.errors import UnencodableResult

__all__ = ["encode_result"]

_ARRAYS = (Sequence, Set, ValuesView)
_ADDRESSES = frozenset(
    f"{kind}{version}" for kind in ("IPv4", "IPv6") for version in ("Address", "Network", "Interface")
)
_KNOWN_EXCEPT_AS_KEY = (bool, dict, frozenset, list, set, tuple)
# what is finer than that comes out of `tolist()` as a bare number
_TIME_UNITS = {"M": "datetime64[us]", "m": "timedelta64[us]"}
_DEPTH_SEARCHED = 30
_TEXT_LIMIT = 200


def encode_result(value: object, max_bytes: int | None = None, *, called: str = "result") -> bytes:
    """The JSON text of a result, or of another value that a person hands in.

    Args:
        value: what the handler returned.
        max_bytes: the longest text that may be sent, in bytes; None for any length.
        called: how an error names the value.

    Raises:
        UnencodableResult: it has no JSON text, or a longer one than that. Nothing else is raised.
    """
    try:
        text = _encode(value)
    except Exception as error:  # noqa: BLE001 - hooks and properties of the user's objects may raise anything
        raise UnencodableResult(_explained(value, error, called)) from None
    if value is not None and b"null" in text and not _is_finite(value):
        raise UnencodableResult(
            _explained(value, _NOT_FINITE, called, fails=lambda part: not _is_finite(part))
        )
    if max_bytes is not None and len(text) > max_bytes:
        raise UnencodableResult(
            f"{called} of {len(text)} bytes is larger than the limit of {max_bytes} bytes"
        )
    return text


def _plain(value: Any) -> Any:
    """The plainer form of a value that msgspec does not know.

    Raises:
        TypeError: it has none.
    """
    if isinstance(value, type):
        raise TypeError("a class has no JSON form")
    if value is None or isinstance(value, _KNOWN_EXCEPT_AS_KEY):
        raise TypeError(f"`{type(value).__qualname__}` cannot be a key of an object")
    if pydantic_types.is_model(value):
        return pydantic_types.dump(value)
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return _from_numpy(value)
    if isinstance(value, (str, int, float)):
        return _without_subclass(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, _ARRAYS) and not isinstance(value, collections.UserString):
        return list(value)
    return _as_text(value)


def _from_numpy(value: Any) -> Any:
    unit = _TIME_UNITS.get(getattr(value.dtype, "kind", ""))
    if unit is None:
        return value.tolist()
    if (value != value).any():
        raise ValueError("NaT has no JSON form; use None, or leave the value out")
    return value.astype(unit).tolist()


def _without_subclass(value: str | int | float) -> Any:
    """The plain value: not by `str(value)`, since a subclass may say something else there, or raise."""
    if isinstance(value, str):
        return str.__str__(value)
    return int.__int__(value) if isinstance(value, int) else float.__float__(value)


def _as_text(value: Any) -> str:
    cls = type(value)
    if isinstance(value, (pathlib.PurePath, collections.UserString)):
        return str(value)
    if cls.__module__ == "ipaddress" and cls.__name__ in _ADDRESSES:
        return str(value)
    raise TypeError(f"`{cls.__qualname__}` has no JSON form{_advice(value)}")


def _advice(value: object) -> str:
    if inspect.isgenerator(value) or inspect.isasyncgen(value) or isinstance(value, Iterator):
        return "; return a list of what it gives"
    if inspect.isawaitable(value):
        return "; it was never awaited"
    if isinstance(value, BaseException):
        return "; raise it, or return its text"
    return "; return a dict, a dataclass or another documented type"


_encode = msgspec.json.Encoder(enc_hook=_plain).encode


def _is_finite(value: object) -> bool:
    """Whether no NaN or infinity is anywhere in a value that msgspec has encoded; it writes them as null."""
    try:
        _finite_only()(msgspec.to_builtins(value, enc_hook=_plain_with_nan, str_keys=True))
    except Exception:  # noqa: BLE001 - ValueError for what is looked for; anything else is no result either
        return False
    return True


def _plain_with_nan(value: Any) -> Any:
    """Like `_plain`, for looking only: a model keeps its NaN, and what it alone can encode is passed over."""
    if pydantic_types.is_model(value):
        return pydantic_types.dump_python(value)
    try:
        return _plain(value)
    except TypeError:
        return None


@cache
def _finite_only() -> Callable[[Any], str]:
    import json

    return json.JSONEncoder(allow_nan=False, check_circular=False).encode


_NOT_FINITE = ValueError("NaN and infinities have no JSON form; use None, or leave the value out")


def _explained(
    value: object, error: Exception, called: str, fails: Callable[[object], bool] | None = None
) -> str:
    """What is wrong with a value, and where in it."""
    try:
        path, culprit, holds_itself = _searched(value, fails or _is_refused)
        problem = "it contains itself" if holds_itself else _problem(culprit, error)
    except Exception:  # noqa: BLE001 - objects that broke the encoder may break the search; the answer goes out
        path, culprit, problem = "$", value, _text_of(error)
    return f"{called} cannot be encoded as JSON: `{type(culprit).__qualname__}` at `{path}`: {problem}"


def _problem(culprit: object, error: Exception) -> str:
    own = _failure(culprit) or error
    if isinstance(own, RecursionError):
        return "it is nested too deep"
    if isinstance(own, UnicodeEncodeError):
        return "its text is not valid Unicode (a lone surrogate)"
    return _text_of(own)


def _text_of(error: Exception) -> str:
    try:
        text = f"{error}"[:_TEXT_LIMIT]
    except Exception:  # noqa: BLE001 - the text of a user's exception may raise
        text = "(no readable text)"
    return text if isinstance(error, (TypeError, ValueError)) else f"{type(error).__name__}: {text}"


def _failure(value: object) -> Exception | None:
    try:
        _encode(value)
    except Exception as error:  # noqa: BLE001 - as above
        return error
    return None


def _is_refused(value: object) -> bool:
    return _failure(value) is not None


def _searched(value: object, fails: Callable[[object], bool]) -> tuple[str, object, bool]:
    """The path to the innermost part that fails, that part, and whether it is one that holds itself."""
    path = "$"
    above: list[object] = []
    while len(above) < _DEPTH_SEARCHED:
        above.append(value)
        failing = next(((step, part) for step, part in _parts(value) if fails(part)), None)
        if failing is None:
            return path, value, False
        path, value = path + failing[0], failing[1]
        if any(value is outer for outer in above):
            return path, value, True
    return f"{path}…", value, False


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(_key_step(key), part) for key, part in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    names = _field_names(value)
    if names is not None:
        return [(f".{name}", getattr(value, name)) for name in names if hasattr(value, name)]
    if value is None or isinstance(value, (str, int, float, bytes)):
        return ()
    try:
        return _parts(_plain(value))
    except Exception:  # noqa: BLE001 - it has no parts that could be looked at: it is the culprit itself
        return ()


def _key_step(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{_key_text(key)}]"


def _key_text(key: object) -> str:
    return repr(key)[:_TEXT_LIMIT] if isinstance(key, (str, int, float, tuple)) else type(key).__name__


def _field_names(value: Any) -> Sequence[str] | None:
    cls = type(value)
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    if hasattr(cls, "__attrs_attrs__"):
        return [field.name for field in cls.__attrs_attrs__]
    return getattr(cls, "__struct_fields__", None)
