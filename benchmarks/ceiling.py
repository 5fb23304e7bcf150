"""The ceiling: the least a Python process can spend on one message, over a bare socket.

    python ceiling.py URL MESSAGES THREADS LOCK

One drained array; for each message: decode, check the parameters, call, encode, POST over a kept socket,
read the answer. No engine, no tokens, no retries. A worker is measured against it in the same run.
"""

from __future__ import annotations

import json
import queue
import resource
import socket
import sys
import threading
import time
import urllib.request
from typing import Any

import msgspec

AUTHORIZATION = "Bearer " + "x" * 300


class Message(msgspec.Struct):
    """One drained message."""

    request_id: str
    method: str
    lock_required: bool = False
    params: msgspec.Raw = msgspec.Raw(b"null")


class Params(msgspec.Struct):
    """What `hello` takes."""

    name: str
    n: int = 0


class Response(msgspec.Struct):
    """What is posted."""

    request_id: str
    status: str
    error_text: str | None
    result: Any


class BareSocket:
    """One kept connection, which knows answers with a Content-Length and nothing else."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._common = f"Host: {host}:{port}\r\nAuthorization: {AUTHORIZATION}\r\n".encode()

    def call(self, method: bytes, path: bytes, body: bytes = b"") -> int:
        """Send one request, read its answer, give its status."""
        head = b"%b %b HTTP/1.1\r\n%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._socket.sendall(head % (method, path, self._common, len(body)) + body)
        answer = self._socket.recv(65536)
        while (end := answer.find(b"\r\n\r\n")) < 0:
            answer += self._socket.recv(65536)
        fields = answer[:end].lower()
        at = fields.find(b"content-length:")
        length = int(fields[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        while len(answer) < end + 4 + length:
            answer += self._socket.recv(65536)
        return int(answer[9:12])


def hello(name: str, n: int = 0) -> str:
    """The handler."""
    return "hello " + name


def main(url: str, count: int, threads: int, lock: bool) -> None:
    """Run the loop and print the figures."""
    host, port = url.removeprefix("http://").split(":")
    with urllib.request.urlopen(f"{url}/worker/messages") as answer:
        elements = msgspec.json.decode(answer.read(), type=list[msgspec.Raw])[:count]
    decode, decode_params = msgspec.json.Decoder(Message).decode, msgspec.json.Decoder(Params).decode
    encode = msgspec.json.Encoder().encode
    todo: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def slot() -> None:
        connection = BareSocket(host, int(port))
        while (element := todo.get()) is not None:
            message = decode(element)
            if lock:
                path = b"/worker/lock_request/" + message.request_id.encode()
                assert connection.call(b"PUT", path) == 204
            params = decode_params(message.params)
            response = Response(message.request_id, "success", None, hello(params.name, params.n))
            assert connection.call(b"POST", b"/worker/response", encode(response)) == 200

    before, since = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for element in [*elements, *[None] * threads]:
        todo.put(element)
    slots = [threading.Thread(target=slot) for _ in range(threads)]
    for thread in slots:
        thread.start()
    for thread in slots:
        thread.join()
    seconds, after = time.perf_counter() - since, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"per_second": len(elements) / seconds, "cpu_us": cpu / len(elements) * 1e6}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "lock")
