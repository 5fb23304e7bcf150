"""Registering the worker, once per process start (protocol page, "Registration")."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kiwi_worker.context import ApplicationSettings
from kiwi_worker.errors import ProtocolError, RegistrationError, TransportError
from kiwi_worker.kiwi.session import Session
from kiwi_worker.settings import KiwiSettings
from kiwi_worker.transport import is_transient

__all__ = ["ServerBusy", "register", "registration_body"]

_logger = logging.getLogger("kiwi_worker.kiwi")
_MODES = {"lazy": "Lazy", "eager": "Eager"}


class ServerBusy(TransportError):
    """The middleware answered that it cannot serve the call now."""


def registration_body(
    settings: KiwiSettings,
    service_id: str | None,
    methods: Sequence[str],
    idempotent: Sequence[str],
    ip: str | None,
    port: int | None,
) -> bytes:
    """The twelve fields; `ip` and `port` are left out when there are none.

    One tag is ours, for a middleware that reads it: `kiwi.idempotent` names the methods that may be given to
    another worker when the first one died. It is there only when a method was declared so.
    """
    fields: dict[str, Any] = {
        "worker_id": settings.worker_id,
        "service_id": service_id,
        "run_mode": _MODES[settings.run_mode],
        "methods": list(methods),
        "ip": ip,
        "port": port,
        "version": settings.version,
        "tags": {**({"kiwi.idempotent": ",".join(idempotent)} if idempotent else {}), **settings.tags},
        "supported_executors": list(settings.supported_executors),
        "platform": settings.platform,
        "interactive_desktop": settings.interactive_desktop,
        "browser_runtime": settings.browser_runtime,
    }
    unset = [name for name in ("ip", "port") if fields[name] is None]
    return msgspec.json.encode({name: value for name, value in fields.items() if name not in unset})


def register(session: Session, body: bytes) -> ApplicationSettings:
    """Register, and give the application settings the middleware answers with.

    Raises:
        RegistrationError: it was refused; trying again would not help.
        TransportError, TokenUnavailable: it may go better later.
        AuthenticationError: the credentials were refused.
    """
    answer = session.call("POST", "/worker/registration", body)
    if 200 <= answer.status < 300:
        return ApplicationSettings(_settings_in(answer.body))
    text = answer.body[:300].decode("utf-8", "replace")
    if is_transient(answer.status):
        raise ServerBusy(f"the registration was answered with {answer.status}")
    raise RegistrationError(
        f"the middleware refused the registration with {answer.status}: {text} "
        "(check service_id, worker_id, run_mode and the method names)"
    )


def _settings_in(body: bytes) -> Mapping[str, str]:
    if not body.strip():
        return {}
    try:
        values = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ProtocolError("the registration was answered with something else than JSON") from None
    if values is not None and not isinstance(values, dict):
        # It was taken, and to register again is for a new process only: the worker goes on without them.
        _logger.error(
            "the registration was answered with a %s, not with an object: there are no application settings",
            type(values).__name__,
            extra={"action": "bad_application_settings"},
        )
        return {}
    return {name: _text(value) for name, value in (values or {}).items() if value is not None}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
