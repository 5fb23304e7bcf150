"""Faults by name: small frozen values that say how one call goes wrong.

A fault strikes at one of two moments. *Before* the server acted: nothing was handed out, locked or recorded,
and no protocol answer exists; what the client sees was made up on the way. *After* the server acted: the
work is done, and its answer is lost, late or spoiled; this is the moment that loses messages. `moments` of a
fault lists those it knows; the first one is its default. A fault that spoils the true answer knows only
`after`, since before there is none.

Each is used with `server.fault(call, FAULT, after=…)`. None of them may be shared state: the same value can
be armed several times.
"""

from __future__ import annotations

from kiwi_worker.testing.answer_faults import (
    ByteOrderMark,
    Chunked,
    EmptyBody,
    ExtraBytes,
    Html502,
    Redirect,
    Status,
    TooManyRequests,
    UntilClose,
    WrongJson,
    WrongLength,
)
from kiwi_worker.testing.fault import (
    Fault,
    Moment,
)
from kiwi_worker.testing.link_faults import (
    CloseKeepAlive,
    DropAfter,
    DropBefore,
    HalfOpen,
    NotHttp,
    PartialBody,
    SlowLink,
    Stall,
)
from kiwi_worker.testing.protocol_faults import (
    DuplicateMessages,
    ExpiredToken,
    Redeliver,
    ReorderMessages,
    WrongClock,
)

__all__ = [
    "ByteOrderMark",
    "Chunked",
    "CloseKeepAlive",
    "DropAfter",
    "DropBefore",
    "DuplicateMessages",
    "EmptyBody",
    "ExpiredToken",
    "ExtraBytes",
    "Fault",
    "HalfOpen",
    "Html502",
    "Moment",
    "NotHttp",
    "PartialBody",
    "Redeliver",
    "Redirect",
    "ReorderMessages",
    "SlowLink",
    "Stall",
    "Status",
    "TooManyRequests",
    "UntilClose",
    "WrongClock",
    "WrongJson",
    "WrongLength",
    "fault_named",
    "fault_names",
]


def fault_names() -> list[str]:
    """The names of all faults of this module, sorted."""
    return sorted(_all_faults())


def fault_named(name: str, **arguments: object) -> Fault:
    """The fault of this name; text is taken for bytes where the fault wants bytes, lists for tuples.

    Raises:
        ValueError: there is no such fault, or it does not take these arguments.
    """
    faults = _all_faults()
    if name not in faults:
        raise ValueError(f"there is no fault {name!r}; the faults are {', '.join(sorted(faults))}")
    kinds: dict[str, str] = getattr(faults[name], "__annotations__", {})
    try:
        return faults[name](**{key: _fitting(value, kinds.get(key, "")) for key, value in arguments.items()})
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error


def _all_faults() -> dict[str, type[Fault]]:
    named = {name: globals()[name] for name in __all__ if name != "Fault"}
    return {name: kind for name, kind in named.items() if isinstance(kind, type)}


def _fitting(value: object, kind: str) -> object:
    if kind.startswith("bytes") and isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return tuple(tuple(part) if isinstance(part, list) else part for part in value)
    return value
