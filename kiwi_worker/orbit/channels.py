"""The gRPC channels of one worker: one to each server, for all its threads.

A channel is made when it is first used, never before a fork, and made anew after a call that hung. There are
no idle pings: the polls are enough, and servers end connections that ping more often than they allow.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from kiwi_worker.errors import SettingsError
from kiwi_worker.orbit.proto.loader import OrbitProto, Rpc, load_proto
from kiwi_worker.settings import OrbitSettings

__all__ = ["Channels"]

_logger = logging.getLogger("kiwi_worker.orbit")

LARGEST_MESSAGE = 64 * 1024 * 1024
"""The largest message in either direction; what the runtime itself takes is its own business."""

_OPTIONS = (
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
    # Or a new channel would be given the connection of the one that hung.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # It bounds an attempt to connect, too.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 5000),
)


class Channels:
    """Channels, and what the calls over them need.

    Args:
        settings: servers, TLS files and the `worker.proto`.

    Raises:
        SettingsError: the extra is missing, or `proto` or a TLS file cannot be used.
    """

    def __init__(self, settings: OrbitSettings) -> None:
        try:
            import grpc
        except ImportError:
            raise SettingsError(
                "server", "grpc:// needs the extra `orbit-grpc`: pip install 'kiwi-worker[orbit-grpc]'"
            ) from None
        self.grpc = grpc
        self.proto: OrbitProto = load_proto(settings.proto or "")
        self._targets = [urlsplit(url).netloc for url in settings.server]
        self._tls = self._tls_credentials(settings)
        # As over HTTP, only a proxy that was set counts, and none from the environment.
        proxy = () if settings.proxy is None else (("grpc.http_proxy", str(settings.proxy)),)
        self._options = (*_OPTIONS, ("grpc.enable_http_proxy", len(proxy)), *proxy)
        self._lock = threading.Lock()
        self._channels: dict[int, Any] = {}
        self._calls: dict[tuple[Any, str], Callable[..., Any]] = {}
        self._warned = False

    def _tls_credentials(self, settings: OrbitSettings) -> Any:
        if settings.scheme != "grpcs":
            return None
        return self.grpc.ssl_channel_credentials(
            root_certificates=_content("ca_file", settings.ca_file),
            private_key=_content("client_key", settings.client_key or settings.client_cert),
            certificate_chain=_content("client_cert", settings.client_cert),
        )

    def channel(self, index: int) -> Any:
        """The channel to one server."""
        with self._lock:
            if index not in self._channels:
                self._channels[index] = self._open(self._targets[index])
            return self._channels[index]

    def _open(self, target: str) -> Any:
        if self._tls is None:
            return self.grpc.insecure_channel(target, self._options)
        return self.grpc.secure_channel(target, self._tls, self._options)

    def begin(self, channel: Any, rpc: Rpc, message: Any, limit_seconds: float, header: str | None) -> Any:
        """Begin a call; gives its future.

        Raises:
            ValueError: the channel was closed meanwhile.
        """
        call = self._calls.get((channel, rpc.path))
        if call is None:
            call = self._calls[channel, rpc.path] = channel.unary_unary(
                rpc.path,
                request_serializer=rpc.request.SerializeToString,
                response_deserializer=rpc.response.FromString,
            ).future
        return call(message, timeout=limit_seconds, metadata=[("authorization", header)] if header else None)

    def renew(self, index: int, channel: Any) -> None:
        """A call on this channel hung: the next ones get a new one, and those that wait on it end."""
        with self._lock:
            if self._channels.get(index) != channel:
                return
            del self._channels[index]
            self._calls = {key: call for key, call in self._calls.items() if key[0] is not channel}
        channel.close()

    def close(self) -> None:
        """Close all channels; the next call opens one again."""
        with self._lock:
            channels = list(self._channels.values())
            self._channels, self._calls = {}, {}
        for channel in channels:
            channel.close()

    def look_for_unknown_fields(self, answer: Any) -> None:
        """Warn, once, when the runtime sends fields that the `worker.proto` at hand does not have."""
        if self._warned:
            return
        known = type(answer)()
        known.CopyFrom(answer)
        known.DiscardUnknownFields()
        if known.ByteSize() == answer.ByteSize():
            return
        self._warned = True
        _logger.warning(
            "the runtime sends fields that the setting proto does not know; they are ignored",
            extra={"action": "unknown_fields"},
        )


def _content(setting: str, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise SettingsError(setting, f"{path} cannot be read: {error.strerror}") from None
