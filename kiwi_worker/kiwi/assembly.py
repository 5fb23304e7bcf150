"""How the parts of a Kiwi worker are put together from its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kiwi_worker._version import __version__
from kiwi_worker.context import Resources
from kiwi_worker.engine.supervision import Crew
from kiwi_worker.errors import SettingsError
from kiwi_worker.kiwi.binding import KiwiBinding
from kiwi_worker.kiwi.claims import Claims, TokenVerifier
from kiwi_worker.kiwi.session import Session
from kiwi_worker.kiwi.tokens import TokenManager
from kiwi_worker.settings import KiwiSettings, secret_reader
from kiwi_worker.transport import Endpoint, SeldomClient

__all__ = ["USER_AGENT", "assemble", "endpoint_of"]

B = TypeVar("B", bound=KiwiBinding)

USER_AGENT = f"kiwi-worker/{__version__}"


def endpoint_of(settings: KiwiSettings) -> Endpoint:
    """The middleware, and how to reach it."""
    return Endpoint(
        settings.middleware_url,
        ca_file=settings.ca_file,
        client_cert=settings.client_cert,
        client_key=settings.client_key,
        proxy=settings.proxy,
    )


def assemble(
    settings: KiwiSettings,
    crew: Crew,
    resources: Resources,
    on_fatal: Callable[[BaseException], None],
    on_success: Callable[[], None],
    kind: Callable[..., B],
) -> tuple[B, Callable[[], None]]:
    """The binding of a worker, of this kind, and what closes the parts it was made of.

    Raises:
        SettingsError: there is no secret.
    """
    secret = secret_reader(settings)
    if secret is None:
        raise SettingsError("auth_secret", "is missing; set KIWI_AUTH_SECRET or auth_secret_file")
    endpoint = endpoint_of(settings)
    seldom = SeldomClient(endpoint, user_agent=USER_AGENT)
    tokens = TokenManager(
        seldom,
        service_id=settings.service_id,
        worker_id=settings.worker_id,
        secret=secret,
        margin=settings.refresh_margin,
        verify=_verifier(settings),
    )
    session = Session(endpoint, tokens, seldom, user_agent=USER_AGENT, max_body=settings.max_drain_bytes)
    session.on_success = on_success

    def close() -> None:
        tokens.close()
        seldom.close()

    return kind(settings, session, crew, resources, on_fatal), close


def _verifier(settings: KiwiSettings) -> Callable[[str], Claims] | None:
    if settings.jwt_key is None and settings.jwks_url is None:
        return None
    if settings.jwks_url is None:
        return TokenVerifier(key=settings.jwt_key.reveal() if settings.jwt_key else None)
    jwks = Endpoint(settings.jwks_url, ca_file=settings.ca_file, proxy=settings.proxy, setting="jwks_url")
    return TokenVerifier(jwks=jwks, user_agent=USER_AGENT)
