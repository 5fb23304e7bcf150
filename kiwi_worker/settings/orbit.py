"""The settings of a worker that speaks the ORBIT worker protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .declare import setting
from .kinds import InputFile, ListOf, Seconds, SecretText, Text, Url
from .secret import MaskedUrl, Secret
from .worker import WorkerSettings

__all__ = ["OrbitSettings"]


@dataclass(frozen=True, repr=False, kw_only=True)
class OrbitSettings(WorkerSettings):
    """Everything an ORBIT worker can be told: its own from `ORBIT_*`, the shared ones from `KIWI_*`."""

    environment_prefix: ClassVar[str] = "ORBIT_"
    warned_prefixes: ClassVar[tuple[str, ...]] = ("KIWI_", "ORBIT_")
    credential: ClassVar[tuple[str, str] | None] = ("token", "token_file")

    server: tuple[str, ...] = setting(
        ListOf(Url("http", "https", "grpc", "grpcs"), fewest=1),
        "the address of the runtime, or several of one scheme, tried in turn",
        default=(MaskedUrl("http://127.0.0.1:7233"),),
        note="grpc:// and grpcs:// choose gRPC, which needs the extra orbit-grpc and the setting proto.",
    )
    token: Secret | None = setting(
        SecretText(header=True),
        "the bearer token for the runtime",
        environment=("ORBIT_WORKER_TOKEN", "ORBIT_TOKEN"),
    )
    token_file: str | None = setting(
        InputFile("-"),
        "the file that holds the bearer token (-: standard input)",
        note="It is read again when the runtime refuses the token. Not together with token.",
    )
    runtime: str = setting(
        Text(), "the language this worker registers, matched against `using` in workflows", default="python"
    )
    proto: str | None = setting(
        InputFile("assumed"),
        "the runtime's own worker.proto, or the word assumed",
        note="gRPC needs it: the page does not tell field numbers, and wrong ones fail silently.",
    )
    poll_wait: float = setting(
        Seconds(0.001),
        "the time a poll waits for a task, in seconds",
        default=20,
        note="60 at most counts.",
    )

    @property
    def scheme(self) -> str:
        """The one scheme of all servers: `http`, `https`, `grpc` or `grpcs`."""
        return _scheme(self.server[0])

    def _check_together(self) -> None:
        super()._check_together()
        schemes = sorted({_scheme(server) for server in self.server})
        if len(schemes) > 1:
            self._refuse("server", f"mixes {' and '.join(schemes)}; all servers need the same scheme")
        if self.scheme in ("grpc", "grpcs") and self.proto is None:
            self._refuse(
                "proto",
                "is needed for gRPC; give the path of the runtime's worker.proto, or the word assumed",
            )


def _scheme(server: str) -> str:
    return server.partition("://")[0]
