"""Results, retries, time-outs, redelivery, cancellation and restarts of the dev runtime's core."""

from __future__ import annotations

import msgspec
import pytest

from kiwi_worker.orbit.runtime.core import FINISHED_LIMIT
from kiwi_worker.orbit.runtime.messages import Ack
from kiwi_worker.orbit.runtime.model import RetryPolicy
from kiwi_worker.orbit.runtime.refusal import Refused

from .desk import UNDO, Desk, workflow

ACCEPTED = (True, None)
VIOLATION = (False, "output violates the task contract")
STALE = (False, "stale attempt")
DUPLICATE = (False, "duplicate result; step already resolved")
UNKNOWN = (False, "unknown token (execution finished or token invalid)")

RETRY = {"attempts": 3, "initial_delay": "1s", "non_retryable": ["INVALID_NAME"]}
OUTPUT = {
    "type": "object",
    "required": ["message"],
    "properties": {"message": {"type": "string"}, "tone": {"type": "string", "default": "warm"}},
}
COMPENSATE = {"task": UNDO.task_name, "contract_version": UNDO.contract_version}


def said(ack: Ack) -> tuple[bool, str | None]:
    return ack.accepted, ack.reason if isinstance(ack.reason, str) else None


def kinds(desk: Desk) -> list[str]:
    return [event.kind for event in desk.execution().history]


# Result acceptance


def test_a_success_is_recorded() -> None:
    desk = Desk()
    desk.start()
    assert said(desk.complete(desk.take(desk.session()).token, {"message": "hi"})) == ACCEPTED
    assert (desk.status(), desk.execution().output) == ("COMPLETED", {"message": "hi"})


def test_no_reason_is_given_with_an_accepted_result() -> None:
    desk = Desk()
    desk.start()
    assert msgspec.to_builtins(desk.complete(desk.take(desk.session()).token)) == {"accepted": True}


def test_a_missing_output_counts_as_an_empty_object() -> None:
    desk = Desk()
    desk.start()
    desk.complete(desk.take(desk.session()).token, None)
    assert desk.execution().output == {}


def test_output_that_violates_the_contract_fails_the_step_without_retry() -> None:
    desk = Desk(workflow(retry=RETRY, output=OUTPUT))
    desk.start()
    assert said(desk.complete(desk.take(desk.session()).token, {"msg": 1})) == VIOLATION
    assert desk.status() == "FAILED"
    text = (
        "worker output for `greeting.compose` does not match its contract at $.message: "
        "missing required field `message` of type String"
    )
    assert desk.error() == ("OUTPUT_CONTRACT_VIOLATION", text)


@pytest.mark.parametrize("output", [[], "text", 1, True])
def test_output_that_is_no_object_violates_every_contract(output: object) -> None:
    desk = Desk()
    desk.start()
    assert said(desk.complete(desk.take(desk.session()).token, output)) == VIOLATION


def test_schema_defaults_are_applied_to_the_output() -> None:
    desk = Desk(workflow(output=OUTPUT))
    desk.start()
    desk.complete(desk.take(desk.session()).token, {"message": "hi"})
    assert desk.execution().output == {"message": "hi", "tone": "warm"}


def test_output_that_violates_the_contract_under_an_old_token_does_not_fail_the_step() -> None:
    desk = Desk(workflow(output=OUTPUT))
    desk.start()
    lost = desk.session("a")
    old = desk.take(lost).token
    desk.unregister(lost)
    new = desk.take(desk.session("b")).token
    assert said(desk.complete(old, {})) == VIOLATION
    assert desk.status() == "RUNNING"
    assert said(desk.complete(new, {"message": "hi"})) == ACCEPTED


def test_a_failure_of_an_earlier_attempt_is_stale() -> None:
    desk = Desk(workflow(retry=RETRY))
    desk.start()
    session = desk.session()
    first = desk.take(session).token
    assert said(desk.fail(first)) == ACCEPTED
    assert said(desk.fail(first)) == STALE
    desk.pass_ms(1000)
    second = desk.take(session)
    assert second.attempt == 2
    assert said(desk.fail(first)) == STALE
    assert "StaleFailureIgnored" in kinds(desk)
    assert said(desk.complete(second.token)) == ACCEPTED


def test_a_failure_of_a_delivery_that_was_replaced_is_stale() -> None:
    desk = Desk()
    desk.start()
    lost = desk.session("a")
    old = desk.take(lost).token
    desk.unregister(lost)
    desk.take(desk.session("b"))
    assert said(desk.fail(old)) == STALE
    assert desk.status() == "RUNNING"


def test_a_failure_counts_while_the_attempt_waits_to_be_redelivered() -> None:
    desk = Desk()
    desk.start()
    session = desk.session("a")
    token = desk.take(session).token
    desk.unregister(session)
    assert said(desk.fail(token, "BROKEN")) == ACCEPTED
    assert desk.status() == "FAILED"
    assert desk.poll(desk.session("b")).assignment is None


def test_a_result_for_a_resolved_step_is_a_duplicate() -> None:
    desk = Desk(workflow(compensate=COMPENSATE))
    desk.start()
    token = desk.take(desk.session()).token
    desk.cancel()
    assert said(desk.complete(token)) == ACCEPTED
    assert said(desk.complete(token)) == DUPLICATE
    assert said(desk.fail(token)) == DUPLICATE
    assert kinds(desk).count("StaleResultIgnored") == 2


def test_a_result_for_a_finished_execution_or_an_invented_token_is_unknown() -> None:
    desk = Desk()
    desk.start()
    token = desk.take(desk.session()).token
    desk.complete(token)
    for report in (desk.complete, desk.fail):
        assert said(report(token)) == UNKNOWN
        assert said(report("invented")) == UNKNOWN


def test_a_success_after_its_attempt_timed_out_is_accepted() -> None:
    desk = Desk(workflow(timeout="5s", retry=RETRY))
    desk.start()
    session = desk.session()
    late = desk.take(session).token
    desk.pass_ms(6000)
    second = desk.take(session)
    assert second.attempt == 2
    assert said(desk.complete(late, {"message": "late"})) == ACCEPTED
    assert desk.execution().output == {"message": "late"}
    assert said(desk.complete(second.token)) == UNKNOWN


def test_a_success_after_redelivery_is_accepted() -> None:
    desk = Desk()
    desk.start()
    lost = desk.session("a")
    old = desk.take(lost).token
    desk.unregister(lost)
    assert desk.take(desk.session("b")).redelivery
    assert said(desk.complete(old)) == ACCEPTED
    assert desk.status() == "COMPLETED"


def test_an_empty_token_and_an_empty_error_code_are_invalid_requests() -> None:
    desk = Desk()
    for call in (lambda: desk.complete(""), lambda: desk.fail("any", "")):
        with pytest.raises(Refused) as caught:
            call()
        assert (caught.value.status, caught.value.code) == (400, "INVALID_REQUEST")
        assert not caught.value.code_in_metadata


# Retries


def test_retries_go_on_until_the_attempts_are_used_up() -> None:
    desk = Desk(workflow(retry=RETRY))
    desk.start()
    session = desk.session()
    tokens = []
    for attempt in (1, 2, 3):
        task = desk.take(session)
        assert (task.attempt, task.redelivery, task.idempotency_key) == (attempt, False, "e1/compose")
        tokens.append(task.token)
        desk.fail(task.token, "BUSY", "try later")
        assert desk.poll(session).assignment is None
        desk.pass_ms(1000)
    assert len(set(tokens)) == 3
    assert (desk.status(), desk.error()) == ("FAILED", ("BUSY", "step `compose` failed: try later"))


def test_the_delay_is_waited_for_before_the_next_attempt() -> None:
    desk = Desk(workflow(retry=RETRY))
    desk.start()
    session = desk.session()
    desk.fail(desk.take(session).token)
    desk.pass_ms(999)
    assert desk.poll(session).assignment is None
    desk.pass_ms(1)
    assert desk.take(session).attempt == 2


@pytest.mark.parametrize(
    ("code", "retryable", "status"),
    [
        ("INVALID_NAME", True, "FAILED"),
        ("invalid_name", True, "RUNNING"),
        ("BUSY", False, "FAILED"),
        ("BUSY", True, "RUNNING"),
    ],
)
def test_what_is_retried(code: str, retryable: bool, status: str) -> None:
    desk = Desk(workflow(retry=RETRY))
    desk.start()
    assert said(desk.fail(desk.take(desk.session()).token, code, retryable=retryable)) == ACCEPTED
    assert desk.status() == status


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [("fixed", [100, 100, 100]), ("linear", [100, 200, 300]), ("exponential", [100, 200, 400])],
)
def test_how_delays_grow(backoff: str, delays: list[int]) -> None:
    policy = msgspec.convert({"attempts": 9, "backoff": backoff, "initial_delay_ms": 100}, RetryPolicy)
    assert [policy.delay_ms(attempt) for attempt in (1, 2, 3)] == delays
    assert policy.delay_ms(1_000_000) <= 3_600_000


# Attempt time-outs


def test_an_attempt_past_its_deadline_fails_with_timeout_and_is_retried() -> None:
    desk = Desk(workflow(timeout="5s", retry=RETRY))
    desk.start()
    session = desk.session()
    token = desk.take(session).token
    desk.pass_ms(4999)
    assert desk.heartbeat(session) == []
    desk.pass_ms(1)
    assert desk.heartbeat(session) == [token]
    assert desk.heartbeat(session) == []
    desk.pass_ms(1000)
    assert desk.take(session).attempt == 2


def test_the_last_timed_out_attempt_fails_the_execution() -> None:
    desk = Desk(workflow(timeout="5s"))
    desk.start()
    desk.take(desk.session())
    desk.pass_ms(5000)
    assert desk.status() == "FAILED"
    assert desk.error()[0] == "TIMEOUT"


def test_the_non_retryable_list_holds_for_timeouts_too() -> None:
    desk = Desk(workflow(timeout="5s", retry={"attempts": 3, "non_retryable": ["TIMEOUT"]}))
    desk.start()
    desk.take(desk.session())
    desk.pass_ms(5000)
    assert desk.status() == "FAILED"


def test_a_deadline_passes_independently_of_the_session() -> None:
    desk = Desk(workflow(timeout="60s"), session_timeout_ms=10_000)
    desk.start()
    desk.take(desk.session())
    desk.pass_ms(60_000)
    assert desk.error()[0] == "TIMEOUT"


def test_a_timed_out_token_that_was_reported_meanwhile_is_not_listed() -> None:
    desk = Desk(workflow(timeout="5s", retry=RETRY))
    desk.start()
    session = desk.session()
    token = desk.take(session).token
    desk.pass_ms(5000)
    desk.fail(token)
    assert desk.heartbeat(session) == []


# Redelivery


@pytest.mark.parametrize("loss", ["silence", "unregister"])
def test_a_lost_session_has_its_attempts_redelivered(loss: str) -> None:
    desk = Desk(workflow(retry=RETRY))
    desk.start()
    session = desk.session("a")
    first = desk.take(session)
    if loss == "silence":
        desk.pass_ms(30_001)
    else:
        desk.unregister(session)
    again = desk.take(desk.session("b"))
    assert again.redelivery
    assert again.token != first.token
    assert (again.attempt, again.idempotency_key) == (1, first.idempotency_key)


def test_a_redelivery_does_not_use_up_a_retry() -> None:
    desk = Desk(workflow(retry={"attempts": 2}))
    desk.start()
    for _ in range(5):
        session = desk.session()
        assert desk.take(session).attempt == 1
        desk.unregister(session)
    session = desk.session()
    desk.fail(desk.take(session).token)
    task = desk.take(session)
    assert (task.attempt, task.redelivery) == (2, False)


def test_unregister_hands_over_to_a_waiting_poll_at_once() -> None:
    desk = Desk()
    desk.start()
    session = desk.session("a")
    desk.take(session)
    waiting = desk.poll(desk.session("b"), 20_000)
    desk.unregister(session)
    assert waiting.assignment is not None


def test_a_redelivered_task_keeps_its_place_before_younger_ones() -> None:
    desk = Desk()
    desk.start("old")
    session = desk.session("a")
    desk.take(session)
    desk.pass_ms(10)
    desk.start("young")
    desk.unregister(session)
    assert desk.take(desk.session("b")).execution_id == "old"


def test_a_redelivery_gets_the_whole_timeout() -> None:
    desk = Desk(workflow(timeout="30s"))
    desk.start()
    session = desk.session("a")
    desk.take(session)
    desk.pass_ms(20_000)
    desk.unregister(session)
    assert desk.take(desk.session("b")).deadline_ms == desk.now + 30_000
    desk.pass_ms(15_000)
    assert desk.status() == "RUNNING"


# Cancellation


@pytest.mark.parametrize("moment", ["queued", "backoff"])
def test_a_cancelled_execution_with_nothing_in_flight_ends_at_once(moment: str) -> None:
    desk = Desk(workflow(retry=RETRY))
    desk.start()
    session = desk.session()
    if moment == "backoff":
        desk.fail(desk.take(session).token)
    assert desk.cancel(reason="customer withdrew").status == "CANCELLED"
    assert desk.error() == ("CANCELLED", "customer withdrew")
    desk.pass_ms(5000)
    assert desk.poll(session).assignment is None


def test_a_cancel_lists_the_token_once_and_waits_for_the_attempt() -> None:
    desk = Desk()
    desk.start()
    session = desk.session()
    token = desk.take(session).token
    assert desk.cancel().status == "RUNNING"
    assert desk.cancel().status == "RUNNING"
    assert [desk.heartbeat(session), desk.heartbeat(session)] == [[token], []]


def test_a_token_is_listed_once_even_if_it_times_out_after_the_cancel() -> None:
    desk = Desk(workflow(timeout="5s"))
    desk.start()
    session = desk.session()
    token = desk.take(session).token
    desk.cancel()
    assert desk.heartbeat(session) == [token]
    desk.pass_ms(5000)
    assert desk.status() == "CANCELLED"
    assert desk.heartbeat(session) == []


def test_only_the_session_that_holds_the_attempt_is_told_to_stop() -> None:
    desk = Desk()
    desk.start()
    holder, other = desk.session("w"), desk.session("w")
    token = desk.take(holder).token
    desk.cancel()
    assert desk.heartbeat(other) == []
    assert desk.heartbeat(holder) == [token]


@pytest.mark.parametrize("ending", ["complete", "fail", "timeout", "silence", "unregister"])
def test_a_cancelled_execution_ends_however_its_attempt_does(ending: str) -> None:
    desk = Desk(workflow(timeout="60s", retry=RETRY))
    desk.start()
    session = desk.session()
    token = desk.take(session).token
    desk.cancel()
    if ending == "complete":
        assert said(desk.complete(token)) == ACCEPTED
    elif ending == "fail":
        assert said(desk.fail(token)) == ACCEPTED
    elif ending == "unregister":
        desk.unregister(session)
    else:
        desk.pass_ms(60_000 if ending == "timeout" else 30_001)
    assert desk.status() == "CANCELLED"


def test_a_late_success_of_a_cancelled_execution_is_compensated() -> None:
    desk = Desk(workflow(compensate=COMPENSATE))
    desk.start(value={"name": "Ada"})
    session = desk.session()
    token = desk.take(session).token
    desk.cancel()
    assert said(desk.complete(token, {"message": "hi"})) == ACCEPTED
    assert desk.status() == "RUNNING"
    undo = desk.take(session)
    assert (undo.step_id, undo.task_name) == ("compensate:compose", "greeting.undo")
    assert (undo.idempotency_key, undo.attempt) == ("e1/compensate:compose", 1)
    assert undo.input == {"input": {"name": "Ada"}, "output": {"message": "hi"}}
    assert said(desk.complete(undo.token)) == ACCEPTED
    assert desk.status() == "CANCELLED"


def test_a_compensation_is_retried_and_its_failure_is_shown() -> None:
    desk = Desk(workflow(compensate=COMPENSATE | {"retry": {"attempts": 2}}))
    desk.start()
    session = desk.session()
    token = desk.take(session).token
    desk.cancel()
    desk.complete(token)
    desk.fail(desk.take(session).token)
    undo = desk.take(session)
    assert undo.attempt == 2
    desk.fail(undo.token, "BROKEN", "no way back")
    assert (desk.status(), desk.error()) == (
        "FAILED",
        ("BROKEN", "step `compensate:compose` failed: no way back"),
    )


def test_a_cancelled_execution_that_finished_stays_as_it_is() -> None:
    desk = Desk()
    desk.start()
    desk.complete(desk.take(desk.session()).token)
    assert desk.cancel().status == "COMPLETED"


# Restart


@pytest.mark.parametrize("report", ["complete", "fail"])
def test_a_restart_forgets_sessions_and_keeps_tokens(report: str) -> None:
    desk = Desk()
    desk.start()
    session = desk.session()
    token = desk.take(session).token
    desk.restart()
    with pytest.raises(Refused) as caught:
        desk.heartbeat(session)
    assert caught.value.code == "UNKNOWN_SESSION"
    assert said(getattr(desk, report)(token)) == ACCEPTED
    assert desk.status() == ("COMPLETED" if report == "complete" else "FAILED")


def test_after_a_restart_attempts_are_redelivered_after_one_session_timeout() -> None:
    desk = Desk()
    desk.start()
    first = desk.take(desk.session())
    desk.restart()
    session = desk.session()
    desk.pass_ms(29_999)
    assert desk.poll(session).assignment is None
    desk.pass_ms(1)
    again = desk.take(session)
    assert (again.attempt, again.redelivery, again.idempotency_key) == (1, True, first.idempotency_key)
    assert said(desk.complete(first.token)) == ACCEPTED


def test_queued_and_delayed_attempts_survive_a_restart() -> None:
    desk = Desk(workflow(retry=RETRY))
    desk.start("waiting")
    session = desk.session()
    desk.fail(desk.take(session).token)
    desk.start("queued")
    desk.restart()
    session = desk.session()
    assert desk.take(session).execution_id == "queued"
    desk.pass_ms(1000)
    assert desk.take(session).execution_id == "waiting"


def test_a_deadline_that_passed_while_the_runtime_was_down_leaves_time_to_report() -> None:
    desk = Desk(workflow(timeout="5s"))
    desk.start()
    token = desk.take(desk.session()).token
    desk.now += 60_000
    kept = desk.core._executions.values()
    desk.core = desk._new_core()
    desk.core.restore(list(kept), [], desk.now)
    desk.pass_ms(20_000)
    assert said(desk.complete(token)) == ACCEPTED


def test_a_deadline_still_to_come_is_kept_over_a_restart() -> None:
    desk = Desk(workflow(timeout="5s"))
    desk.start()
    desk.take(desk.session())
    desk.restart()
    desk.pass_ms(5000)
    assert desk.error()[0] == "TIMEOUT"


def test_a_cancelled_execution_ends_after_a_restart_too() -> None:
    desk = Desk()
    desk.start()
    desk.take(desk.session())
    desk.cancel()
    desk.restart()
    desk.pass_ms(30_000)
    assert desk.status() == "CANCELLED"


# Executions


def test_starting_an_execution_twice_starts_one() -> None:
    desk = Desk()
    assert desk.core.start("Greet", {}, "e1", desk.now) == ("e1", True)
    assert desk.core.start("Greet", {}, "e1", desk.now) == ("e1", False)
    assert len(desk.executions()) == 1


@pytest.mark.parametrize(
    ("name", "execution_id", "status", "code"),
    [("Nope", "e1", 404, "UNKNOWN_WORKFLOW"), ("Greet", " ", 400, "INVALID_REQUEST")],
)
def test_what_cannot_be_started(name: str, execution_id: str, status: int, code: str) -> None:
    with pytest.raises(Refused) as caught:
        Desk().start(execution_id, name)
    assert (caught.value.status, caught.value.code) == (status, code)


def test_input_is_validated_and_completed_by_the_contract() -> None:
    schema = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "times": {"type": "integer", "default": 1}},
    }
    desk = Desk(workflow(input=schema))
    with pytest.raises(Refused) as caught:
        desk.start(value={})
    assert (caught.value.status, caught.value.code) == (400, "INVALID_REQUEST")
    assert "at $.name: missing required field `name` of type String" in caught.value.message
    desk.start(value={"name": "Ada"})
    assert desk.take(desk.session()).input == {"name": "Ada", "times": 1}


def test_an_unknown_execution_is_not_found() -> None:
    with pytest.raises(Refused) as caught:
        Desk().execution("nope")
    assert (caught.value.status, caught.value.code) == (404, "UNKNOWN_EXECUTION")


def test_finished_executions_are_kept_up_to_a_limit() -> None:
    desk = Desk()
    session = desk.session()
    for number in range(FINISHED_LIMIT + 2):
        desk.start(f"e{number}")
        desk.complete(desk.take(session).token)
    assert len(desk.executions()) == FINISHED_LIMIT
    assert desk.core.take_changed()["e0"] is None
