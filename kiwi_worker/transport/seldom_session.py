"""The requests session of the seldom calls. Importing this module loads requests."""

from __future__ import annotations

from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from kiwi_worker.transport.urllib3_connections import PlainConnection, TlsConnection

if TYPE_CHECKING:
    from urllib3 import PoolManager

    from kiwi_worker.transport.endpoint import Endpoint

_KEPT_CONNECTIONS = 1000


def new_session(endpoint: Endpoint, user_agent: str) -> requests.Session:
    """A session for one endpoint that takes nothing from the environment and keeps no cookies."""
    session = _Session()
    session.trust_env = False
    session.headers["User-Agent"] = user_agent
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    if endpoint.via is not None:
        session.proxies = dict.fromkeys(("http", "https"), endpoint.via.address.origin)
    adapter = _Adapter(endpoint)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


class _Session(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> str | None:
        # Asked even when redirects are not to be followed, and then it raises on odd addresses.
        return None


class _Adapter(HTTPAdapter):
    """Gives urllib3 the endpoint's own TLS contexts and proxy credentials.

    The pool keeps as many connections as there could be threads: they cost nothing until they exist, and
    a smaller pool throws connections away with a warning.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        super().__init__(pool_maxsize=_KEPT_CONNECTIONS)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **options: Any) -> None:
        super().init_poolmanager(connections, maxsize, block, **options, **self._tls_options())
        _mark_openings(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        if self._endpoint.uses_tls:
            options["proxy_ssl_context"] = self._endpoint.proxy_tls_context()
        manager = super().proxy_manager_for(proxy, **options, **self._tls_options())
        _mark_openings(manager)
        return manager

    def _tls_options(self) -> dict[str, Any]:
        return {"ssl_context": self._endpoint.tls_context()} if self._endpoint.uses_tls else {}

    def proxy_headers(self, proxy: str) -> dict[str, str]:
        via = self._endpoint.via
        return {} if via is None else via.headers()

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        # The contexts hold the authorities and the certificate; here they would be set once more.
        conn.cert_reqs = "CERT_REQUIRED"


class _Pool(HTTPConnectionPool):
    ConnectionCls = PlainConnection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = TlsConnection


def _mark_openings(manager: PoolManager) -> None:
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
