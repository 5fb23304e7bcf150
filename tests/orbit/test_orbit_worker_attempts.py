"""The table of attempts a worker holds, at the seams that a runtime rarely shows."""

from __future__ import annotations

import msgspec

from kiwi_worker.engine.outcomes import Ending, Outcome, outcome_of
from kiwi_worker.engine.work import Work
from kiwi_worker.orbit.attempts import Attempts, Delivery
from kiwi_worker.orbit.sessions import Session
from kiwi_worker.orbit.wire import Assignment, Registered


def delivery(token: str, attempt: int = 1) -> Delivery:
    assignment = Assignment(token, "job", "1.0.0", execution_id="e", step_id="s", attempt=attempt)
    return Delivery(assignment, Session(Registered("session")))


def make_work(delivery: Delivery, outcome: Outcome | None) -> Work:
    return Work(
        delivery.assignment.token, "job", msgspec.Raw(b"{}"), None, refusal=outcome, delivery=delivery
    )


def test_a_cancel_that_comes_before_its_task_is_remembered() -> None:
    attempts = Attempts()
    assert attempts.cancelled("t1") is None
    work, to_cancel = attempts.take_in(delivery("t1"), make_work)
    assert to_cancel is work
    assert work is not None


def test_a_cancel_of_any_token_of_an_attempt_finds_it() -> None:
    attempts = Attempts()
    work, _ = attempts.take_in(delivery("t1"), make_work)
    assert attempts.take_in(delivery("t2"), make_work) == (None, None)
    assert attempts.cancelled("t1") is attempts.cancelled("t2") is work


def test_an_attempt_is_reported_under_every_token_and_each_leaves_its_own_session() -> None:
    attempts = Attempts()
    first, second = delivery("t1"), delivery("t2")
    work, _ = attempts.take_in(first, make_work)
    attempts.take_in(second, make_work)
    assert work is not None
    assert attempts.ended(work.delivery, outcome_of(Ending.RETURNED, {})) == ["t1", "t2"]
    assert attempts.answered("t1") is first.tokens[0][1]
    assert attempts.answered("t2") is second.tokens[0][1]
    assert attempts.answered("t2") is None


def test_an_outcome_is_given_again_until_it_is_answered() -> None:
    attempts, outcome = Attempts(), outcome_of(Ending.RETURNED, {})
    work, _ = attempts.take_in(delivery("t1"), make_work)
    assert work is not None
    attempts.ended(work.delivery, outcome)
    again, _ = attempts.take_in(delivery("t2"), make_work)
    assert again is not None
    assert again.refusal is outcome
    attempts.ended(again.delivery, outcome)
    attempts.answered("t1")
    attempts.answered("t2")
    anew, _ = attempts.take_in(delivery("t3"), make_work)
    assert anew is not None
    assert anew.refusal is None


def test_another_attempt_of_the_same_step_is_another_piece_of_work() -> None:
    attempts = Attempts()
    first, _ = attempts.take_in(delivery("t1"), make_work)
    second, _ = attempts.take_in(delivery("t2", attempt=2), make_work)
    assert first is not None
    assert second is not None
    assert first is not second
