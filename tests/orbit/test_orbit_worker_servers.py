"""Several servers, over both bindings: dead, hung, not the leader; and the token they are asked with."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import requests

from kiwi_worker.errors import NotSent, UnreachableError
from kiwi_worker.orbit import Client, OrbitWorker, http
from kiwi_worker.orbit.servers import Credentials, Servers
from kiwi_worker.orbit.wire import Refused
from kiwi_worker.testing import FaultProxy, HalfOpen, MisbehavingServer
from kiwi_worker.testing.orbit_runtime import RunningRuntime, running_runtime

from .links import GREET
from .workers import LIMIT_SECONDS, echo, worker_of

WORKFLOWS = GREET.replace('using = "ruby"', 'using = "python"')


def greeter(servers: list[str], **settings: Any) -> OrbitWorker:
    over_grpc = {"proto": "assumed"} if servers[0].startswith("grpc") else {}
    given = {"worker_id": "w", "poll_wait": 1, "grace_period": 2, "concurrency": 2}
    worker = OrbitWorker(**{**given, "server": servers, **over_grpc, **settings})

    @worker.task("greeting.compose", version="1.0.0")
    def compose(input: dict[str, Any]) -> dict[str, Any]:
        return {"message": f"Hello, {input['name']}"}

    return worker


def greeted_by(runtime: RunningRuntime) -> Any:
    with Client(server=runtime.url) as client:
        return client.wait(client.start("Greet", {"name": "Ada"}), timeout=LIMIT_SECONDS).output


def address(runtime: RunningRuntime, scheme: str) -> str:
    found = runtime.url if scheme == "http" else runtime.grpc_url
    assert found is not None
    return found


@pytest.fixture(params=["http", "grpc"])
def two(request: pytest.FixtureRequest) -> Any:
    """Two runtimes, their addresses, and the scheme."""
    scheme = request.param
    if scheme == "grpc":
        pytest.importorskip("grpc")
    with ExitStack() as stack:
        pair = [
            stack.enter_context(running_runtime(WORKFLOWS, grpc=scheme == "grpc", session_timeout="3s"))
            for _ in range(2)
        ]
        yield pair, [address(runtime, scheme) for runtime in pair]


def test_a_dead_server_is_left_for_the_next_and_that_one_for_the_first(two: Any) -> None:
    (first, second), servers = two
    with greeter(servers):
        assert greeted_by(first) == {"message": "Hello, Ada"}
        first.kill()
        assert greeted_by(second) == {"message": "Hello, Ada"}
        first.start()
        second.kill()
        assert greeted_by(first) == {"message": "Hello, Ada"}


def test_a_server_that_is_not_the_leader_any_more_is_left(two: Any) -> None:
    (first, second), servers = two
    with greeter(servers):
        assert greeted_by(first) == {"message": "Hello, Ada"}
        requests.post(f"{first.url}/v1/dev/leader", json={"leader": False}, timeout=5).raise_for_status()
        assert greeted_by(second) == {"message": "Hello, Ada"}


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_server_that_hangs_is_left(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if scheme == "grpc":
        pytest.importorskip("grpc")
    monkeypatch.setattr(http, "READ_MARGIN_SECONDS", 1.0)
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(running_runtime(WORKFLOWS, grpc=scheme == "grpc", session_timeout="3s"))
            for _ in range(2)
        )
        proxy = stack.enter_context(FaultProxy(address(first, scheme).replace("grpc:", "http:")))
        servers = [proxy.url.replace("http:", f"{scheme}:"), address(second, scheme)]
        stack.enter_context(greeter(servers, report_limit=1))
        assert greeted_by(first) == {"message": "Hello, Ada"}
        proxy.half_open()
        assert greeted_by(second) == {"message": "Hello, Ada"}


def test_the_first_call_after_an_idle_link_was_dropped_goes_through() -> None:
    pytest.importorskip("grpc")
    with ExitStack() as stack:
        runtime = stack.enter_context(running_runtime(WORKFLOWS, grpc=True, session_timeout="3s"))
        proxy = stack.enter_context(FaultProxy(address(runtime, "grpc").replace("grpc:", "http:")))
        stack.enter_context(greeter([proxy.url.replace("http:", "grpc:")]))
        assert greeted_by(runtime) == {"message": "Hello, Ada"}
        proxy.drop_connections()
        assert greeted_by(runtime) == {"message": "Hello, Ada"}


def test_a_hung_poll_is_not_asked_of_the_next_server_as_if_nothing_had_happened() -> None:
    with MisbehavingServer.orbit(session_timeout_seconds=3) as first:
        first.fault("poll", HalfOpen(), times="always")
        worker = worker_of(first, poll_wait=0.2, concurrency=1)
        worker.task("job", version="1.0.0")(echo)
        with worker:
            # Heartbeats of the one session go on while the poll hangs.
            first.wait_for_calls("heartbeat", 3)
        assert len(first.registrations) == 1


def test_credentials_are_read_again_only_when_they_were_refused() -> None:
    tokens = iter(["first", "second"])
    credentials = Credentials(lambda: next(tokens))
    servers = Servers(1, credentials)
    header = credentials.header()
    assert header == "Bearer first"
    assert credentials.header() is header

    def refuse(index: int) -> None:
        raise Refused("poll", 401, "UNAUTHENTICATED", "", ours=True)

    with pytest.raises(Refused):
        servers.call(refuse, 1)
    assert credentials.header() == "Bearer second"


def test_when_all_servers_refuse_the_last_failure_is_told_and_the_first_is_next() -> None:
    asked = []
    servers = Servers(3, Credentials(None))

    def refuse(index: int) -> None:
        asked.append(index)
        raise NotSent(f"server {index}")

    with pytest.raises(NotSent, match="server 2"):
        servers.call(refuse, 10)
    assert asked == [0, 1, 2]
    assert servers.current == 0


def test_a_server_that_cannot_be_reached_is_named_by_its_own_setting() -> None:
    worker = greeter(["http://127.0.0.1:9"], start_limit=0.1)
    with pytest.raises(UnreachableError, match="check server and that the server is up"):
        worker.start()
