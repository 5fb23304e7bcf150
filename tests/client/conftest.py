from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from middleware.plain_worker import PlainWorker

from kiwi_worker.testing.middleware import MiddlewareProcess, running_middleware


@pytest.fixture(scope="package")
def middleware() -> Iterator[MiddlewareProcess]:
    """A middleware with a worker that serves `echo`, `fail`, `count` (with feedback) and `hang`."""
    with running_middleware() as middleware:
        worker = PlainWorker(middleware.url, "demo", middleware.worker_secret, "echo")
        worker.register("echo", "fail", "count", "hang")
        stop = threading.Event()
        thread = threading.Thread(target=serve, args=(worker, stop), name="echo-worker")
        thread.start()
        yield middleware
        stop.set()
        worker.leave()
        thread.join()
        worker.close()


def serve(worker: PlainWorker, stop: threading.Event) -> None:
    while not stop.is_set():
        for message in worker.drain(wait=0.5):
            answer(worker, message["request_id"], message["method"], message["params"])


def answer(worker: PlainWorker, request_id: str, method: str, params: object) -> None:
    if method == "echo":
        worker.respond(request_id, result=params)
    elif method == "fail":
        worker.respond(request_id, "failed", error_text="ValueError: no")
    elif method == "count":
        for percent in (10, 50, 100):
            worker.feedback(request_id, f"{percent}%", pr=True)
        worker.feedback(request_id, "nearly", pr=True)
        worker.respond(request_id, result="counted")
    elif method != "hang":
        worker.respond(request_id, "error", error_text=f"unknown method {method}; known: count, echo, fail")
