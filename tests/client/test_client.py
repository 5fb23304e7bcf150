"""The typed client: both faces of one core."""

from __future__ import annotations

import asyncio
import inspect
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import pytest

from kiwi_worker.client import AsyncClient, CallError, Client, ClientSettings, Feedback, Outcome
from kiwi_worker.errors import Ambiguous, AuthenticationError, NotSent, SettingsError
from kiwi_worker.testing.middleware import MiddlewareProcess


class Sync:
    """The blocking face, called as the other one is."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def do(self, name: str, *args: Any, **options: Any) -> Any:
        return getattr(self.client, name)(*args, **options)

    async def items(self, name: str, *args: Any, **options: Any) -> list[Any]:
        return list(getattr(self.client, name)(*args, **options))

    async def close(self) -> None:
        self.client.close()


class Async:
    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def do(self, name: str, *args: Any, **options: Any) -> Any:
        return await getattr(self.client, name)(*args, **options)

    async def items(self, name: str, *args: Any, **options: Any) -> list[Any]:
        return [item async for item in getattr(self.client, name)(*args, **options)]

    async def close(self) -> None:
        await self.client.close()


Face = Sync | Async
Use = Callable[[Face], Awaitable[None]]


@pytest.fixture(params=["blocking", "asyncio"])
def with_face(request: pytest.FixtureRequest, middleware: MiddlewareProcess) -> Callable[..., None]:
    """Runs a coroutine function with one of the two faces."""

    def run(use: Use, **settings: Any) -> None:
        async def main() -> None:
            given = {
                "middleware_url": middleware.url,
                "service_id": "demo",
                "client_secret": middleware.client_secret,
                **settings,
            }
            face: Face = Sync(Client(**given)) if request.param == "blocking" else Async(AsyncClient(**given))
            try:
                await use(face)
            finally:
                await face.close()

        asyncio.run(main())

    return run


def test_call_returns_the_result(with_face: Callable[..., None]) -> None:
    async def use(face: Face) -> None:
        assert await face.do("call", "echo", {"a": [1, None, "ü"]}) == {"a": [1, None, "ü"]}
        assert await face.do("call", "echo", [1, 2]) == [1, 2]
        assert await face.do("call", "echo") is None
        moment = datetime(2024, 1, 2, tzinfo=timezone.utc)
        assert await face.do("call", "echo", {"at": moment}) == {"at": "2024-01-02T00:00:00Z"}

    with_face(use)


def test_failure_is_an_error_with_its_outcome(with_face: Callable[..., None]) -> None:
    async def use(face: Face) -> None:
        with pytest.raises(CallError, match="ValueError: no") as caught:
            await face.do("call", "fail")
        assert caught.value.outcome.status == "failed"
        outcome = await face.do("outcome", "fail")
        assert (outcome.status, outcome.error_text, outcome.result) == ("failed", "ValueError: no", None)

    with_face(use)


def test_start_fetch_wait_cancel(with_face: Callable[..., None]) -> None:
    async def use(face: Face) -> None:
        request_id = await face.do("start", "echo", [7])
        outcome = await face.do("wait", request_id)
        assert outcome == Outcome(request_id, "success", [7])
        assert await face.do("fetch", request_id) == outcome
        assert await face.do("cancel", request_id) == outcome
        hanging = await face.do("start", "hang", time_to_live=60)
        assert (await face.do("wait", hanging, timeout=0.05)).status == "pending"
        assert (await face.do("cancel", hanging)).reason == "cancelled"
        with pytest.raises(CallError) as caught:
            await face.do("fetch", "no-such-call")
        assert caught.value.http_status == 404

    with_face(use)


def test_options(with_face: Callable[..., None]) -> None:
    async def use(face: Face) -> None:
        first = await face.do("start", "echo", [1], idempotency_key="one key / & ü")
        assert await face.do("start", "echo", [1], idempotency_key="one key / & ü") == first
        expired = await face.do("outcome", "hang", time_to_live=0.1)
        assert expired.reason == "expired"
        with pytest.raises(TypeError):
            await face.do("call", "echo", time_to_life=1)
        with pytest.raises(TypeError, match="mapping, a sequence or None"):
            await face.do("call", "echo", "text")

    with_face(use)


def test_feedback_and_outcome(with_face: Callable[..., None]) -> None:
    async def use(face: Face) -> None:
        items = await face.items("call_and_follow", "count")
        assert [i.content for i in items if isinstance(i, Feedback)] == ["10%", "50%", "100%", "nearly"]
        assert items[-1].result == "counted"
        again = await face.items("follow", items[-1].request_id)
        assert again == items
        [pending] = await face.items("call_and_follow", "hang", timeout=0.1, time_to_live=30)
        assert pending.status == "pending"
        await face.do("cancel", pending.request_id)

    with_face(use)


def test_workers_and_methods(with_face: Callable[..., None]) -> None:
    async def use(face: Face) -> None:
        assert [worker.worker_id for worker in await face.do("workers")] == ["echo"]
        assert [m.method for m in await face.do("methods")] == ["count", "echo", "fail", "hang"]

    with_face(use)


def test_wrong_secret(with_face: Callable[..., None]) -> None:
    async def use(face: Face) -> None:
        with pytest.raises(AuthenticationError, match="add-secret") as caught:
            await face.do("call", "echo")
        assert "a-wrong-secret" not in str(caught.value)

    with_face(use, client_secret="a-wrong-secret")


def test_nobody_there(with_face: Callable[..., None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def use(face: Face) -> None:
        with pytest.raises(NotSent, match="refused"):
            await face.do("call", "echo")

    with_face(use, middleware_url=f"http://127.0.0.1:{port}", retry_limit=0)


def test_token_is_fetched_once_by_many_at_once(middleware: MiddlewareProcess) -> None:
    with client_of(middleware) as client, ThreadPoolExecutor(16) as pool:
        counted: list[str] = []
        original = client._core._new_token

        def counting(refused: str | None) -> Any:
            token = yield from original(refused)
            counted.append(token)
            return token

        client._core._new_token = counting  # type: ignore[method-assign]
        results = list(pool.map(lambda n: client.call("echo", [n]), range(64)))
    assert results == [[n] for n in range(64)]
    assert len(set(counted)) == 1


def test_refused_token_is_fetched_anew(middleware: MiddlewareProcess) -> None:
    with client_of(middleware) as client:
        client.call("echo")
        client._core._authorization = "Bearer nonsense"
        assert client.call("echo", [1]) == [1]


def test_many_at_once_on_one_loop(middleware: MiddlewareProcess) -> None:
    async def main() -> list[Any]:
        async with AsyncClient(
            middleware.url, service_id="demo", client_secret=middleware.client_secret
        ) as client:
            return await asyncio.gather(*(client.call("echo", [n]) for n in range(100)))

    assert asyncio.run(main()) == [[n] for n in range(100)]


def test_both_faces_have_the_same_methods() -> None:
    def shape(cls: type[Any]) -> dict[str, list[str]]:
        public = {name: f for name, f in vars(cls).items() if not name.startswith("_") and callable(f)}
        return {name: list(inspect.signature(f).parameters) for name, f in public.items()}

    assert shape(Client) == shape(AsyncClient)


@contextmanager
def client_of(middleware: MiddlewareProcess, **settings: Any) -> Iterator[Client]:
    given = {"service_id": "demo", "client_secret": middleware.client_secret, **settings}
    with Client(middleware.url, **given) as client:
        yield client


@contextmanager
def server_that(act: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does this with each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, args=(listener, act), name="odd-server", daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def accept(listener: socket.socket, act: Callable[[socket.socket], None]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(10)
            try:
                act(connection)
            except OSError:
                pass


TOKEN = b'{"access_token": "t", "expires_in": 60}'


def answering(*answers: bytes) -> Callable[[socket.socket], None]:
    """A token first, then these answers, one a connection."""
    left = [
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(TOKEN), TOKEN),
        *answers,
    ]

    def act(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(left.pop(0) if len(left) > 1 else left[0])

    return act


ODD = [
    b"",
    b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{",
    b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    b"nonsense\r\n\r\n",
]


@pytest.mark.parametrize("odd", ODD)
def test_odd_answer_to_a_call_is_ambiguous(with_face: Callable[..., None], odd: bytes) -> None:
    """The call may have been taken, so it is not repeated."""
    with server_that(answering(odd)) as url:

        async def use(face: Face) -> None:
            with pytest.raises(Ambiguous):
                await face.do("start", "m")
            with pytest.raises(Ambiguous):
                await face.items("call_and_follow", "m")

        with_face(use, middleware_url=url, retry_limit=0)


OTHER = [
    (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>", CallError),
    (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]", CallError),
    (b'HTTP/1.1 400 Bad\r\nContent-Length: 13\r\nConnection: close\r\n\r\n{"error":"x"}', CallError),
]


@pytest.mark.parametrize(("answer", "error"), OTHER)
def test_answer_of_a_proxy(with_face: Callable[..., None], answer: bytes, error: type[Exception]) -> None:
    with server_that(answering(answer)) as url:

        async def use(face: Face) -> None:
            with pytest.raises(error):
                await face.do("start", "m")

        with_face(use, middleware_url=url, retry_limit=0)


def test_chunked_answer_and_early_hints(with_face: Callable[..., None]) -> None:
    chunked = (
        b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n"
        b'Connection: close\r\n\r\n10;x=y\r\n{"request_id":"r\r\n'
        b'15\r\n1","status":"pending"\r\n1\r\n}\r\n0\r\n\r\n'
    )
    with server_that(answering(chunked)) as url:

        async def use(face: Face) -> None:
            assert await face.do("start", "m") == "r1"

        with_face(use, middleware_url=url, retry_limit=0)


def test_stream_that_breaks_off_is_taken_up(middleware: MiddlewareProcess) -> None:
    """Through a proxy that cuts the first stream after some bytes: nothing is lost, nothing comes twice."""
    from urllib.parse import urlsplit

    target = (urlsplit(middleware.url).hostname, urlsplit(middleware.url).port)
    cut = [True]

    def relay(connection: socket.socket) -> None:
        request = connection.recv(65536)
        with socket.create_connection(target, timeout=10) as server:  # type: ignore[arg-type]
            server.sendall(request)
            server.settimeout(0.5)
            while part := server.recv(65536):
                connection.sendall(part)
                if cut[0] and b"event: feedback" in part:
                    cut[0] = False
                    return

    with server_that(relay) as url, client_of(middleware) as direct:
        client = Client(url, service_id="demo", client_secret=middleware.client_secret)
        items = list(client.call_and_follow("count"))
        client.close()
        assert direct.fetch(items[-1].request_id).result == "counted"
    assert [i.content for i in items if isinstance(i, Feedback)] == ["10%", "50%", "100%", "nearly"]
    assert items[-1].result == "counted"
    assert not cut[0]


def test_missing_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KIWI_SERVICE_ID", "KIWI_CLIENT_SECRET", "KIWI_CLIENT_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SettingsError, match="service_id"):
        Client(client_secret="x")
    with pytest.raises(SettingsError, match="client_secret"):
        Client(service_id="demo")
    with pytest.raises(SettingsError, match="service_idd"):
        Client(service_idd="demo")
    with pytest.raises(SettingsError):
        Client("ftp://x", service_id="demo", client_secret="x")


def test_secret_is_masked() -> None:
    settings = ClientSettings.load({"service_id": "demo", "client_secret": "very-secret"})
    assert "very-secret" not in repr(settings)
    client = Client.of(settings)
    assert "very-secret" not in repr(client)
    client.close()


def test_importing_the_client_loads_no_framework() -> None:
    unwanted = ("asyncio", "starlette", "uvicorn", "requests")
    code = f"import sys, kiwi_worker.client; print([m for m in {unwanted} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
