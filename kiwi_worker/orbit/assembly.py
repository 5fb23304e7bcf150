"""How the parts of an ORBIT worker are put together from its settings."""

from __future__ import annotations

from collections.abc import Callable

from kiwi_worker.context import Resources
from kiwi_worker.engine.supervision import Crew
from kiwi_worker.orbit.binding import OrbitBinding, sdk_name
from kiwi_worker.orbit.http import HttpWire
from kiwi_worker.orbit.wire import Credentials, Servers, Wire
from kiwi_worker.settings import OrbitSettings, secret_reader
from kiwi_worker.transport import Endpoint

__all__ = ["assemble"]


def assemble(
    settings: OrbitSettings, crew: Crew, resources: Resources, on_success: Callable[[], None]
) -> OrbitBinding:
    """The binding of a worker."""
    credentials, servers = Credentials(secret_reader(settings)), Servers(len(settings.server))
    if settings.scheme.startswith("grpc"):
        from kiwi_worker.orbit.grpc import Channels

        make_wire: Callable[[], Wire] = Channels(settings, servers, credentials).wire
    else:
        endpoints = [
            Endpoint(
                url,
                ca_file=settings.ca_file,
                client_cert=settings.client_cert,
                client_key=settings.client_key,
                proxy=settings.proxy,
            )
            for url in settings.server
        ]

        def make_wire() -> Wire:
            return HttpWire(endpoints, servers, credentials, user_agent=sdk_name())

    return OrbitBinding(settings, make_wire, crew, resources, on_success)
