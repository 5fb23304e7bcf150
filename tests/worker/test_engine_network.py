"""The ways to a middleware: prefixes, private authorities, client certificates, proxies, IPv6."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from worker_tools import eventually

from kiwi_worker import Context, Worker
from kiwi_worker.errors import UnreachableError
from kiwi_worker.testing import KiwiServer, MisbehavingServer, Redirect
from kiwi_worker.testing.listener import Listener

NewWorker = Callable[..., Worker]


def whole_job(server: KiwiServer, worker: Worker) -> None:
    """Everything a worker may call: a locked request with feedback, heartbeats, the notice at the end."""

    @worker.method
    def talk(ctx: Context) -> str:
        ctx.feedback("on its way")
        return "done"

    with worker:
        request_id = server.enqueue("talk", lock_required=True)
        server.assert_answered_once(request_id, "success")
        server.wait_for_calls("heartbeat")
    assert server.locks == {request_id: worker.settings.worker_id}
    assert len(server.feedbacks) == 1
    assert server.shutdowns == [worker.settings.worker_id]
    server.assert_protocol_kept()


@pytest.mark.parametrize("run_mode", ["lazy", "eager"])
@pytest.mark.parametrize("prefix", ["/gateway", "/a/b%20c"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_a_prefix_comes_before_every_path(
    new_worker: NewWorker, run_mode: str, prefix: str, slash: str
) -> None:
    with MisbehavingServer.kiwi(prefix=prefix) as server:
        whole_job(server, new_worker(server.url + slash, run_mode=run_mode, wait=5))


class Certificates:
    """A private authority, and what it signed, as PEM files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "private authority")])
        self.authority = str(folder / "authority.pem")
        certificate = self._certificate(
            self._name, self._key, x509.BasicConstraints(ca=True, path_length=None)
        )
        Path(self.authority).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> tuple[str, str]:
        """The paths of a new certificate for loopback and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in ("127.0.0.1", "::1")]
        certificate = self._certificate(subject, key, x509.SubjectAlternativeName(addresses))
        paths = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return str(paths[0]), str(paths[1])

    def server_context(self) -> ssl.SSLContext:
        """A server's side of TLS."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue("server"))
        return context

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        own, authority = key.public_key(), self._key.public_key()
        signs = isinstance(extension, x509.BasicConstraints)
        usage = x509.KeyUsage(not signs, False, False, False, False, signs, signs, False, False)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(own)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(extension, critical=signs)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(own), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority), critical=False)
            .sign(self._key, hashes.SHA256())
        )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize("run_mode", ["lazy", "eager"])
def test_a_private_authority(new_worker: NewWorker, certificates: Certificates, run_mode: str) -> None:
    with MisbehavingServer.kiwi(ssl_context=certificates.server_context()) as server:
        assert server.url.startswith("https://")
        whole_job(server, new_worker(server, run_mode=run_mode, wait=5, ca_file=certificates.authority))


def test_an_unknown_authority_is_not_trusted(new_worker: NewWorker, certificates: Certificates) -> None:
    with MisbehavingServer.kiwi(ssl_context=certificates.server_context()) as server:
        worker = new_worker(server, start_limit=0.1)
        with pytest.raises(UnreachableError, match="certificate"):
            worker.start()
        assert not server.calls


def test_a_client_certificate(new_worker: NewWorker, certificates: Certificates) -> None:
    context = certificates.server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.authority)
    with MisbehavingServer.kiwi(ssl_context=context) as server:
        without = new_worker(server, ca_file=certificates.authority, start_limit=0.1)
        with pytest.raises(UnreachableError):
            without.start()
        certificate, key = certificates.issue("client")
        settings = {"ca_file": certificates.authority, "client_cert": certificate, "client_key": key}
        whole_job(server, new_worker(server, **settings))


class Proxy:
    """A forward proxy that notes the first line of each request; it knows CONNECT and absolute addresses."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._listener = Listener(self._serve, "127.0.0.1", 0, name="small-proxy")

    def __enter__(self) -> Proxy:
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.address[1]}"

    def _serve(self, sock: socket.socket, number: int) -> None:
        with sock:
            try:
                self._carry(sock)
            except OSError:
                pass

    def _carry(self, sock: socket.socket) -> None:
        upstream = None
        while head := _read_head(sock):
            line = head.split(b"\r\n")[0].decode()
            self.lines.append(line)
            verb, target, _ = line.split(" ")
            host, _, port = target.removeprefix("http://").partition("/")[0].rpartition(":")
            upstream = upstream or socket.create_connection((host.strip("[]"), int(port)), 20)
            with_upstream = upstream
            if verb == "CONNECT":
                sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                _relay(sock, with_upstream)
                break
            body = _read_body(sock, head)
            start = f"http://{host}:{port}".encode()
            with_upstream.sendall(head.replace(start, b"", 1) + body)
            answer = _read_head(with_upstream)
            sock.sendall(answer + _read_body(with_upstream, answer))
        if upstream is not None:
            upstream.close()


def _read_head(sock: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        if not byte:
            return b""
        head += byte
    return head


def _read_body(sock: socket.socket, head: bytes) -> bytes:
    lengths = [
        line.partition(b":")[2] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
    ]
    body = b""
    while lengths and len(body) < int(lengths[0]):
        body += sock.recv(int(lengths[0]) - len(body))
    return body


def _relay(one: socket.socket, other: socket.socket) -> None:
    import select

    peers = {one: other, other: one}
    while True:
        for source in select.select([one, other], [], [], 20)[0]:
            data = source.recv(65536)
            if not data:
                return
            peers[source].sendall(data)


def test_a_proxy_carries_every_call(server: KiwiServer, new_worker: NewWorker) -> None:
    with Proxy() as proxy:
        whole_job(server, new_worker(server, proxy=proxy.url))
        eventually(lambda: len(proxy.lines) >= len(server.calls))
        assert all(server.url in line for line in proxy.lines)


def test_a_proxy_is_a_tunnel_for_tls(new_worker: NewWorker, certificates: Certificates) -> None:
    with Proxy() as proxy, MisbehavingServer.kiwi(ssl_context=certificates.server_context()) as server:
        settings = {"proxy": proxy.url, "ca_file": certificates.authority}
        whole_job(server, new_worker(server, **settings))
        assert {line.split(" ")[0] for line in proxy.lines} == {"CONNECT"}


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize("run_mode", ["lazy", "eager"])
def test_ipv6_end_to_end(new_worker: NewWorker, run_mode: str) -> None:
    with MisbehavingServer.kiwi(host="::1") as server:
        settings: dict[str, Any] = {"run_mode": run_mode, "wait": 5}
        worker = Worker(
            middleware_url=server.url,
            service_id="test-service",
            auth_secret="test-secret",
            worker_id="worker-6",
            wakeup_probe_service_port=0,
            **settings,
        )
        worker.method("hello")(lambda: "hello")
        with worker:
            registration = server.wait_for_registration()
            if run_mode == "lazy":
                assert registration["ip"] == "::1"
                assert server.probe().startswith("ACK:")
                assert server.probe(transport="tcp").startswith("ACK:")
            server.assert_answered_once(server.enqueue("hello", lock_required=True), "success")


@pytest.mark.parametrize(
    "call", ["register", "drain", "lock", "respond", "feedback", "heartbeat", "shutdown"]
)
@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_within_the_middleware_is_followed(
    server: KiwiServer, new_worker: NewWorker, call: str, status: int
) -> None:
    class SameAgain(Redirect):
        def strike(self, exchange: Any) -> None:
            Redirect(exchange.request.target, self.status).strike(exchange)

    server.fault(call, SameAgain("", status))
    whole_job(server, new_worker(server))
