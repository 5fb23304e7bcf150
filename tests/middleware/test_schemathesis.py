"""Schemathesis against the middleware: what it sends is made of the description, as is what it expects.

10 cases of each kind to every operation; `SOAK_EXAMPLES` says how many instead.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi import checks  # noqa: E402

from kiwi_worker.testing.middleware import MiddlewareProcess, running_middleware  # noqa: E402

from .conftest import Workers  # noqa: E402
from .plain_worker import PlainWorker  # noqa: E402

EXAMPLES = int(os.environ.get("SOAK_EXAMPLES", "10"))
LONGEST_WAIT_SECONDS = 0.01
OPERATIONS = [
    "POST /worker/auth_token",
    "POST /worker/registration",
    "GET /worker/messages",
    "PUT /worker/lock_request/{request_id}",
    "POST /worker/response",
    "POST /worker/feedback",
    "GET /worker/heartbeat/{worker_id}",
    "PUT /worker/notify_worker_shutdown/{worker_id}",
    "POST /client/auth_token",
    "POST /client/call/{service}/{method}",
    "GET /client/calls/{request_id}",
    "DELETE /client/calls/{request_id}",
    "GET /client/calls/{request_id}/feedback",
    "GET /client/workers",
    "GET /client/methods",
    "GET /health",
]
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.positive_data_acceptance,
    checks.ignored_auth,
]

pytestmark = pytest.mark.timeout(120 + 2 * EXAMPLES)


class Stage:
    """A service with calls in every state, for operations that are about one; one worker, one client."""

    def __init__(self, middleware: MiddlewareProcess, worker: PlainWorker, caller: PlainWorker) -> None:
        self.worker, self.caller, self.service_id = worker, caller, middleware.service_id
        form = {"grant_type": "client_credentials", "service_id": self.service_id}
        answer = caller.post_form("/client/auth_token", {**form, "auth_secret": middleware.client_secret})
        caller.token = answer[1]["access_token"]
        self.secrets = {"worker": worker.secret, "client": middleware.client_secret}
        self.ended = self._call()
        self.caller.call("DELETE", f"/client/calls/{self.ended}")
        self.prepare()

    def prepare(self) -> None:
        """The worker is registered; a call waits, another one is in the worker's hands."""
        self.worker.call("POST", "/worker/registration", self.worker.registration("m"))
        self.drained = self._call()
        self.worker.call("GET", "/worker/messages")
        self.waiting = self._call()

    def _call(self) -> str:
        path = f"/client/call/{self.service_id}/m?wait=0&lock=true"
        identity: str = self.caller.call("POST", path)[1]["request_id"]
        return identity

    def token(self, role: str) -> str:
        """The token of a role."""
        return self.worker.token if role == "worker" else self.caller.token

    def known(self, case: Any) -> dict[str, st.SearchStrategy[str]]:
        """Values that mean something here, by the name of the parameter or field."""
        follows = case.path.endswith("/feedback") and case.method == "GET"
        # Only of what has ended there is an end of feedback.
        requests = st.sampled_from([self.ended] if follows else [self.drained, self.waiting, self.ended])
        role = "client" if case.path.startswith("/client") else "worker"
        return {
            "request_id": requests,
            "rid": requests,
            "service": st.just(self.service_id),
            "service_id": st.just(self.service_id),
            "worker_id": st.just(self.worker.worker_id),
            "auth_secret": st.just(self.secrets[role]),
        }


@pytest.fixture(scope="module")
def shared() -> Iterator[MiddlewareProcess]:
    """One in which nothing hangs for long."""
    with running_middleware(max_wait=1) as middleware:
        yield middleware


@pytest.fixture(scope="module")
def described(shared: MiddlewareProcess) -> Any:
    return schemathesis.openapi.from_url(shared.url + "/openapi.json")


@pytest.fixture
def stage(middleware: MiddlewareProcess, workers: Workers) -> Stage:
    return Stage(middleware, workers(middleware), workers(middleware, "caller"))


def operation_named(described: Any, label: str) -> Any:
    found = {result.ok().label: result.ok() for result in described.get_all_operations()}
    assert sorted(found) == sorted(OPERATIONS)
    return found[label]


@pytest.mark.parametrize(
    ("label", "mode"),
    [
        pytest.param(label, mode, id=f"{label} {mode.value}")
        for label in OPERATIONS
        for mode in GenerationMode
        if (label, mode) != ("GET /health", GenerationMode.NEGATIVE)  # it takes nothing that could be wrong
    ],
)
def test_the_middleware_does_as_described(described: Any, stage: Stage, label: str, mode: Any) -> None:
    operation = operation_named(described, label)
    number = random.randrange(2**32) if "SOAK_EXAMPLES" in os.environ else 4711
    print(f"seed {number}")
    role = "client" if "/client/" in label else "worker"
    headers = {"Authorization": f"Bearer {stage.token(role)}"}

    @seed(number)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    def try_it(case: Any, data: st.DataObject) -> None:
        stage.prepare()
        put_known_values_in(case, stage.known(case), data)
        keep_waits_short(case)
        case.call_and_validate(headers=headers, checks=CHECKS, timeout=20)

    try_it()


def put_known_values_in(case: Any, known: dict[str, st.SearchStrategy[str]], data: st.DataObject) -> None:
    body = case.body if isinstance(case.body, dict) else {}
    for name, value in body.items():
        if isinstance(value, float) and value.is_integer():
            body[name] = int(value)  # 1.0 is an integer for JSON schema, which nobody writes for one
    for values in (case.path_parameters or {}, body):
        for name in sorted(known.keys() & values.keys()):
            if data.draw(st.integers(0, 3)):
                values[name] = data.draw(known[name])


def keep_waits_short(case: Any) -> None:
    """A call waits unless it is told otherwise, and nothing here is there to wait for."""
    if all(parameter.name != "wait" for parameter in case.operation.query):
        return
    query = case.query = case.query or {}
    waits = query.get("wait", LONGEST_WAIT_SECONDS)
    # What is no number stays: it is there to be refused.
    is_number = isinstance(waits, (int, float)) and not isinstance(waits, bool)
    query["wait"] = min(waits, LONGEST_WAIT_SECONDS) if is_number else waits
