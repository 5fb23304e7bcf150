"""How the parts of an ORBIT worker are put together from its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kiwi_worker.context import Resources
from kiwi_worker.engine.supervision import Crew
from kiwi_worker.orbit.binding import OrbitBinding, sdk_name
from kiwi_worker.orbit.http import CONNECT_SECONDS, HttpWire
from kiwi_worker.orbit.servers import Credentials, Servers
from kiwi_worker.orbit.wire import Wire
from kiwi_worker.settings import OrbitSettings, secret_reader
from kiwi_worker.transport import Endpoint

__all__ = ["assemble"]

B = TypeVar("B", bound=OrbitBinding)


def assemble(
    settings: OrbitSettings,
    crew: Crew,
    resources: Resources,
    on_success: Callable[[], None],
    kind: Callable[..., B],
) -> tuple[B, Callable[[], None]]:
    """The binding of a worker, of this kind, and what closes the connections all its threads shared."""
    servers = Servers(len(settings.server), Credentials(secret_reader(settings)))
    make_wire, release = (_grpc if settings.scheme.startswith("grpc") else _http)(settings, servers)
    return kind(settings, make_wire, crew, resources, on_success), release


def _http(settings: OrbitSettings, servers: Servers) -> tuple[Callable[..., Wire], Callable[[], None]]:
    endpoints = [
        Endpoint(
            url,
            ca_file=settings.ca_file,
            client_cert=settings.client_cert,
            client_key=settings.client_key,
            proxy=settings.proxy,
            setting="server",
        )
        for url in settings.server
    ]

    def make_wire(connect_seconds: float = CONNECT_SECONDS) -> Wire:
        return HttpWire(endpoints, servers, user_agent=sdk_name(), connect_seconds=connect_seconds)

    return make_wire, lambda: None


def _grpc(settings: OrbitSettings, servers: Servers) -> tuple[Callable[..., Wire], Callable[[], None]]:
    # Imported here: grpcio is an extra of its own.
    from kiwi_worker.orbit.channels import Channels
    from kiwi_worker.orbit.grpc import GrpcWire

    channels = Channels(settings)

    def make_wire(connect_seconds: float = CONNECT_SECONDS) -> Wire:
        return GrpcWire(channels, servers)

    return make_wire, channels.close
