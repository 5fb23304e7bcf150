"""urllib3's connection classes, with the two things added that both ways of calling need.

Importing this module loads urllib3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import NewConnectionError

from kiwi_worker.transport.failures import Unconnected

if TYPE_CHECKING:
    import socket

_LOOPBACKS = ("127.0.0.1", "::1")


class _Opening(HTTPConnection):
    """Finds `localhost` on both families, and tells a failed opening from what fails later."""

    def connect(self) -> None:
        # urllib3 and requests report what failed before anything was sent and what failed after it alike.
        try:
            super().connect()
        except Exception as error:
            raise Unconnected from error

    def _new_conn(self) -> socket.socket:
        try:
            return super()._new_conn()
        except NewConnectionError:
            if self.host != "localhost":
                raise
            return self._new_loopback_conn()

    def _new_loopback_conn(self) -> socket.socket:
        """Try the loopback addresses: many a hosts file knows one, and the server listens on the other."""
        error: NewConnectionError | None = None
        try:
            for self.host in _LOOPBACKS:
                try:
                    return super()._new_conn()
                except NewConnectionError as refusal:
                    error = refusal
        finally:
            # The certificate is still checked for the name.
            self.host = "localhost"
        assert error is not None
        raise error


class PlainConnection(_Opening):
    """A connection without TLS. `connect` raises `Unconnected`."""


class TlsConnection(_Opening, HTTPSConnection):
    """A connection with TLS. `connect` raises `Unconnected`."""
