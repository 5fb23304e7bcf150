"""The start of a Kiwi worker: probe port, login and registration, in this order."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address

from kiwi_worker.context import ApplicationSettings
from kiwi_worker.errors import (
    ProtocolError,
    TokenUnavailable,
    TransportError,
    UnreachableError,
)
from kiwi_worker.kiwi.probe import ProbeListener, route_address
from kiwi_worker.kiwi.registration import register, registration_body
from kiwi_worker.kiwi.session import Session
from kiwi_worker.settings import KiwiSettings
from kiwi_worker.transport import Backoff

__all__ = ["Opening"]

_logger = logging.getLogger("kiwi_worker.kiwi")


class Opening:
    """Brings a worker up.

    Args:
        settings: of the worker.
        session: how to call the middleware.
        stopping: set when the start is to be given up.

    Attributes:
        port: the bound probe port; None when none is bound.
    """

    def __init__(self, settings: KiwiSettings, session: Session, stopping: threading.Event) -> None:
        self._settings = settings
        self._session = session
        self._stopping = stopping
        self.port: int | None = None

    def bind_probe(self, on_wake: Callable[[], None]) -> ProbeListener:
        """Bind the probe port, so that the real one is known before it is registered.

        Raises:
            ProbePortError: it cannot be bound.
        """
        settings = self._settings
        probe = ProbeListener(
            self._bind_address(),
            settings.wakeup_probe_service_port,
            on_wake,
            allow=settings.probe_allow,
            idle_limit=settings.probe_idle_limit,
        )
        self.port = probe.bind()
        return probe

    def _bind_address(self) -> str:
        settings = self._settings
        left_alone = settings.source_of("wakeup_probe_bind") == "default"
        return "::" if left_alone and self._routes_over_ipv6() else settings.wakeup_probe_bind

    def _routes_over_ipv6(self) -> bool:
        try:
            return ip_address(self._route()).version == 6
        except (UnreachableError, ValueError):
            return False

    def _route(self) -> str:
        endpoint = self._session.endpoint
        return route_address(endpoint.host, endpoint.port)

    def register(self, methods: Sequence[str], idempotent: Sequence[str] = ()) -> ApplicationSettings | None:
        """Log in and register, trying until it works; None when the start was given up.

        Raises:
            AuthenticationError, RegistrationError: it was refused.
            UnreachableError: the start-up limit passed.
        """
        began, pauses = time.monotonic(), Backoff(0.2, 10.0)
        while not self._stopping.is_set():
            try:
                return self._register_once(methods, idempotent)
            except (TransportError, TokenUnavailable, ProtocolError, UnreachableError) as error:
                pause = min(pauses.next(), self._check_limit(began, error))
                _logger.warning(
                    "cannot register yet, next try in %.1f s: %s",
                    pause,
                    error,
                    extra={"action": "register_failed", "worker_id": self._settings.worker_id},
                )
            self._stopping.wait(pause)
        return None

    def _register_once(self, methods: Sequence[str], idempotent: Sequence[str]) -> ApplicationSettings:
        self._session.tokens.authorization()
        service_id = self._session.tokens.service_id
        body = registration_body(
            self._settings, service_id, methods, idempotent, self._ip(), self._advertised_port()
        )
        registered = register(self._session, body)
        _logger.info(
            "registered %d methods of service %s in %s mode",
            len(methods),
            service_id,
            self._settings.run_mode,
            extra={"action": "registered", "worker_id": self._settings.worker_id},
        )
        return registered

    def _ip(self) -> str | None:
        if self._settings.advertised_ip is not None or self.port is None:
            return self._settings.advertised_ip
        return self._route()

    def _advertised_port(self) -> int | None:
        return self._settings.advertised_port or self.port

    def _check_limit(self, began: float, error: Exception) -> float:
        """The seconds that are left."""
        limit = self._settings.start_limit
        if limit is None:
            return math.inf
        left = limit - (time.monotonic() - began)
        if left <= 0:
            raise UnreachableError(
                f"the middleware at {self._session.endpoint.origin} was of no use within {limit:g} s: {error}"
            ) from error
        return left

    def heartbeat_delay(self, registered: Mapping[str, str]) -> float:
        """Seconds between beats: as configured, else as the middleware hands out, else the default."""
        settings = self._settings
        if settings.source_of("heartbeat_delay") == "default" and "heartbeat_delay" in registered:
            try:
                return max(0.01, float(registered["heartbeat_delay"]))
            except ValueError:
                _logger.warning(
                    "the middleware's heartbeat_delay is no number", extra={"action": "bad_delay"}
                )
        return settings.heartbeat_delay
