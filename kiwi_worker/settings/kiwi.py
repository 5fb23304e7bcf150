"""The settings of a worker that speaks the Kiwi worker protocol."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from .declare import setting
from .kinds import (
    Choice,
    Flag,
    HostName,
    InputFile,
    IpAddress,
    IpNetwork,
    ListOf,
    Port,
    Seconds,
    SecretText,
    Text,
    TextMap,
    Url,
    Whole,
)
from .secret import MaskedUrl, Secret
from .worker import WorkerSettings

__all__ = ["KiwiSettings"]

_PLATFORM = "windows" if sys.platform == "win32" else sys.platform


@dataclass(frozen=True, repr=False, kw_only=True)
class KiwiSettings(WorkerSettings):
    """Everything a Kiwi worker can be told, each setting from a `KIWI_*` variable."""

    credential: ClassVar[tuple[str, str] | None] = ("auth_secret", "auth_secret_file")

    middleware_url: str = setting(
        Url("http", "https"),
        "the base address of the middleware; a path in it comes before every path of the protocol",
        default=MaskedUrl("http://127.0.0.1:8420"),
    )
    service_id: str | None = setting(
        Text(), "the service this worker belongs to", note="The one in the token wins over it."
    )
    auth_secret: Secret | None = setting(
        SecretText(), "the service's secret, for which the middleware gives a token"
    )
    auth_secret_file: str | None = setting(
        InputFile("-"),
        "the file that holds the service's secret (-: standard input)",
        note="It is read again before each request for a token. Not together with auth_secret.",
    )
    jwt_key: Secret | None = setting(
        SecretText(), "the key that tokens are verified with (a shared secret, or a public key as PEM)"
    )
    jwks_url: str | None = setting(
        Url("https", "http", query=True),
        "the address of the key set that tokens are verified with",
        note="Needs the extra jwks.",
    )
    refresh_margin: float = setting(
        Seconds(),
        "the time before its expiry at which a token is renewed, in seconds",
        default=300,
        note="A token that lives less than twice as long is renewed at half its life.",
    )
    run_mode: str = setting(
        Choice("lazy", "eager"),
        "how work arrives: woken by a probe (lazy), or by calls that wait (eager)",
        default="lazy",
    )
    wakeup_probe_service_port: int = setting(
        Port(),
        "the UDP and TCP port on which the wake-up probe arrives (0: any free one)",
        default=55222,
        note="With several processes, each one takes the next port.",
    )
    wakeup_probe_bind: str = setting(
        HostName(), "the address on which the wake-up probe is awaited", default="0.0.0.0"
    )
    probe_allow: tuple[str, ...] = setting(
        ListOf(IpNetwork()),
        "the senders whose probes are answered, as addresses or networks",
        default=(),
        shown_default="every sender",
    )
    probe_idle_limit: float = setting(
        Seconds(0.001), "the silence after which a probe's TCP connection is closed, in seconds", default=10
    )
    advertised_ip: str | None = setting(
        IpAddress(),
        "the ip that is registered",
        shown_default="the address of the route to the middleware",
    )
    advertised_port: int | None = setting(
        Port(1),
        "the port that is registered",
        shown_default="the port that is bound",
        note="With several processes, each one registers the next port.",
    )
    wait: float = setting(
        Seconds(), "the time an eager worker's call waits for work (N of ?wait=N), in seconds", default=30
    )
    heartbeat_delay: float = setting(Seconds(0.01), "the time between two heartbeats, in seconds", default=30)
    safety_interval: float | None = setting(
        Seconds(0.01),
        "the time after which a lazy worker that was not woken looks for work, in seconds",
        shown_default="heartbeat_delay",
        note="Probes are datagrams, and datagrams get lost.",
    )
    when_forgotten: str = setting(
        Choice("exit", "stay"),
        "what a worker does that the middleware no longer knows",
        default="exit",
        note="Exit finishes what is held and ends with status 75; only a new process may register again.",
    )
    on_ambiguous_lock: str = setting(
        Choice("skip", "run"),
        "what is done with a message whose lock may or may not have been won",
        default="skip",
        note="Run may run a message twice.",
    )
    lock_attempts: int = setting(
        Whole(1, 100), "the number of times a lock is asked for before the message is skipped", default=3
    )
    max_drain_bytes: int = setting(
        Whole(1024), "the size of the largest answer to a drain that is read, in bytes", default=256 * 2**20
    )
    feedback_limit: int = setting(
        Whole(1), "the number of unsent feedbacks at which new ones are dropped", default=10_000
    )
    feedback_type: int = setting(
        Whole(-(2**31), 2**31 - 1), "the feedback type (ft) of feedback that names none", default=0
    )
    tags: Mapping[str, str] = setting(
        TextMap(),
        "the registered tags, as names and texts",
        computed=dict,
        shown_default="{}",
        note='In a variable and as an option a JSON object: {"os": "linux"}.',
    )
    version: str = setting(Text(), "the registered version of what this worker serves", default="1.0.0")
    supported_executors: tuple[str, ...] = setting(
        ListOf(Text()),
        "the registered script executors",
        default=(),
        note="Script workers come later.",
    )
    platform: str = setting(
        Text(),
        "the registered platform",
        default=_PLATFORM,
        shown_default="this system (linux, darwin, windows)",
    )
    interactive_desktop: bool = setting(
        Flag(), "whether this worker registers an interactive desktop", default=False
    )
    browser_runtime: bool = setting(Flag(), "whether this worker registers a browser runtime", default=False)

    @property
    def drain_interval(self) -> float:
        """`safety_interval`, or `heartbeat_delay` when that was not given; in seconds."""
        return self.heartbeat_delay if self.safety_interval is None else self.safety_interval

    def _check_together(self) -> None:
        super()._check_together()
        if self.jwt_key is not None and self.jwks_url is not None:
            self._refuse("jwt_key", f"is given and so is {self.written_as('jwks_url')}; keep one of them")
        if self.advertised_port is not None:
            self._check_last_port("advertised_port", self.advertised_port)

    def _listening(self) -> dict[str, int]:
        listening = super()._listening()
        if self.run_mode == "lazy" and self.wakeup_probe_service_port:
            listening["wakeup_probe_service_port"] = self.wakeup_probe_service_port
        return listening
