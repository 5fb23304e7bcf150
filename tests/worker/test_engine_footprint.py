"""What an idle worker and a very large drain cost, in processes of their own."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable

import pytest
from worker_tools import eventually, running, worker_environment

from kiwi_worker import Worker
from kiwi_worker.testing import KiwiServer
from kiwi_worker.testing.listener import Listener

NewWorker = Callable[..., Worker]

IDLE = """
import gc, sys, time
from kiwi_worker import Context, Worker
worker = Worker()

@worker.method
def hello(ctx: Context) -> str:
    ctx.feedback("x")
    return "hello"

@worker.method(time_limit=30)
async def later() -> str:
    return "later"

with worker:
    print("started", flush=True)
    sys.stdin.readline()
    before = time.process_time()
    time.sleep(3)
    print(time.process_time() - before, flush=True)
"""


def test_an_idle_worker_sleeps(server: KiwiServer) -> None:
    lazy = worker_environment(server, worker_id="lazy")
    eager = worker_environment(server, worker_id="eager", run_mode="eager", wait=60)
    with running(IDLE, **lazy) as one, running(IDLE, **eager) as other:
        processes = {"lazy": one, "eager": other}
        for process in processes.values():
            assert process.line() == "started"
        # So that every thread a worker may have is there: slots, the event loop, reporters, feedback.
        ids = [
            server.enqueue(method, worker_id=name) for method in ["hello", "later"] * 40 for name in processes
        ]
        for request_id in ids:
            server.assert_answered_once(request_id, "success")
        server.wait_for_calls("feedback", 80)
        calls = len(server.calls)
        for process in processes.values():
            process.write("go")
        used_seconds = {name: float(process.line()) for name, process in processes.items()}
        # A last drain of each may have been on its way when the counting began.
        assert len(server.calls) - calls <= 2
        for process in processes.values():
            status, _, errors = process.end()
            assert (status, errors) == (0, "")
    assert max(used_seconds.values()) < 0.005, used_seconds


DRAIN = """
import gc, sys, tracemalloc
from kiwi_worker import Worker

worker = Worker(concurrency=1)
peak = []

def note():
    if not peak:
        peak.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

@worker.method
def hello(number: int) -> int:
    # By now every table that grows with messages is as full as it will be; untraced, the rest is quicker.
    if number == 15_000:
        note()
    return number

@worker.method
async def later(number: int) -> int:
    return number

worker.start()
sys.stdin.readline()
gc.collect()
tracemalloc.start(1)
worker._binding.draining.wake()
sys.stdin.readline()
note()
print(peak[0], flush=True)
worker.stop()
"""


class QuickServer:
    """As little of a middleware as a great many answers need: nobody waits for this one."""

    def __init__(self) -> None:
        self.drained = b"[]"
        self.drains = 0
        self.results: list[bytes] = []
        self._listener = Listener(self._serve, "127.0.0.1", 0, name="quick-server")

    def __enter__(self) -> QuickServer:
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.address[1]}"

    def _serve(self, sock: socket.socket, number: int) -> None:
        with sock, contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            received = b""
            while data := sock.recv(65536):
                received += data
                while request := self._first(received):
                    received = received[len(request) :]
                    sock.sendall(self._answer(request))

    @staticmethod
    def _first(received: bytes) -> bytes:
        end = received.find(b"\r\n\r\n") + 4
        if end < 4:
            return b""
        place = received.lower().find(b"content-length:", 0, end)
        length = 0 if place < 0 else int(received[place + 15 : received.index(b"\r", place)])
        return received[: end + length] if len(received) >= end + length else b""

    def _answer(self, request: bytes) -> bytes:
        body = b"true"
        if request.startswith(b"POST /worker/response"):
            self.results.append(request[request.index(b'"result":') + 9 : -1])
        elif request.startswith(b"GET /worker/messages"):
            self.drains += 1
            body, self.drained = self.drained, b"[]"
        elif request.startswith(b"POST /worker/auth_token"):
            body = b'{"access_token": "opaque", "expires_in": 3600}'
        elif request.startswith(b"POST /worker/registration"):
            body = b"{}"
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize(("method", "count"), [("hello", 100_000), ("later", 10_000)])
def test_a_drain_of_very_many_messages_is_answered_in_bounded_memory(method: str, count: int) -> None:
    messages = [
        {"request_id": f"request-{number}", "method": method, "params": [number]} for number in range(count)
    ]
    body = json.dumps(messages).encode()
    with QuickServer() as server, running(DRAIN, **worker_environment(server.url)) as process:
        eventually(lambda: server.drains)
        server.drained = body
        process.write("begin")
        eventually(lambda: len(server.results) == count, limit_seconds=60)
        process.write("end")
        peak = int(process.line())
        status, _, errors = process.end()
    assert (status, errors) == (0, "")
    assert set(map(int, server.results)) == set(range(count))
    per_message = (peak - len(body)) / count
    assert per_message < 1500, f"{per_message:.0f} bytes a message above the body"


def test_many_locks_and_answers_keep_their_connections(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server, concurrency=4)
    worker.method("hello")(lambda: "hello")
    with worker:
        ids = [server.enqueue("hello", lock_required=True) for _ in range(200)]
        for request_id in ids:
            server.assert_answered_once(request_id, "success")
        connections = {call.connection for call in server.calls}
        assert len(connections) <= 4 + 1 + 2 + 1, "slots, the receiver, seldom calls"
    eventually(lambda: server.open_connections == 0)
