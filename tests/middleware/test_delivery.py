"""Delivery: drain, lock, answer, and who may do what."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from kiwi_worker.errors import CallError
from kiwi_worker.testing.middleware import MiddlewareProcess

from .conftest import Workers
from .plain_worker import Background, until


def test_call_is_drained_answered_and_returned(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("hello")
    call = Background(lambda: middleware.client.call("hello", {"name": "Ada"}))
    [message] = worker.drain(wait=10)
    assert message == {
        "request_id": message["request_id"],
        "method": "hello",
        "lock_required": False,
        "params": {"name": "Ada"},
    }
    assert worker.respond(message["request_id"], result={"greeting": "hello Ada"}) == 200
    assert call.result() == {"greeting": "hello Ada"}


@pytest.mark.parametrize("params", [None, [], {}, [1, "two", None], {"ü": "\u2028 \U0001f99d"}])
def test_params_arrive_as_they_were_sent(
    middleware: MiddlewareProcess, workers: Workers, params: object
) -> None:
    worker = workers(middleware)
    worker.register("m")
    middleware.client.start("m", params)
    assert worker.drain_some()[0]["params"] == params


def test_drain_empties_the_queue_in_one_read(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    ids = [middleware.client.start("m", [n]) for n in range(50)]
    messages = worker.drain()
    assert [m["request_id"] for m in messages] == ids
    assert [m["params"] for m in messages] == [[n] for n in range(50)]
    assert worker.drain() == []


def test_drains_at_once_share_the_messages_out(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    with ThreadPoolExecutor(12) as pool:
        starts = [pool.submit(middleware.client.start, "m") for _ in range(200)]
        drains = [pool.submit(worker.drain, 0.2) for _ in range(40)]
        started = sorted(start.result() for start in starts)
        drained = [m["request_id"] for drain in drains for m in drain.result()]
    drained += [m["request_id"] for m in worker.drain()]
    assert sorted(drained) == started


def test_open_wait_ends_as_soon_as_work_comes(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    drain = Background(lambda: worker.drain(wait=60))
    request_id = middleware.client.start("m")
    assert [m["request_id"] for m in drain.result()] == [request_id]


def test_wait_over_is_an_empty_array(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    assert worker.drain(wait=0.05) == []


def test_work_between_two_waits_is_not_lost(middleware: MiddlewareProcess, workers: Workers) -> None:
    """Field report 22: what is enqueued in the instant between two polls."""
    worker = workers(middleware)
    worker.register("m")
    seen = []
    for _ in range(100):
        drain = Background(lambda: worker.drain(wait=5))
        request_id = middleware.client.start("m")
        messages = drain.result() or worker.drain()
        seen.append([m["request_id"] for m in messages] == [request_id])
    assert all(seen)


def test_message_of_a_wait_whose_worker_has_gone_is_not_lost(
    middleware: MiddlewareProcess, workers: Workers
) -> None:
    """Field report 19: work handed to a poll whose client has already gone."""
    worker = workers(middleware)
    worker.register("m")
    gone = workers(middleware)
    connection = gone.connection()
    for _ in range(20):
        connection.request(
            "GET", "/worker/messages?wait=30", headers={"Authorization": f"Bearer {gone.token}"}
        )
        connection.close()
        request_id = middleware.client.start("m")
        assert [m["request_id"] for m in worker.drain_some()] == [request_id]


def test_exactly_one_of_many_gets_the_lock(middleware: MiddlewareProcess, workers: Workers) -> None:
    competitors = [workers(middleware, f"w{n}") for n in range(12)]
    for worker in competitors:
        worker.register("m")
    for _ in range(10):
        request_id = middleware.client.start("m", lock=True)
        offers = [worker.drain_some() for worker in competitors]
        assert all([m["request_id"] for m in offer] == [request_id] for offer in offers)
        assert all(offer[0]["lock_required"] is True for offer in offers)
        with ThreadPoolExecutor(len(competitors)) as pool:
            statuses = [lock.result() for lock in [pool.submit(w.lock, request_id) for w in competitors]]
        assert sorted(statuses) == [204] + [409] * 11
        owner = competitors[statuses.index(204)]
        loser = competitors[statuses.index(409)]
        assert owner.lock(request_id) == 204
        assert loser.respond(request_id) == 409
        assert owner.respond(request_id, result=1) == 200


def test_offer_that_was_claimed_is_not_offered_any_more(
    middleware: MiddlewareProcess, workers: Workers
) -> None:
    first, second = workers(middleware, "w1"), workers(middleware, "w2")
    first.register("m")
    second.register("m")
    request_id = middleware.client.start("m", lock=True)
    first.drain_some()
    assert first.lock(request_id) == 204
    assert second.drain() == []


def test_late_joiner_is_offered_what_nobody_has_claimed(
    middleware: MiddlewareProcess, workers: Workers
) -> None:
    early = workers(middleware, "early")
    early.register("m")
    request_id = middleware.client.start("m", lock=True)
    early.drain_some()
    late = workers(middleware, "late")
    late.register("m")
    assert [m["request_id"] for m in late.drain()] == [request_id]
    assert late.lock(request_id) == 204
    assert early.lock(request_id) == 409


def test_answer_without_the_lock_is_refused(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    request_id = middleware.client.start("m", lock=True)
    worker.drain_some()
    assert worker.respond(request_id) == 403
    assert worker.lock(request_id) == 204
    assert worker.respond(request_id) == 200


def test_first_answer_wins(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    request_id = middleware.client.start("m")
    worker.drain_some()
    assert worker.respond(request_id, result="first") == 200
    assert worker.respond(request_id, result="second") == 409
    assert worker.respond(request_id, "failed", error_text="third") == 409
    assert middleware.client.fetch(request_id).result == "first"


@pytest.mark.parametrize("status", ["failed", "error"])
def test_failure_reaches_the_caller_with_its_text(
    middleware: MiddlewareProcess, workers: Workers, status: str
) -> None:
    worker = workers(middleware)
    worker.register("m")
    request_id = middleware.client.start("m")
    worker.drain_some()
    worker.respond(request_id, status, error_text="ValueError: no", result={"not": "shown"})
    outcome = middleware.client.wait(request_id)
    assert (outcome.status, outcome.error_text, outcome.result) == (status, "ValueError: no", None)
    assert outcome.reason is None


def test_worker_may_answer_only_what_it_was_given(middleware: MiddlewareProcess, workers: Workers) -> None:
    first = workers(middleware, "w1")
    first.register("m")
    request_id = middleware.client.start("m")
    first.drain_some()
    second = workers(middleware, "w2")
    second.register("m")
    assert second.respond(request_id) == 403
    assert second.lock(request_id) == 409
    assert second.feedback(request_id, "x") == 403
    assert first.respond(request_id) == 200


def test_call_that_was_not_drained_cannot_be_answered(
    middleware: MiddlewareProcess, workers: Workers
) -> None:
    worker = workers(middleware)
    worker.register("m")
    request_id = middleware.client.start("m")
    assert worker.respond(request_id) == 403
    assert worker.feedback(request_id, "x") == 403


def test_request_of_another_service_is_unknown(middleware: MiddlewareProcess, workers: Workers) -> None:
    other = middleware.with_new_service()
    worker, stranger = workers(middleware), workers(other)
    worker.register("m")
    stranger.register("m")
    request_id = middleware.client.start("m")
    worker.drain_some()
    assert stranger.respond(request_id) == 404
    assert stranger.lock(request_id) == 404
    assert stranger.feedback(request_id, "x") == 404
    worker.respond(request_id)
    assert stranger.respond(request_id) == 404
    other_client = other.new_client()
    with pytest.raises(CallError) as caught:
        other_client.fetch(request_id)
    assert caught.value.http_status == 404
    other.close_clients()


def test_calls_go_to_the_worker_with_the_fewest_unanswered(
    middleware: MiddlewareProcess, workers: Workers
) -> None:
    first, second, other = (workers(middleware, name) for name in ("w1", "w2", "w3"))
    first.register("m")
    second.register("m")
    other.register("something_else")
    for _ in range(10):
        middleware.client.start("m")
    assert (len(first.drain()), len(second.drain()), len(other.drain())) == (5, 5, 0)
    busy = middleware.client.start("m"), middleware.client.start("m")
    assert len(busy) == 2
    for message in first.drain():
        first.respond(message["request_id"])


def test_unknown_method_is_answered_by_a_live_worker(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("known")
    request_id = middleware.client.start("nope")
    [message] = worker.drain(wait=20)
    assert (message["request_id"], message["method"]) == (request_id, "nope")


def test_unknown_method_with_a_lock_is_claimed_and_answered(
    middleware: MiddlewareProcess, workers: Workers
) -> None:
    worker = workers(middleware)
    worker.register("known")
    request_id = middleware.client.start("nope", lock=True)
    [message] = worker.drain(wait=20)
    assert message["request_id"] == request_id
    assert worker.lock(request_id) == 204
    assert worker.respond(request_id, "error", error_text="unknown method") == 200


def test_method_of_a_worker_that_is_away_waits_for_it(
    middleware: MiddlewareProcess, workers: Workers
) -> None:
    away, here = workers(middleware, "away"), workers(middleware, "here")
    away.register("m")
    here.register("other")
    away.leave()
    request_id = middleware.client.start("m")
    assert here.drain(wait=1.5) == []
    back = workers(middleware, "back")
    back.register("m")
    assert [m["request_id"] for m in back.drain()] == [request_id]


def test_call_waits_for_a_worker_to_come(middleware: MiddlewareProcess, workers: Workers) -> None:
    request_id = middleware.client.start("m")
    worker = workers(middleware)
    worker.register("m")
    assert [m["request_id"] for m in worker.drain()] == [request_id]


def test_shutdown_notice_ends_the_open_wait(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    drain = Background(lambda: worker.drain(wait=60))
    until(lambda: middleware.client.workers()[0].worker_id == "w1")
    assert worker.leave() == 204
    assert drain.result(limit=5) == []


def test_worker_that_stops_gives_back_what_it_never_drained(
    middleware: MiddlewareProcess, workers: Workers
) -> None:
    first = workers(middleware, "w1")
    first.register("m")
    held = middleware.client.start("m")
    first.drain_some()
    queued = middleware.client.start("m")
    second = workers(middleware, "w2")
    second.register("m")
    first.leave()
    assert [m["request_id"] for m in second.drain()] == [queued]
    assert first.drain() == []
    assert first.beat() is True
    assert first.respond(held) == 200


def test_new_process_of_a_worker_takes_over(middleware: MiddlewareProcess, workers: Workers) -> None:
    """What was drained before stays its own (it may keep a journal); what was not is drained now."""
    before = workers(middleware)
    before.register("m")
    held = middleware.client.start("m")
    before.drain_some()
    queued = middleware.client.start("m")
    old_wait = Background(lambda: before.drain(wait=60))
    assert [m["request_id"] for m in old_wait.result()] == [queued]
    open_wait = Background(lambda: before.drain(wait=60))
    waiting = middleware.client
    until(lambda: waiting.workers()[0].unanswered == 2)
    after = workers(middleware)
    until(lambda: after.register("m") is not None and not open_wait.thread.is_alive())
    assert open_wait.result() == []
    assert after.respond(held) == 200
    assert after.respond(queued) == 200


def test_new_process_that_forgets_says_so(middleware: MiddlewareProcess, workers: Workers) -> None:
    before = workers(middleware)
    before.register("m")
    request_id = middleware.client.start("m")
    before.drain_some()
    workers(middleware).register("m", tags={"kiwi.journal": "false"})
    outcome = middleware.client.wait(request_id)
    assert (outcome.status, outcome.reason) == ("error", "worker_died")
    assert "w1" in (outcome.error_text or "")


def test_thousands_of_messages_in_one_drain(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    total = 3000
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: middleware.client.start("m", [n]), range(total)))
    worker.register("m")
    messages = worker.drain()
    assert sorted(m["params"][0] for m in messages) == list(range(total))
