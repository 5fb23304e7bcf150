"""The ORBIT side: sessions, tokens, results, and the faults that matter most there."""

from __future__ import annotations

import threading

import pytest

from kiwi_worker.testing import ExpiredToken, Html502, MisbehavingServer, OrbitServer, Redeliver, Stall

from .conftest import LIMIT, OrbitClient


def test_register_tells_session_and_times(orbit: OrbitServer, orbit_worker: OrbitClient) -> None:
    answer = orbit_worker.register()
    assert (answer["accepted"], answer["heartbeat_interval_ms"], answer["session_timeout_ms"]) == (
        True,
        5000,
        30000,
    )
    assert orbit.sessions[answer["worker_session_id"]] == "o1"
    assert len(orbit.registrations) == 2


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"worker_id": " ", "runtime": "python", "contracts": [{}]}, 400, "INVALID_REQUEST"),
        ({"worker_id": "o1", "runtime": "python", "contracts": []}, 400, "INVALID_REQUEST"),
        (
            {"worker_id": "o1", "runtime": "python", "contracts": [{"task_name": "orbit.x"}]},
            400,
            "RESERVED_TASK",
        ),
    ],
)
def test_registrations_that_are_refused(
    orbit_worker: OrbitClient, fields: dict[str, object], status: int, code: str
) -> None:
    found, answer = orbit_worker.post("workers/register", **fields)
    assert (found, answer["error"]["code"]) == (status, code)


def test_requests_that_are_no_requests(orbit_worker: OrbitClient) -> None:
    assert orbit_worker.post("tasks/complete")[0] == 422
    assert orbit_worker.call("POST", "/v1/workers/poll", b"{")[0].status == 400
    assert (
        orbit_worker.call("POST", "/v1/workers/poll", b"{}", **{"content-type": "text/plain"})[0].status
        == 415
    )
    status, answer = orbit_worker.post("tasks/complete", token="")
    assert (status, answer["error"]["code"]) == (400, "INVALID_REQUEST")
    assert orbit_worker.post("tasks/complete", token="x", output=[1])[0] == 422
    assert orbit_worker.post("tasks/other")[0] == 404


def test_a_large_body_is_413() -> None:
    with MisbehavingServer.orbit(largest_body_bytes=100) as server:
        client = OrbitClient(server)
        assert client.post("tasks/complete", token="x" * 200)[0] == 413
        client.close()


def test_authentication_and_its_missing_header() -> None:
    with MisbehavingServer.orbit(token="t1") as server:
        client = OrbitClient(server)
        answer, _ = client.call("POST", "/v1/workers/register", b"{}")
        assert (answer.status, answer.getheader("x-orbit-api-version")) == (401, None)
        client.headers["authorization"] = "Bearer t1"
        answer, _ = client.call("POST", "/v1/workers/register", b"{}")
        assert (answer.status, answer.getheader("x-orbit-api-version")) == (422, "orbit-api/1")
        server.fault("poll", ExpiredToken())
        assert client.call("POST", "/v1/workers/poll", b"{}")[0].status == 401
        assert client.call("POST", "/v1/workers/poll", b"{}")[0].status == 401
        server.change_token("t2")
        client.headers["authorization"] = "Bearer t2"
        assert client.call("POST", "/v1/workers/poll", b"{}")[0].status == 422
        client.close()


def test_a_task_is_handed_out_and_completed(orbit: OrbitServer, orbit_worker: OrbitClient) -> None:
    execution_id = orbit.enqueue_task("t", input={"a": 1}, timeout_ms=60000)
    status, task = orbit_worker.poll()
    assert status == 200
    assert task["input"] == {"a": 1}
    assert task["idempotency_key"] == f"{execution_id}/step"
    assert (task["attempt"], task["redelivery"], task["timeout_ms"]) == (1, False, 60000)
    assert orbit_worker.post("tasks/complete", token=task["token"], output={"b": 2}) == (
        200,
        {"accepted": True},
    )
    assert orbit.wait_for_result(execution_id).body["output"] == {"b": 2}
    assert orbit.assert_completed_once(execution_id, {"b": 2}).body["token"] == task["token"]
    assert orbit_worker.post("tasks/complete", token=task["token"], output={})[1] == {
        "accepted": False,
        "reason": "duplicate result; step already resolved",
    }
    with pytest.raises(AssertionError, match="was not completed once"):
        orbit.assert_completed_once(execution_id)


def test_a_poll_matches_name_version_and_runtime(orbit: OrbitServer, orbit_worker: OrbitClient) -> None:
    orbit.enqueue_task("t", "2.0.0")
    orbit.enqueue_task("other")
    orbit.enqueue_task("t", runtime="ruby")
    assert orbit_worker.poll(wait_ms=1)[0] == 204
    orbit.enqueue_task("t", runtime="python")
    assert orbit_worker.poll()[0] == 200


def test_a_poll_hangs_until_a_task_comes(orbit: OrbitServer, orbit_worker: OrbitClient) -> None:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(orbit_worker.poll(60000)[1]))
    thread.start()
    orbit.wait_for_calls("poll", ended=False)
    execution_id = orbit.enqueue_task("t")
    thread.join(LIMIT)
    assert orbit.wait_for_token(execution_id) in str(found)


def test_a_retryable_failure_is_tried_again_and_the_old_token_is_stale(
    orbit: OrbitServer, orbit_worker: OrbitClient
) -> None:
    execution_id = orbit.enqueue_task("t", max_attempts=2)
    first = orbit_worker.poll()[1]["token"]
    assert orbit_worker.post("tasks/fail", token=first, error_code="BUSY")[1] == {"accepted": True}
    second = orbit_worker.poll()[1]
    assert (second["attempt"], second["redelivery"]) == (2, False)
    assert orbit_worker.post("tasks/fail", token=first, error_code="X")[1]["reason"] == "stale attempt"
    assert orbit_worker.post("tasks/complete", token=second["token"])[1] == {"accepted": True}
    assert orbit.assert_completed_once(execution_id).attempt == 2


def test_a_final_failure_is_an_outcome(orbit: OrbitServer, orbit_worker: OrbitClient) -> None:
    execution_id = orbit.enqueue_task("t", max_attempts=5)
    token = orbit_worker.poll()[1]["token"]
    orbit_worker.post("tasks/fail", token=token, error_code="X", retryable=False)
    assert orbit.wait_for_result(execution_id).call == "fail"
    assert orbit_worker.poll(wait_ms=1)[0] == 204
    with pytest.raises(AssertionError, match="was not completed once"):
        orbit.assert_completed_once(execution_id)


def test_an_output_can_violate_its_contract(orbit: OrbitServer, orbit_worker: OrbitClient) -> None:
    orbit.refuse_outputs("t")
    execution_id = orbit.enqueue_task("t")
    answer = orbit_worker.post("tasks/complete", token=orbit_worker.poll()[1]["token"], output={})[1]
    assert answer == {"accepted": False, "reason": "output violates the task contract"}
    assert orbit.wait_for_result(execution_id).accepted is False


def test_unknown_tokens_are_answered_and_not_accepted(orbit_worker: OrbitClient) -> None:
    for call in ("complete", "fail"):
        answer = orbit_worker.post(f"tasks/{call}", token="nonsense", error_code="X")[1]
        assert answer["reason"] == "unknown token (execution finished or token invalid)"


def test_a_cancelled_token_is_listed_once(orbit: OrbitServer, orbit_worker: OrbitClient) -> None:
    execution_id = orbit.enqueue_task("t")
    token = orbit_worker.poll()[1]["token"]
    orbit.cancel(token)
    orbit.cancel(execution_id)
    assert orbit_worker.heartbeat() == (200, {"accepted": True, "cancel": [token]})
    assert orbit_worker.heartbeat() == (200, {"accepted": True, "cancel": []})
    assert len(orbit.heartbeats) == 2
    with pytest.raises(LookupError, match="nothing was delivered"):
        orbit.cancel("nonsense")


def test_a_timed_out_attempt_is_cancelled_and_tried_again(
    orbit: OrbitServer, orbit_worker: OrbitClient
) -> None:
    execution_id = orbit.enqueue_task("t", timeout_ms=20, max_attempts=2)
    first = orbit_worker.poll()[1]["token"]
    assert orbit_worker.poll()[1]["attempt"] == 2
    assert first in orbit_worker.heartbeat()[1]["cancel"]
    assert orbit_worker.post("tasks/complete", token=first)[1] == {"accepted": True}
    assert orbit.wait_for_result(execution_id).attempt == 1


def test_forgotten_sessions_are_unknown_and_their_results_accepted(
    orbit: OrbitServer, orbit_worker: OrbitClient
) -> None:
    execution_id = orbit.enqueue_task("t")
    token = orbit_worker.poll()[1]["token"]
    orbit.forget_sessions()
    for status, answer in (orbit_worker.poll(), orbit_worker.heartbeat()):
        assert (status, answer["error"]["code"]) == (404, "UNKNOWN_SESSION")
    assert orbit_worker.post("tasks/complete", token=token)[1] == {"accepted": True}
    orbit.assert_completed_once(execution_id)


def test_a_restart_redelivers_what_nobody_reported() -> None:
    with MisbehavingServer.orbit(session_timeout_seconds=0.3) as server:
        client = OrbitClient(server)
        client.register()
        server.enqueue_task("t")
        client.poll()
        server.forget_sessions()
        client.register()
        task = client.poll()[1]
        assert (task["attempt"], task["redelivery"]) == (1, True)
        client.close()


def test_a_silent_session_ends_and_its_attempt_is_redelivered() -> None:
    with MisbehavingServer.orbit(session_timeout_seconds=0.3) as server:
        client, other = OrbitClient(server), OrbitClient(server)
        client.register()
        server.enqueue_task("t")
        first = client.poll()[1]
        other.register()
        second = other.poll()[1]
        assert (second["attempt"], second["redelivery"]) == (1, True)
        assert second["idempotency_key"] == first["idempotency_key"]
        assert second["token"] != first["token"]
        client.close()
        other.close()


def test_unregister_redelivers_at_once(orbit: OrbitServer, orbit_worker: OrbitClient) -> None:
    orbit.enqueue_task("t")
    orbit_worker.poll()
    session = {"worker_session_id": orbit_worker.session_id}
    assert orbit_worker.post("workers/unregister", **session) == (200, {"accepted": True})
    status, answer = orbit_worker.post("workers/unregister", **session)
    assert (status, answer["error"]["message"]) == (404, "unknown worker session")
    orbit_worker.register()
    assert orbit_worker.poll()[1]["redelivery"] is True
    assert orbit.unregistered == ["o1"]


def test_redeliver_hands_out_the_same_attempt_under_a_new_token(
    orbit: OrbitServer, orbit_worker: OrbitClient
) -> None:
    execution_id = orbit.enqueue_task("t")
    orbit.fault("poll", Redeliver())
    first, second = orbit_worker.poll()[1], orbit_worker.poll()[1]
    assert (first["redelivery"], second["redelivery"]) == (False, True)
    assert orbit.tokens(execution_id) == [first["token"], second["token"]]
    assert first["attempt"] == second["attempt"]
    for task in (first, second):
        orbit_worker.post("tasks/complete", token=task["token"], output={"x": 1})
    orbit.assert_completed_once(execution_id, {"x": 1})


def test_faults_know_the_calls_of_this_protocol(orbit: OrbitServer, orbit_worker: OrbitClient) -> None:
    orbit.fault("poll", Html502())
    assert orbit_worker.poll()[0] == 502
    armed = orbit.fault("complete", Stall(0.01), after=True)
    orbit_worker.post("tasks/complete", token="x")
    assert armed.struck == 1
    with pytest.raises(ValueError, match="no call is named 'drain'"):
        orbit.fault("drain", Html502())
