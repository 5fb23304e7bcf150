"""What becomes of calls when a worker dies: three heartbeats missed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiwi_worker.testing.middleware import MiddlewareProcess, running_middleware

from .conftest import Workers
from .plain_worker import PlainWorker, until


@pytest.fixture(scope="module")
def shared() -> Iterator[MiddlewareProcess]:
    with running_middleware(heartbeat_delay=0.15) as middleware:
        yield middleware


def dead(middleware: MiddlewareProcess, *alive: PlainWorker) -> None:
    """Wait until only these are left; they beat meanwhile."""
    ids = sorted(worker.worker_id for worker in alive)

    def only_those_left() -> bool:
        for worker in alive:
            assert worker.beat() is True
        return sorted(w.worker_id for w in middleware.client.workers()) == ids

    until(only_those_left)


def test_drained_by_a_dead_worker_is_an_error(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    request_id = middleware.client.start("m")
    worker.drain_some()
    outcome = middleware.client.wait(request_id)
    assert (outcome.status, outcome.reason) == ("error", "worker_died")
    assert "w1" in (outcome.error_text or "")
    assert worker.beat() is False
    assert worker.respond(request_id) == 409
    assert worker.call("GET", "/worker/messages")[0] == 404


def test_never_drained_goes_to_another(middleware: MiddlewareProcess, workers: Workers) -> None:
    first = workers(middleware, "w1")
    first.register("m")
    request_id = middleware.client.start("m")
    second = workers(middleware, "w2")
    second.register("m")
    dead(middleware, second)
    assert [m["request_id"] for m in second.drain()] == [request_id]
    assert second.respond(request_id) == 200


def test_drained_and_idempotent_goes_to_another(middleware: MiddlewareProcess, workers: Workers) -> None:
    first, second = workers(middleware, "w1"), workers(middleware, "w2")
    tags = {"kiwi.idempotent": "other, m"}
    first.register("m", tags=tags)
    request_id = middleware.client.start("m")
    first.drain_some()
    second.register("m", tags=tags)
    dead(middleware, second)
    assert [m["request_id"] for m in second.drain()] == [request_id]
    assert second.respond(request_id, result=2) == 200
    assert middleware.client.fetch(request_id).result == 2


def test_late_answer_of_the_first_worker_wins_when_it_is_first(
    middleware: MiddlewareProcess, workers: Workers
) -> None:
    first, second = workers(middleware, "w1"), workers(middleware, "w2")
    tags = {"kiwi.idempotent": "m"}
    first.register("m", tags=tags)
    request_id = middleware.client.start("m")
    first.drain_some()
    second.register("m", tags=tags)
    dead(middleware, second)
    second.drain_some()
    assert first.respond(request_id, result=1) == 200
    assert second.respond(request_id, result=2) == 409
    assert middleware.client.fetch(request_id).result == 1


def test_lock_of_a_dead_worker(middleware: MiddlewareProcess, workers: Workers) -> None:
    first, second = workers(middleware, "w1"), workers(middleware, "w2")
    tags = {"kiwi.idempotent": "again"}
    first.register("m", "again", tags=tags)
    once, again = middleware.client.start("m", lock=True), middleware.client.start("again", lock=True)
    first.drain_some()
    assert first.lock(once) == first.lock(again) == 204
    second.register("m", "again", tags=tags)
    dead(middleware, second)
    assert middleware.client.wait(once).reason == "worker_died"
    assert [m["request_id"] for m in second.drain()] == [again]
    assert second.lock(again) == 204
    assert second.lock(once) == 409


def test_offer_that_a_dead_worker_drained_and_never_claimed(
    middleware: MiddlewareProcess, workers: Workers
) -> None:
    first, second = workers(middleware, "w1"), workers(middleware, "w2")
    first.register("m")
    second.register("m")
    request_id = middleware.client.start("m", lock=True)
    first.drain_some()
    dead(middleware, second)
    assert [m["request_id"] for m in second.drain()] == [request_id]
    assert second.lock(request_id) == 204


def test_heartbeats_keep_a_worker_alive(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    request_id = middleware.client.start("m")
    worker.drain_some()
    other = workers(middleware, "other")
    other.register("m")
    dead(middleware, worker)
    assert worker.respond(request_id) == 200


def test_heartbeat_delay_is_handed_to_workers(middleware: MiddlewareProcess, workers: Workers) -> None:
    assert workers(middleware).register("m")["heartbeat_delay"] == "0.15"


def test_middleware_that_was_stopped_blames_nobody(workers: Workers) -> None:
    """A suspended laptop: the middleware heard nobody, because it was not there."""
    import os
    import signal
    import time

    with running_middleware(heartbeat_delay=0.5) as middleware:
        worker = workers(middleware)
        worker.register("m")
        assert middleware.process is not None
        os.kill(middleware.process.pid, signal.SIGSTOP)
        time.sleep(2.5)  # the time that passes is the test
        os.kill(middleware.process.pid, signal.SIGCONT)
        assert worker.beat() is True
