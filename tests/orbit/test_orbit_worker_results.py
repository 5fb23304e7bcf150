"""Results on their way: who refuses them, too large ones, those known already, those of a dead process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kiwi_worker.orbit import TaskContext, TaskError
from kiwi_worker.testing import EmptyBody, MisbehavingServer, Status, TooManyRequests

from .workers import LIMIT_SECONDS, UNKNOWN_SESSION, Server, echo, serving

HTML = b"<html><body>sorry</body></html>"
VERSION = (("x-orbit-api-version", "orbit-api/1"),)


@pytest.mark.parametrize(
    "answer",
    [
        Status(400, body=HTML, content_type="text/html"),
        Status(404, body=HTML, content_type="text/html"),
        Status(403, body=b'{"message": "blocked"}'),
        Status(200, body=HTML, content_type="text/html"),
        Status(200, body=b"{}"),
        Status(302, headers=(("location", "/login"),)),
        EmptyBody(),
        Status(429),
        Status(408),
    ],
    ids=lambda answer: f"{answer.status}-{len(getattr(answer, 'body', b''))}",
)
def test_what_only_a_proxy_says_of_a_result_is_not_final(server: Server, answer: Any) -> None:
    server.fault("complete", answer, times=2)
    with serving(server, echo):
        server.assert_completed_once(server.enqueue_task("job", input={"n": 1}), {"n": 1})
    assert len(server.calls_named("complete")) == 3


@pytest.mark.parametrize(
    "answer",
    [
        Status(400, body=b"Failed to parse the request body", content_type="text/plain; charset=utf-8"),
        Status(422, body=b"missing field `token`", content_type="text/plain"),
        Status(404, body=UNKNOWN_SESSION),
        Status(409, headers=VERSION),
        Status(410, headers=VERSION),
        Status(200, body=b'{"accepted": false, "reason": null}'),
    ],
    ids=lambda answer: str(answer.status),
)
def test_what_the_runtime_says_of_a_result_is_final(
    server: Server, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server.fault("complete", answer, times="always")
    with serving(server, echo):
        server.enqueue_task("job", input={})
        server.wait_for_calls("complete")
    assert len(server.calls_named("complete")) == 1
    assert "that is final" in caplog.text


def test_a_pause_that_is_asked_for_is_kept(server: Server) -> None:
    server.fault("complete", TooManyRequests(1))
    with serving(server, echo):
        server.assert_completed_once(server.enqueue_task("job", input={}))
    first, second = server.calls_named("complete")
    assert second.received_at - first.received_at >= 1


def test_a_failure_too_large_loses_its_details_and_stays_what_it_is() -> None:
    def handle(input: dict[str, Any]) -> dict[str, Any]:
        raise TaskError("NO_STOCK", "m" * 5000, retryable=False, details={"x": "y" * 5000})

    with MisbehavingServer.orbit(largest_body_bytes=3000) as small, serving(small, handle):
        result = small.wait_for_result(small.enqueue_task("job", input={}), LIMIT_SECONDS)
    assert len(small.calls_named("fail")) == 2
    assert {name: result.body[name] for name in ("error_code", "retryable")} == {
        "error_code": "NO_STOCK",
        "retryable": False,
    }
    assert "details" not in result.body


def test_a_failure_that_stays_too_large_is_final() -> None:
    def handle(input: dict[str, Any]) -> dict[str, Any]:
        raise TaskError("NO_STOCK", "m" * 500)

    with MisbehavingServer.orbit(largest_body_bytes=300) as small, serving(small, handle):
        small.enqueue_task("job", input={})
        small.wait_for_calls("fail")
    assert len(small.calls_named("fail")) == 1


def test_an_attempt_whose_outcome_is_known_and_not_answered_is_not_run_again(server: Server) -> None:
    runs = []

    def handle(input: dict[str, Any]) -> dict[str, Any]:
        runs.append(input)
        return {"n": len(runs)}

    refused = server.fault("complete", Status(503), times="always")
    with serving(server, handle, report_limit=0.3):
        task = server.enqueue_task("job", input={})
        server.wait_for_calls("complete")
        # Nobody reported within one session time-out, so it is delivered again.
        server.forget_sessions()
        server.wait_for_token(task, 2)
        server.wait_until(
            lambda: (
                {json.loads(call.body)["token"] for call in server.calls_named("complete")}
                == set(server._board.deliveries)
            )
        )
        refused.disarm()
        server.assert_completed_once(task, {"n": 1})
        server.wait_until(lambda: len(server.results_of(task)) == 2)
    assert len(runs) == 1


def test_a_task_error_that_a_cancelled_handler_chose_is_reported(server: Server) -> None:
    def handle(input: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
        ctx.cancelled.wait(LIMIT_SECONDS)
        if input["chooses"]:
            raise TaskError("ROLLED_BACK", retryable=False)
        raise RuntimeError("interrupted")

    expected = {True: "ROLLED_BACK", False: "CANCELLED"}
    with serving(server, handle):
        for chooses, code in expected.items():
            task = server.enqueue_task("job", input={"chooses": chooses})
            server.wait_for_token(task)
            server.cancel(task)
            assert server.wait_for_result(task, LIMIT_SECONDS).body["error_code"] == code


def test_a_passed_step_timeout_is_told_and_not_reported_and_a_late_success_is_sent(server: Server) -> None:
    seen: list[int | None] = []

    def handle(input: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
        seen.append(ctx.remaining_ms())
        assert ctx.cancelled.wait(LIMIT_SECONDS)
        seen.append(ctx.remaining_ms())
        return {"late": True}

    with serving(server, handle):
        task = server.enqueue_task("job", input={}, timeout_ms=400)
        server.wait_until(lambda: server.results_of(task))
    assert seen[0] is not None
    assert 0 < seen[0] <= 400
    assert seen[1] == 0
    assert [result.call for result in server.results_of(task)] == ["complete"]


def test_text_that_is_no_unicode_and_details_without_json_cost_no_report(server: Server) -> None:
    def handle(input: dict[str, Any]) -> dict[str, Any]:
        if input["task_error"]:
            raise TaskError("BAD", "half \ud800", details={"x": float("nan")})
        raise ValueError("half \ud800 of a character")

    with serving(server, handle):
        for is_task_error in (True, False):
            task = server.enqueue_task("job", input={"task_error": is_task_error})
            body = server.wait_for_result(task, LIMIT_SECONDS).body
            assert body["error_message"].startswith("half ?")


PROGRAM = """
import sys
from kiwi_worker.orbit import OrbitWorker

worker = OrbitWorker(server=sys.argv[1], worker_id="w", journal=sys.argv[2], poll_wait=1, grace_period=1)

@worker.task("job", version="1.0.0")
def job(input: dict) -> dict:
    print("ran", flush=True)
    return {"by": sys.argv[3]}

worker.run()
"""


def test_a_result_that_was_not_delivered_survives_the_death_of_the_process(
    server: Server, tmp_path: Path
) -> None:
    def start(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, server.url, str(tmp_path / "journal"), name]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])

    refused = server.fault("complete", Status(503), times="always")
    task = server.enqueue_task("job", input={})
    first = start("first")
    server.wait_for_calls("complete", timeout=LIMIT_SECONDS)
    os.kill(first.pid, signal.SIGKILL)
    refused.disarm()
    second = start("second")
    try:
        server.assert_completed_once(task, {"by": "first"}, timeout=LIMIT_SECONDS)
    finally:
        second.terminate()
        runs = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in (first, second)]
    assert runs == ["ran\n", ""]


def test_what_is_not_delivered_at_the_end_is_said_and_not_clean(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.fault("complete", Status(503), times="always")
    worker_done = threading.Event()

    def handle(input: dict[str, Any]) -> dict[str, Any]:
        worker_done.set()
        return {}

    with serving(server, handle, grace_period=0.3, report_limit=0.2) as worker:
        server.enqueue_task("job", input={})
        assert worker_done.wait(LIMIT_SECONDS)
        server.wait_for_calls("complete")
        assert not worker.stop()
    assert "could not be delivered" in caplog.text
    assert len(server.unregistered) == 1
