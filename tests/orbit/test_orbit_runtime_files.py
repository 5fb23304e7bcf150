"""What the dev runtime reads: deployments, schemas, workers files, options, its store."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import stat
from pathlib import Path
from typing import Any

import pytest

from kiwi_worker.errors import SettingsError
from kiwi_worker.orbit.runtime.deployment import deployed_lines, load_deployment, parse_deployment
from kiwi_worker.orbit.runtime.durations import duration_ms
from kiwi_worker.orbit.runtime.identities import Credentials, Identity, load_identities
from kiwi_worker.orbit.runtime.model import Contract
from kiwi_worker.orbit.runtime.options import RuntimeOptions
from kiwi_worker.orbit.runtime.refusal import Refused
from kiwi_worker.orbit.runtime.schema import Mismatch, check_schema, conform
from kiwi_worker.orbit.runtime.store import SqliteStore

from .desk import Desk, workflow


def test_the_page_s_workflow_is_read_as_it_says(greet: Path) -> None:
    step = load_deployment(greet)["Greet"].step
    assert (step.name, step.contract) == ("compose", Contract("greeting.compose", "1.0.0"))
    assert (step.using, step.timeout_ms) == ("ruby", 30_000)
    assert (step.retry.attempts, step.retry.backoff, step.retry.initial_delay_ms) == (3, "fixed", 1000)
    assert step.retry.non_retryable == ("INVALID_NAME",)


def test_a_deployment_is_told_in_the_words_of_the_transcript(greet: Path) -> None:
    [line] = deployed_lines(load_deployment(greet))
    assert line.startswith("deployed Greet@1.0.0 (sha256:")


@pytest.mark.parametrize(
    ("step", "key", "problem"),
    [
        ({"tsak": "x"}, "step.tsak", "did you mean `task`?"),
        ({"timeout": 30}, "step.timeout", "must be a string"),
        ({"timeout": "30"}, "step.timeout", "must be a duration"),
        ({"retry": {"attempts": 0}}, "step.retry.attempts", "at least 1"),
        ({"retry": {"attempts": True}}, "step.retry.attempts", "whole number"),
        ({"retry": {"backoff": "random"}}, "step.retry.backoff", "one of fixed"),
        ({"retry": {"non_retryable": [1]}}, "step.retry.non_retryable", "list of strings"),
        ({"input": {"type": "text"}}, "step.input.type", "must be one of"),
        ({"output": {"pattern": "x"}}, "step.output", "`pattern` is not supported"),
        (
            {"output": {"properties": {"a": {"items": {"enum": 1}}}}},
            "properties.a.items.enum",
            "list of values",
        ),
        ({"compensate": {"name": "x", "task": "t"}}, "compensate.name", "unknown key"),
        ({"task": " "}, "step.task", "must not be blank"),
    ],
)
def test_a_mistake_is_named_by_its_place(step: dict[str, Any], key: str, problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_deployment({"workflow": [workflow(**step)]})
    assert caught.value.key.endswith(key)
    assert problem in caught.value.problem


def test_a_name_declared_twice_and_a_missing_task_are_refused() -> None:
    with pytest.raises(SettingsError, match="declared twice"):
        parse_deployment({"workflow": [workflow(), workflow()]})
    with pytest.raises(SettingsError, match=r"step\.task: is missing"):
        parse_deployment({"workflow": [{"name": "A", "step": {}}]})


@pytest.mark.parametrize(
    ("text", "found"), [("30s", 30_000), ("500ms", 500), ("1.5m", 90_000), ("1h", 3_600_000)]
)
def test_durations(text: str, found: int) -> None:
    assert duration_ms(text, "key") == found


@pytest.mark.parametrize("text", ["", "30", "s", "-1s", "1d", "1s ago", 30, None])
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(SettingsError, match="duration"):
        duration_ms(text, "key")


STRING, INTEGER = {"type": "string"}, {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, {"any": ["thing", None]}),
        ({"type": "integer"}, 3),
        ({"type": "integer"}, 3.0),
        ({"type": "number"}, 3),
        ({"type": "null"}, None),
        ({"enum": ["a", 1]}, 1),
        ({"type": "array", "items": STRING}, ["a"]),
        ({"type": "object", "properties": {"a": STRING}}, {"b": 1}),
    ],
)
def test_values_that_fit(schema: dict[str, Any], value: Any) -> None:
    assert conform(value, check_schema(schema, "s")) == value


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        (STRING, 1, "$: expected String, found Int"),
        (INTEGER, True, "$: expected Int, found Bool"),
        (INTEGER, 1.5, "$: expected Int, found Float"),
        ({"type": "boolean"}, 1, "$: expected Bool, found Int"),
        ({"type": "object"}, [], "$: expected Object, found List"),
        ({"type": "array"}, None, "$: expected List, found Null"),
        ({"enum": [1]}, True, "$: expected one of [1]"),
        ({"type": "array", "items": INTEGER}, [1, "a"], "$[1]: expected Int, found String"),
        (
            {"type": "object", "required": ["a"], "properties": {"a": STRING}},
            {},
            "$.a: missing required field `a` of type String",
        ),
        ({"type": "object", "required": ["a"]}, {}, "$.a: missing required field `a`"),
        ({"type": "object", "additionalProperties": False}, {"x": 1}, "$.x: unexpected field `x`"),
        (
            {"properties": {"a": {"properties": {"b": INTEGER}}}},
            {"a": {"b": ""}},
            "$.a.b: expected Int, found String",
        ),
    ],
)
def test_values_that_do_not_fit(schema: dict[str, Any], value: Any, text: str) -> None:
    with pytest.raises(Mismatch) as caught:
        conform(value, check_schema(schema, "s"))
    assert str(caught.value) == text


def test_defaults_are_applied_at_every_depth_and_the_value_is_left_alone() -> None:
    inner = {"type": "object", "properties": {"x": {"type": "integer", "default": 7}}}
    schema = {"properties": {"one": inner, "many": {"items": inner}, "list": {"default": []}}}
    value: dict[str, Any] = {"one": {}, "many": [{}, {"x": 1}]}
    assert conform(value, schema) == {"one": {"x": 7}, "many": [{"x": 7}, {"x": 1}], "list": []}
    assert value == {"one": {}, "many": [{}, {"x": 1}]}


DIGEST = hashlib.sha256(b"secret").hexdigest()


def identities(folder: Path, text: str) -> tuple[Identity, ...]:
    path = folder / "workers.toml"
    path.write_text(text, "utf-8")
    return load_identities(path)


def test_a_workers_file(tmp_path: Path) -> None:
    rules = 'tasks = ["x.*"]\nruntime = "ruby"\n'
    text = f'[[workers]]\nworker_id = "a"\ntoken_sha256 = "{DIGEST.upper()}"\n{rules}'
    [identity] = identities(tmp_path, text)
    assert (identity.tasks, identity.runtime) == (("x.*",), "ruby")
    assert Credentials(identities=[identity]).caller("Bearer secret").identity is identity
    assert DIGEST not in repr(identity)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[[workers]]\nworker_id = "a"\n', "needs `token_sha256` or `client_cert`"),
        ('[[workers]]\nworker_id = "a"\ntoken_sha256 = "12"\n', "64 hexadecimal digits"),
        ('[[workers]]\nworker_id = "a"\nclient_cert = "c"\ntask = []\n', "did you mean `tasks`?"),
        ("[[workers]", "is not TOML"),
    ],
)
def test_mistakes_in_a_workers_file(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem.replace("?", r"\?")):
        identities(tmp_path, text)


@pytest.mark.parametrize(
    ("patterns", "task", "may"),
    [
        ((), "anything", True),
        (("greeting.*",), "greeting.compose", True),
        (("greeting.*",), "greetingXcompose", False),
        (("greeting.*",), "payments.greeting.x", False),
        (("a", "*.b"), "x.b", True),
        (("[a]",), "a", False),
    ],
)
def test_task_patterns(patterns: tuple[str, ...], task: str, may: bool) -> None:
    assert Identity("w", tasks=patterns).may_serve(task) is may


@pytest.mark.parametrize(
    ("authorization", "kind"),
    [
        ("Bearer admin", "admin"),
        ("bearer admin", "admin"),
        ("Bearer worker", "worker"),
        ("Bearer secret", "worker"),
    ],
)
def test_who_a_token_is(authorization: str, kind: str) -> None:
    credentials = Credentials("admin", "worker", [Identity("w", token_sha256=DIGEST)])
    assert credentials.caller(authorization).kind == kind


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer ", "Basic admin", "admin", "Bearer Admin"]
)
def test_what_is_no_credential(authorization: str | None) -> None:
    with pytest.raises(Refused) as caught:
        Credentials("admin", "worker").caller(authorization)
    assert (caught.value.status, caught.value.code) == (401, "UNAUTHENTICATED")


def test_a_certificate_counts_when_no_token_is_valid() -> None:
    credentials = Credentials("admin", identities=[Identity("w", client_cert="Worker.example")])
    assert credentials.caller("Bearer wrong", ["other", "worker.EXAMPLE"]).identity is not None
    assert credentials.caller("Bearer admin", ["worker.example"]).kind == "admin"
    with pytest.raises(Refused) as caught:
        credentials.caller(None, ["nobody"])
    assert caught.value.code == "FORBIDDEN"


def test_a_worker_token_alone_leaves_the_runtime_open() -> None:
    assert Credentials(worker_token="worker").caller(None).kind == "admin"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    RuntimeOptions(deploy=Path("d"), host=host)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"host": "0.0.0.0"}, "host"),
        ({"host": "::"}, "host"),
        ({"host": "example.org"}, "host"),
        ({"host": "0.0.0.0", "worker_token": "w"}, "host"),
        ({"grpc_addr": "0.0.0.0:7234"}, "grpc_addr"),
        ({"grpc_addr": "7234"}, "grpc_addr"),
        ({"tls_cert": Path("c")}, "tls_cert"),
        ({"tls_client_ca": Path("c")}, "tls_client_ca"),
        ({"token": ""}, "token"),
        ({"session_timeout_ms": 0}, "session_timeout"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], key: str) -> None:
    with pytest.raises(SettingsError) as caught:
        RuntimeOptions(deploy=Path("d"), **options)
    assert caught.value.key == key


@pytest.mark.parametrize("guard", [{"token": "t"}, {"workers_file": Path("w")}])
def test_a_guarded_runtime_may_be_reached_from_elsewhere(guard: dict[str, Any]) -> None:
    options = RuntimeOptions(deploy=Path("d"), host="0.0.0.0", grpc_addr="[::]:7234", **guard)
    assert "token='t'" not in repr(options)


def test_the_store_gives_back_what_was_saved(tmp_path: Path) -> None:
    desk = Desk(workflow(timeout="5s", retry={"attempts": 2}, output={"properties": {"a": INTEGER}}))
    desk.start(value={"deep": [1, None, {"x": 0.5}]})
    desk.fail(desk.take(desk.session()).token)
    store = SqliteStore(tmp_path / "new" / "folder" / "o.db")
    try:
        changed = desk.core.take_changed()
        store.save(changed)
        store.save_worker(desk.core.worker("w1"))
        assert store.executions() == list(changed.values())
        assert [worker.worker_id for worker in store.workers()] == ["w1"]
        store.save({"e1": None})
        assert store.executions() == []
    finally:
        store.close()


def test_a_worker_token_alone_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    from kiwi_worker.orbit.runtime import server

    with caplog.at_level(logging.WARNING, "kiwi_worker.orbit.runtime"):
        server._credentials(RuntimeOptions(deploy=Path("d"), worker_token="w"))
    assert [record.action for record in caplog.records] == ["runtime_open"]  # type: ignore[attr-defined]


def test_a_new_database_is_its_owner_s_alone(tmp_path: Path) -> None:
    path = tmp_path / "orbit.db"
    with contextlib.closing(SqliteStore(path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
