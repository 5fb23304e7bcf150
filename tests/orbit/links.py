"""The ways a worker reaches the dev runtime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kiwi_worker.orbit import Client, OrbitWorker
from kiwi_worker.testing.orbit_runtime import running_runtime

from .certificates import Authority

LINKS = ["http", "https", "https-mutual", "grpc", "grpcs", "grpcs-mutual"]
GREET = (Path(__file__).parent / "greet.toml").read_text()


class Link:
    """A runtime with the workflow `Greet`, and workers and clients for it."""

    def __init__(self, worker: dict[str, Any], client: dict[str, Any]) -> None:
        self._worker = worker
        self._client = client

    def worker(self, **settings: Any) -> OrbitWorker:
        given = {
            "worker_id": "ruby-1",
            "runtime": "ruby",
            "poll_wait": 5,
            "grace_period": 5,
            "token": "worker-secret",
        }
        return OrbitWorker(**{**given, **self._worker, **settings})

    def client(self) -> Client:
        return Client(token="admin-secret", **self._client)


@contextmanager
def linked(kind: str, folder: Path, authority: Authority) -> Iterator[Link]:
    """A running runtime; heartbeats come twice a second."""
    options: dict[str, Any] = {
        "token": "admin-secret",
        "worker_token": "worker-secret",
        "session_timeout": "3s",
    }
    worker: dict[str, Any] = {}
    client: dict[str, Any] = {}
    if kind.startswith(("https", "grpcs")):
        server = authority.sign("localhost", ["localhost"], addresses=["127.0.0.1"])
        options |= {"tls_cert": server.certificate, "tls_key": server.key}
        worker["ca_file"] = client["ca_file"] = str(authority.file)
    if kind.endswith("mutual"):
        own = authority.sign("ruby-1", ["ruby-1"])
        options |= {
            "tls_client_ca": authority.file,
            "workers": '[[workers]]\nworker_id = "ruby-1"\nclient_cert = "ruby-1"\n',
        }
        worker |= {"client_cert": str(own.certificate), "client_key": str(own.key), "token": None}
        client |= {"client_cert": str(own.certificate), "client_key": str(own.key)}
    with running_runtime(GREET, grpc=kind.startswith("grpc"), **options) as runtime:
        if kind.startswith("grpc"):
            worker |= {"server": runtime.grpc_url, "proto": "assumed"}
        else:
            worker |= {"server": runtime.url}
        client["server"] = runtime.url
        yield Link(worker, client)
