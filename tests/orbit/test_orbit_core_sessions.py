"""Registration, sessions, polls and matching, row by row of the page's tables."""

from __future__ import annotations

import pytest

from kiwi_worker.orbit.runtime.identities import Caller, Identity
from kiwi_worker.orbit.runtime.model import Contract
from kiwi_worker.orbit.runtime.refusal import Refused

from .desk import GREETING, Desk, workflow

RUBY = Caller("worker", Identity("ruby-1", runtime="ruby", tasks=("greeting.*",)))


def refused(caught: pytest.ExceptionInfo[Refused]) -> tuple[int, str, str]:
    return caught.value.status, caught.value.code, caught.value.message


@pytest.mark.parametrize(
    ("session_timeout_ms", "interval_ms"), [(30_000, 5000), (60_000, 10_000), (3_000, 500), (600, 500)]
)
def test_the_heartbeat_interval_is_a_sixth_of_the_session_timeout_and_at_least_500(
    session_timeout_ms: int, interval_ms: int
) -> None:
    answer = Desk(session_timeout_ms=session_timeout_ms).register()
    assert answer.accepted
    assert (answer.heartbeat_interval_ms, answer.session_timeout_ms) == (interval_ms, session_timeout_ms)


def test_every_registration_opens_a_new_session_and_many_may_share_a_worker_id() -> None:
    desk = Desk()
    first, second = desk.session("w"), desk.session("w")
    assert first != second
    assert desk.heartbeat(first) == desk.heartbeat(second) == []
    [(worker, sessions)] = desk.core.workers(desk.now)
    assert (worker.worker_id, len(sessions)) == ("w", 2)


@pytest.mark.parametrize("worker_id", ["", "  ", "\t"])
def test_a_blank_worker_id_is_an_invalid_request(worker_id: str) -> None:
    with pytest.raises(Refused) as caught:
        Desk().register(worker_id)
    assert refused(caught)[:2] == (400, "INVALID_REQUEST")


def test_empty_contracts_are_an_invalid_request() -> None:
    from kiwi_worker.orbit.runtime.identities import ADMIN
    from kiwi_worker.orbit.runtime.messages import Registration

    desk = Desk()
    with pytest.raises(Refused) as caught:
        desk.core.register(ADMIN, Registration("w", "python", ()), desk.now)
    assert refused(caught)[:2] == (400, "INVALID_REQUEST")


@pytest.mark.parametrize("task_name", ["orbit.http", "orbit.", "Greet"])
def test_built_in_tasks_and_workflow_names_are_reserved(task_name: str) -> None:
    with pytest.raises(Refused) as caught:
        Desk().register("w", Contract(task_name, "1.0.0"))
    assert refused(caught)[:2] == (400, "RESERVED_TASK")


def test_a_contract_version_that_no_workflow_uses_is_warned_about() -> None:
    answer = Desk().register("w", GREETING, Contract("greeting.compose", "2.0.0"))
    assert answer.accepted
    assert answer.warnings == ["no registered workflow uses task `greeting.compose` version `2.0.0`"]


@pytest.mark.parametrize(
    ("worker_id", "runtime", "task", "message"),
    [
        ("ruby-2", "ruby", "greeting.compose", "this credential belongs to worker `ruby-1`, not `ruby-2`"),
        ("ruby-1", "python", "greeting.compose", "worker `ruby-1` must announce runtime `ruby`"),
        (
            "ruby-1",
            "ruby",
            "payments.charge",
            "worker `ruby-1` may not serve: payments.charge (allowed: greeting.*)",
        ),
    ],
)
def test_an_identity_registers_only_what_is_its_own(
    worker_id: str, runtime: str, task: str, message: str
) -> None:
    with pytest.raises(Refused) as caught:
        Desk().register(worker_id, Contract(task, "1.0.0"), runtime=runtime, caller=RUBY)
    assert refused(caught) == (403, "FORBIDDEN", message)


def test_an_identity_may_announce_its_runtime_in_any_case() -> None:
    assert Desk().register("ruby-1", GREETING, runtime="Ruby", caller=RUBY).accepted


@pytest.mark.parametrize("call", ["poll", "heartbeat", "unregister"])
def test_an_identity_uses_only_its_own_sessions(call: str) -> None:
    desk = Desk()
    session = desk.session("other")
    with pytest.raises(Refused) as caught:
        getattr(desk, call)(session, caller=RUBY)
    assert refused(caught) == (403, "FORBIDDEN", "session belongs to worker `other`, not `ruby-1`")


@pytest.mark.parametrize("call", ["complete", "fail"])
def test_an_identity_reports_only_its_own_tokens(call: str) -> None:
    desk = Desk()
    desk.start()
    token = desk.take(desk.session("other")).token
    with pytest.raises(Refused) as caught:
        getattr(desk, call)(token, caller=RUBY)
    assert refused(caught) == (403, "FORBIDDEN", "task token was issued to worker `other`, not `ruby-1`")


@pytest.mark.parametrize("call", ["poll", "heartbeat"])
def test_an_unknown_session_is_told_to_register_again(call: str) -> None:
    with pytest.raises(Refused) as caught:
        getattr(Desk(), call)("nope")
    text = "unknown or expired worker session; register again"
    assert refused(caught) == (404, "UNKNOWN_SESSION", text)


def test_unregister_has_its_own_words_for_an_unknown_session() -> None:
    with pytest.raises(Refused) as caught:
        Desk().unregister("nope")
    assert refused(caught) == (404, "UNKNOWN_SESSION", "unknown worker session")


def test_a_session_ends_after_silence_longer_than_its_timeout() -> None:
    desk = Desk()
    session = desk.session()
    desk.pass_ms(30_000)
    assert desk.heartbeat(session) == []
    desk.pass_ms(30_001)
    with pytest.raises(Refused):
        desk.heartbeat(session)


@pytest.mark.parametrize("contact", ["poll", "heartbeat", "complete", "fail"])
def test_polls_heartbeats_and_results_count_as_contact(contact: str) -> None:
    desk = Desk()
    session = desk.session()
    desk.start()
    token = desk.take(session).token
    desk.pass_ms(20_000)
    getattr(desk, contact)(session if contact in ("poll", "heartbeat") else token)
    desk.pass_ms(20_000)
    assert desk.heartbeat(session) == []


def test_a_worker_is_listed_as_offline_when_its_sessions_are_gone() -> None:
    desk = Desk()
    desk.session("w")
    desk.pass_ms(40_000)
    [(worker, sessions)] = desk.core.workers(desk.now)
    assert (worker.worker_id, sessions) == ("w", [])


@pytest.mark.parametrize(("wait_ms", "waits"), [(None, 20_000), (1, 1), (60_000, 60_000), (90_000, 60_000)])
def test_a_poll_waits_20_s_by_default_and_60_s_at_most(wait_ms: int | None, waits: int) -> None:
    desk = Desk(session_timeout_ms=100_000)
    poll = desk.poll(desk.session(), wait_ms)
    desk.pass_ms(waits - 1)
    assert not poll.done
    desk.pass_ms(1)
    assert (poll.done, poll.assignment, poll.refused) == (True, None, None)


def test_a_waiting_poll_is_answered_as_soon_as_a_task_matches() -> None:
    desk = Desk()
    first, second = desk.poll(desk.session("a"), 20_000), desk.poll(desk.session("b"), 20_000)
    desk.start()
    assert first.assignment is not None
    assert not second.done
    assert first in desk.core.take_answered()


def test_a_withdrawn_poll_takes_no_task() -> None:
    desk = Desk()
    session = desk.session()
    gone = desk.poll(session, 20_000)
    desk.core.withdraw(gone)
    desk.start()
    assert gone.assignment is None
    assert desk.take(session).execution_id == "e1"


def test_a_waiting_poll_of_a_lost_session_is_told_to_register() -> None:
    desk = Desk()
    poll = desk.poll(desk.session(), 60_000)
    desk.pass_ms(30_001)
    assert poll.refused is not None
    assert poll.refused.code == "UNKNOWN_SESSION"


@pytest.mark.parametrize(
    ("announced", "matches"),
    [
        (GREETING, True),
        (Contract("greeting.compose", "1.0.1"), False),
        (Contract("greeting.Compose", "1.0.0"), False),
        (Contract("greeting.compos", "1.0.0"), False),
    ],
)
def test_a_task_matches_its_exact_name_and_version(announced: Contract, matches: bool) -> None:
    desk = Desk()
    desk.start()
    assert (desk.poll(desk.session("w", announced)).assignment is not None) is matches


@pytest.mark.parametrize(
    ("using", "runtime", "matches"),
    [
        (None, "python", True),
        ("any", "python", True),
        ("python", "python", True),
        ("Python", "PYTHON", True),
        ("ruby", "python", False),
    ],
)
def test_using_names_a_runtime_or_any(using: str | None, runtime: str, matches: bool) -> None:
    desk = Desk(workflow() if using is None else workflow(using=using))
    desk.start()
    assert (desk.poll(desk.session(runtime=runtime)).assignment is not None) is matches


def test_the_oldest_scheduled_task_goes_first_whatever_its_kind() -> None:
    desk = Desk(workflow("A", task="a", using="python"), workflow("B", task="b"))
    for number, name in enumerate("BABBA"):
        desk.start(f"e{number}", name)
        desk.pass_ms(1)
    session = desk.session("w", Contract("a", "1.0.0"), Contract("b", "1.0.0"))
    assert [desk.take(session).execution_id for _ in range(5)] == ["e0", "e1", "e2", "e3", "e4"]


def test_tasks_of_the_same_moment_go_in_the_order_they_came() -> None:
    desk = Desk()
    for number in range(5):
        desk.start(f"e{number}")
    session = desk.session()
    assert [desk.take(session).execution_id for _ in range(5)] == ["e0", "e1", "e2", "e3", "e4"]


def test_an_assignment_holds_every_field_of_the_page() -> None:
    desk = Desk(workflow(timeout="30s"), workflow("Free"))
    session = desk.session()
    desk.start("e1", value={"name": "Ada"})
    task = desk.take(session)
    assert (task.execution_id, task.workflow, task.workflow_version) == ("e1", "Greet", "1.0.0")
    assert (task.step_id, task.task_name, task.contract_version) == ("compose", "greeting.compose", "1.0.0")
    assert (task.input, task.idempotency_key) == ({"name": "Ada"}, "e1/compose")
    assert (task.attempt, task.redelivery) == (1, False)
    assert (task.deadline_ms, task.timeout_ms) == (desk.now + 30_000, 30_000)


def test_deadline_and_timeout_are_absent_without_a_timeout() -> None:
    import msgspec

    desk = Desk()
    desk.start()
    fields = msgspec.to_builtins(desk.take(desk.session()))
    assert not {"deadline_ms", "timeout_ms"} & set(fields)


def test_everything_is_refused_while_the_runtime_is_not_the_leader() -> None:
    desk = Desk()
    session = desk.session()
    desk.core.leader = False
    with pytest.raises(Refused) as caught:
        desk.heartbeat(session)
    assert refused(caught)[:2] == (503, "NOT_LEADER")
