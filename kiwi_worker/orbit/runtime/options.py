"""The options of the dev runtime."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from kiwi_worker.errors import SettingsError
from kiwi_worker.orbit.runtime.http import DEFAULT_MAX_BODY


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """What a dev runtime is started with; names and defaults are the page's where it has them.

    Args:
        deploy: the TOML file of workflows.
        db: the SQLite file; None keeps everything in memory.
        host, port: where HTTP is served; port 0 takes a free one.
        grpc_addr: `host:port` of the gRPC binding; None serves none.
        proto: the `worker.proto` of the gRPC binding, or `assumed`.
        token: the admin token.
        worker_token: the shared worker token.
        workers_file: the TOML file of per-worker identities.
        session_timeout_ms: silence after which a worker counts as lost.
        max_body: the largest request, in bytes.
        tls_cert, tls_key: PEM files; both or none.
        tls_client_ca: PEM file; with it every connection must show a certificate that this CA signed.

    Raises:
        SettingsError: if they do not go together, or the runtime would be open to a network.
    """

    deploy: Path
    db: Path | None = None
    host: str = "127.0.0.1"
    port: int = 7233
    grpc_addr: str | None = None
    proto: str = "assumed"
    token: str | None = field(default=None, repr=False)
    worker_token: str | None = field(default=None, repr=False)
    workers_file: Path | None = None
    session_timeout_ms: int = 30_000
    max_body: int = DEFAULT_MAX_BODY
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None

    def __post_init__(self) -> None:
        self._check_guarded("host", self.host)
        if self.grpc_addr is not None:
            self._check_guarded("grpc_addr", host_of(self.grpc_addr))
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("tls_cert", "--tls-cert and --tls-key are needed together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise SettingsError("tls_client_ca", "needs --tls-cert and --tls-key")
        if self.session_timeout_ms < 1 or self.max_body < 1:
            raise SettingsError("session_timeout", "session time-out and body size must be positive")
        for name in ("token", "worker_token"):
            if getattr(self, name) == "":
                raise SettingsError(name, "must not be empty")

    def _check_guarded(self, key: str, host: str) -> None:
        if self.token is None and self.workers_file is None and not _is_loopback(host):
            text = (
                f"{host} can be reached from other machines: set --token (or ORBIT_TOKEN) or --workers-file"
            )
            raise SettingsError(key, text)


def host_of(address: str) -> str:
    """The host of `host:port`.

    Raises:
        SettingsError: if it is not of that form.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not host:
        raise SettingsError("grpc_addr", "must be HOST:PORT, such as 127.0.0.1:7234")
    return host.strip("[]")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
