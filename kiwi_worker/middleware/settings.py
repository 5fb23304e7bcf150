"""The settings of the bundled middleware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..settings import Settings, setting
from ..settings.kinds import HostName, OutputFile, Port, Seconds, Whole

__all__ = ["MiddlewareSettings"]

WEEK = 604_800


@dataclass(frozen=True, repr=False, kw_only=True)
class MiddlewareSettings(Settings):
    """Everything the bundled middleware can be told, each setting from a `KIWI_MIDDLEWARE_*` variable."""

    environment_prefix: ClassVar[str] = "KIWI_MIDDLEWARE_"
    warned_prefixes: ClassVar[tuple[str, ...]] = ("KIWI_MIDDLEWARE_",)
    config_variable: ClassVar[str] = "KIWI_MIDDLEWARE_CONFIG"

    host: str = setting(
        HostName(),
        "the address to listen on",
        default="127.0.0.1",
        note="Any other than a loopback address lets other machines in; put TLS before it then.",
    )
    port: int = setting(Port(), "the port to listen on (0: any free one)", default=8420)
    db: str = setting(
        OutputFile(),
        "the path of the SQLite file that holds services, calls and results",
        default="kiwi-middleware.db",
        note="It is made when it is not there, readable by its owner only.",
    )
    heartbeat_delay: float = setting(
        Seconds(0.05),
        "the time between two heartbeats that workers are told to keep, in seconds",
        default=30,
        note="A worker that missed three is dead.",
    )
    worker_token_lifetime: float = setting(
        Seconds(1), "the time for which a worker's token is good, in seconds", default=3600
    )
    client_token_lifetime: float = setting(
        Seconds(1), "the time for which a client's token is good, in seconds", default=3600
    )
    refresh_token_lifetime: float = setting(
        Seconds(1), "the time for which a refresh token is good, in seconds", default=WEEK
    )
    time_to_live: float = setting(
        Seconds(0.01),
        "the time after which a call without an answer ends, in seconds, unless it says otherwise",
        default=300,
    )
    max_time_to_live: float = setting(
        Seconds(1), "the longest time to live that a call may ask for, in seconds", default=WEEK
    )
    max_wait: float = setting(
        Seconds(1), "the longest time that one request may hang for its answer, in seconds", default=300
    )
    queue_length: int = setting(
        Whole(1), "the number of open calls that one service may have", default=200_000
    )
    max_queue_bytes: int = setting(
        Whole(1024), "the size of the params of all open calls together, in bytes", default=256 * 2**20
    )
    max_body_bytes: int = setting(
        Whole(1024, 2**30), "the size of the largest params or result, in bytes", default=16 * 2**20
    )
    result_retention: float = setting(
        Seconds(1), "the time for which an ended call can still be fetched, in seconds", default=3600
    )
    max_results: int = setting(
        Whole(1), "the number of ended calls that are kept; the oldest are dropped first", default=1_000_000
    )
    unknown_method_delay: float = setting(
        Seconds(),
        "the time for which a call to a method that no worker ever had waits for one, in seconds",
        default=1,
        note="Then any live worker gets it, whose answer names the methods it knows.",
    )
