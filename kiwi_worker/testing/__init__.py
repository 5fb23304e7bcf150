"""Test tools for workers: handlers without a server, a server that misbehaves on purpose, a cut link.

    from kiwi_worker.testing import DropBefore, MisbehavingServer

    with MisbehavingServer.kiwi() as server:
        server.fault("respond", DropBefore(), after=True)
        request_id = server.enqueue("hello", {"name": "Ada"})
        ...  # run a worker against server.url
        server.assert_answered_once(request_id, status="success")

A name is loaded when it is first used, so that the pytest plugin costs nothing where it is not used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kiwi_worker.testing.calls import Call
    from kiwi_worker.testing.environment import (
        HandlerAnswer,
        HandlerEnvironment,
        RunningCall,
        SentFeedback,
    )
    from kiwi_worker.testing.faults import (
        ByteOrderMark,
        Chunked,
        CloseKeepAlive,
        DropAfter,
        DropBefore,
        DuplicateMessages,
        EmptyBody,
        ExpiredToken,
        ExtraBytes,
        Fault,
        HalfOpen,
        Html502,
        NotHttp,
        PartialBody,
        Redeliver,
        Redirect,
        ReorderMessages,
        SlowLink,
        Stall,
        Status,
        TooManyRequests,
        UntilClose,
        WrongClock,
        WrongJson,
        WrongLength,
    )
    from kiwi_worker.testing.link import StruckFault
    from kiwi_worker.testing.orbit_tasks import TaskResult
    from kiwi_worker.testing.proxy import FaultProxy
    from kiwi_worker.testing.schedule import ArmedFault
    from kiwi_worker.testing.server import KiwiServer, MisbehavingServer, OrbitServer

__all__ = [
    "ArmedFault",
    "ByteOrderMark",
    "Call",
    "Chunked",
    "CloseKeepAlive",
    "DropAfter",
    "DropBefore",
    "DuplicateMessages",
    "EmptyBody",
    "ExpiredToken",
    "ExtraBytes",
    "Fault",
    "FaultProxy",
    "HalfOpen",
    "HandlerAnswer",
    "HandlerEnvironment",
    "Html502",
    "KiwiServer",
    "MisbehavingServer",
    "NotHttp",
    "OrbitServer",
    "PartialBody",
    "Redeliver",
    "Redirect",
    "ReorderMessages",
    "RunningCall",
    "SentFeedback",
    "SlowLink",
    "Stall",
    "Status",
    "StruckFault",
    "TaskResult",
    "TooManyRequests",
    "UntilClose",
    "WrongClock",
    "WrongJson",
    "WrongLength",
]

_HOMES = ("faults", "calls", "schedule", "server", "proxy", "link", "orbit_tasks", "environment")


def __getattr__(name: str) -> object:
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"{__name__}.{home}")
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
