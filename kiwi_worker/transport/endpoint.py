"""Where a server is and how it is reached: address, proxy, certificates."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from kiwi_worker.errors import SettingsError
from kiwi_worker.transport.tls import TlsFiles

if TYPE_CHECKING:
    import ssl

_DEFAULT_PORTS = {"http": 80, "https": 443}
_VISIBLE = re.compile(r"[^\x00-\x20\x7f]+")
_VISIBLE_ASCII = re.compile(r"[!-~]*")
_HOST = re.compile(r"[A-Za-z0-9._~-]+|[0-9A-Fa-f:.]+")


class _Masked(str):
    """A text that may hold credentials: it behaves as itself, and prints as asterisks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return "***"


def _unmasked(text: str) -> str:
    return "".join(text)


@dataclass(frozen=True)
class Address:
    """One parsed http(s) address, without its user info."""

    scheme: str
    host: str
    port: int
    prefix: str

    @property
    def authority(self) -> str:
        """Host and port as a `Host` field carries them: brackets round IPv6, no default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port: what a token may be sent to."""
        return f"{self.scheme}://{self.authority}"


def parse_address(url: str, setting: str) -> Address:
    """Read an http(s) address; user info, query and fragment have no meaning in one and are refused.

    Raises:
        SettingsError: it names `setting` and never repeats the address, which may hold a password.
    """
    parts = _split(url, setting)
    if "@" in parts.netloc:
        raise SettingsError(setting, "must not hold a user name or password")
    return _address(parts, setting)


def _split(url: str, setting: str) -> SplitResult:
    # urlsplit would drop line breaks without a word.
    if not isinstance(url, str) or not _VISIBLE.fullmatch(url):
        raise SettingsError(setting, "must be an address without spaces and control characters")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise SettingsError(setting, "is no address; it looks like http://host:port/prefix") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise SettingsError(setting, "must begin with http:// or https://")
    if not _VISIBLE_ASCII.fullmatch(parts.path):
        raise SettingsError(setting, "the path must be percent-encoded")
    if parts.query or parts.fragment or url.endswith(("?", "#")):
        raise SettingsError(setting, "must not hold a query or a fragment")
    return parts


def _address(parts: SplitResult, setting: str) -> Address:
    host = _ascii_host(parts.hostname or "", setting)
    port = parts.port if parts.port is not None else _DEFAULT_PORTS[parts.scheme]
    if port == 0:
        raise SettingsError(setting, "port 0 cannot be connected to")
    return Address(parts.scheme, host, port, parts.path.rstrip("/"))


def _ascii_host(host: str, setting: str) -> str:
    try:
        name = host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        raise SettingsError(setting, "the host name cannot be written in ASCII (IDNA)") from None
    if not _HOST.fullmatch(name):
        raise SettingsError(setting, "has no host, or one with characters that no host name holds")
    return name


@dataclass(frozen=True)
class Proxy:
    """A proxy and the `Proxy-Authorization` it wants; its credentials are never printed."""

    address: Address
    authorization: str | None = field(repr=False)

    def headers(self) -> dict[str, str]:
        """What the proxy wants to see, in a CONNECT or in a request that it forwards."""
        return {} if self.authorization is None else {"Proxy-Authorization": _unmasked(self.authorization)}


def _parse_proxy(url: str) -> Proxy:
    parts = _split(url, "proxy")
    user_info, at, _ = parts.netloc.rpartition("@")
    address = _address(parts, "proxy")
    return Proxy(address, _Masked(_basic(user_info)) if at else None)


def _basic(user_info: str) -> str:
    user, _, password = user_info.partition(":")
    pair = unquote_to_bytes(user) + b":" + unquote_to_bytes(password)
    return "Basic " + base64.b64encode(pair).decode("ascii")


@dataclass(frozen=True)
class Endpoint:
    """A base address plus how to reach it. Building one connects to nothing and reads no file.

    Args:
        url: `http(s)://host[:port][/prefix]`.
        ca_file: PEM file of the authorities to trust instead of the system's.
        client_cert: PEM file of the certificate (chain) shown to the server.
        client_key: PEM file of its key, when it is not in `client_cert`.
        proxy: `http(s)://[user:password@]host[:port]`; used for every call. The proxy named here is the
            only one: the environment is not asked.
        setting: the setting that `url` came from, for error texts.

    Raises:
        SettingsError: an address that cannot be used; it names the setting.
    """

    url: str
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    proxy: str | None = None
    setting: str = field(default="middleware_url", repr=False)
    address: Address = field(init=False, repr=False, compare=False)
    via: Proxy | None = field(init=False, repr=False, compare=False, default=None)
    _tls: TlsFiles = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._set("address", parse_address(self.url, self.setting))
        if self.proxy is not None:
            self._set("via", _parse_proxy(self.proxy))
            self._set("proxy", _Masked(self.proxy))
        self._set("_tls", TlsFiles(self.ca_file, self.client_cert, self.client_key))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def scheme(self) -> str:
        """`http` or `https`."""
        return self.address.scheme

    @property
    def host(self) -> str:
        """The host name, or the IP address without brackets."""
        return self.address.host

    @property
    def port(self) -> int:
        """The port, the scheme's own when the address names none."""
        return self.address.port

    @property
    def prefix(self) -> str:
        """The path before every call's path: `/x`, or empty."""
        return self.address.prefix

    @property
    def origin(self) -> str:
        """Scheme, host and port: what a token may be sent to."""
        return self.address.origin

    def check(self) -> None:
        """Read the certificate files now, where they will be needed at all.

        Raises:
            SettingsError: a file cannot be read or does not fit; it names the setting.
        """
        if self.uses_tls:
            self.tls_context()

    @property
    def uses_tls(self) -> bool:
        """Whether TLS is spoken to the server or to the proxy."""
        return self.scheme == "https" or (self.via is not None and self.via.address.scheme == "https")

    def tls_context(self) -> ssl.SSLContext:
        """The TLS context for the server, shared by all connections to it.

        Raises:
            SettingsError: a file cannot be read or does not fit; it names the setting.
        """
        return self._tls.server_context()

    def proxy_tls_context(self) -> ssl.SSLContext:
        """The TLS context for an https proxy: the same authorities, no client certificate.

        Raises:
            SettingsError: `ca_file` cannot be used.
        """
        return self._tls.proxy_context()
