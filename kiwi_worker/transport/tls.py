"""TLS contexts made from the certificate settings, and made again when the files change."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from kiwi_worker.errors import SettingsError

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger("kiwi_worker.transport")

_Signature = tuple[tuple[int, int, int], ...]


class TlsFiles:
    """The three certificate files of one endpoint and the contexts made from them.

    A context takes milliseconds and a megabyte to make, so all connections share it. Certificates are
    renewed under a running worker: a changed file is read at the next connection, and while it cannot
    be read (half written, say) the last good context stays in use.
    """

    def __init__(self, ca_file: str | None, client_cert: str | None, client_key: str | None) -> None:
        self._ca_file = ca_file
        self._client_cert = client_cert
        self._client_key = client_key
        self._server: ssl.SSLContext | None = None
        self._proxy: ssl.SSLContext | None = None
        self._signature: _Signature = ()

    def server_context(self) -> ssl.SSLContext:
        """The context for the server, client certificate included."""
        self._refresh()
        assert self._server is not None
        return self._server

    def proxy_context(self) -> ssl.SSLContext:
        """The context for an https proxy, which is never shown the client certificate."""
        self._refresh()
        if self._proxy is None:
            self._proxy = _trusting(self._ca_file)
        return self._proxy

    def _refresh(self) -> None:
        signature = self._current_signature()
        if self._server is not None and signature == self._signature:
            return
        try:
            self._load()
        except SettingsError as error:
            if self._server is None:
                raise
            _log.warning(
                "the changed certificate files cannot be used, the earlier ones stay in use: %s",
                error,
                extra={"action": "tls_reload_failed"},
            )
        self._signature = signature

    def _load(self) -> None:
        server = _trusting(self._ca_file)
        _show_certificate(server, self._client_cert, self._client_key)
        self._server, self._proxy = server, None

    def _current_signature(self) -> _Signature:
        files = (self._ca_file, self._client_cert, self._client_key)
        return tuple(_file_signature(path) for path in files if path is not None)


def _file_signature(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def _trusting(ca_file: str | None) -> ssl.SSLContext:
    from urllib3.util.ssl_ import create_urllib3_context

    context = create_urllib3_context()
    if ca_file is not None:
        _trust_file(context, ca_file)
    else:
        _trust_system(context)
    _fix_alpn(context)
    return context


def _fix_alpn(context: ssl.SSLContext) -> None:
    """Offer HTTP/1.1 now, once.

    urllib3 sets the list again for every connection, which frees the old one: not while another thread
    may be copying it out of this shared context.
    """
    context.set_alpn_protocols(["http/1.1"])
    context.__dict__["set_alpn_protocols"] = lambda protocols: None


def _trust_file(context: ssl.SSLContext, ca_file: str) -> None:
    import ssl

    _require_readable("ca_file", ca_file)
    try:
        context.load_verify_locations(cafile=ca_file)
    except (ssl.SSLError, OSError):
        raise SettingsError("ca_file", "holds no certificates in PEM form") from None


def _trust_system(context: ssl.SSLContext) -> None:
    """The system's store (SSL_CERT_FILE counts); the certifi package's where the system has none."""
    import ssl

    context.load_default_certs()
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None and paths.capath is None and not context.cert_store_stats()["x509_ca"]:
        import certifi

        context.load_verify_locations(cafile=certifi.where())


def _show_certificate(context: ssl.SSLContext, client_cert: str | None, client_key: str | None) -> None:
    import ssl

    if client_cert is None:
        if client_key is not None:
            raise SettingsError("client_key", "is given without client_cert")
        return
    _require_readable("client_cert", client_cert)
    if client_key is not None:
        _require_readable("client_key", client_key)
    asked: list[str] = []

    def no_password() -> str:
        # Without this function OpenSSL asks the terminal and waits for ever.
        asked.append("password")
        return ""

    try:
        context.load_cert_chain(client_cert, client_key, password=no_password)
    except (ssl.SSLError, OSError) as error:
        raise _certificate_problem(error, client_key, bool(asked)) from None


def _certificate_problem(error: OSError, client_key: str | None, encrypted: bool) -> SettingsError:
    key_setting = "client_cert" if client_key is None else "client_key"
    if encrypted:
        return SettingsError(key_setting, "the key is encrypted; give it without a password")
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return SettingsError(key_setting, "the key does not belong to the certificate in client_cert")
    return SettingsError("client_cert", "certificate and key are not both in PEM form")


def _require_readable(setting: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise SettingsError(setting, f"the file cannot be read: {error.strerror}") from None
