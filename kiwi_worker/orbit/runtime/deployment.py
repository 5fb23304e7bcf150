"""The workflows of the dev runtime, declared in a small TOML file.

The workflow language is the ORBIT runtime's own business and is not spoken here: the dev runtime knows
workflows of one step, with an optional compensation. The page's example reads:

    [[workflow]]
    name = "Greet"
    version = "1.0.0"

    [workflow.step]
    name = "compose"
    task = "greeting.compose"
    contract_version = "1.0.0"
    using = "ruby"                  # a runtime, "any", or left out
    timeout = "30s"
    retry = { attempts = 3, backoff = "fixed", initial_delay = "1s", non_retryable = ["INVALID_NAME"] }
    input = { type = "object", required = ["name"], properties = { name = { type = "string" } } }
    output = { type = "object", required = ["message"], properties = { message = { type = "string" } } }

The workflow's input is the step's input, and its output the step's output. `[workflow.compensate]` takes the
same keys but `name`; its input is `{"input": <the step's input>, "output": <the step's output>}`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kiwi_worker.errors import SettingsError
from kiwi_worker.orbit.runtime.durations import duration_ms
from kiwi_worker.orbit.runtime.model import Contract, RetryPolicy, StepDefinition, Workflow
from kiwi_worker.orbit.runtime.schema import check_schema
from kiwi_worker.orbit.runtime.tables import Table, read_toml

_BACKOFFS = ("fixed", "linear", "exponential")


def load_deployment(path: Path) -> dict[str, Workflow]:
    """The workflows of a file, by name.

    Raises:
        SettingsError: if the file cannot be read, or something in it is not understood.
    """
    return parse_deployment(read_toml(path, "deploy"))


def parse_deployment(content: Mapping[str, Any]) -> dict[str, Workflow]:
    """The workflows of a file that was read; see `load_deployment`."""
    top = Table(dict(content), "deploy")
    entries = top.take("workflow", list)
    top.done()
    workflows: dict[str, Workflow] = {}
    for index, entry in enumerate(entries):
        workflow = _workflow(Table(entry, f"deploy.workflow[{index}]"))
        if workflow.name in workflows:
            raise SettingsError(f"deploy.workflow[{index}].name", f"`{workflow.name}` is declared twice")
        workflows[workflow.name] = workflow
    return workflows


def _workflow(table: Table) -> Workflow:
    step = Table(table.take("step", dict), f"{table.key}.step")
    name = step.text("name", "step")
    compensate = table.take("compensate", dict, None)
    workflow = Workflow(
        name=table.text("name"),
        version=table.text("version", "1.0.0"),
        step=_step(step, name),
        compensate=compensate and _step(Table(compensate, f"{table.key}.compensate"), name),
    )
    table.done()
    return workflow


def _step(table: Table, name: str) -> StepDefinition:
    using = table.text("using", "any").lower()
    timeout = table.take("timeout", str, None)
    step = StepDefinition(
        name=name,
        contract=Contract(table.text("task"), table.text("contract_version", "1.0.0")),
        using=None if using == "any" else using,
        timeout_ms=None if timeout is None else duration_ms(timeout, f"{table.key}.timeout"),
        retry=_retry(Table(table.take("retry", dict, {}), f"{table.key}.retry")),
        input_schema=check_schema(table.take("input", dict, {}), f"{table.key}.input"),
        output_schema=check_schema(table.take("output", dict, {}), f"{table.key}.output"),
    )
    table.done()
    return step


def _retry(table: Table) -> RetryPolicy:
    attempts, backoff = table.take("attempts", int, 1), table.take("backoff", str, "fixed")
    if attempts < 1:
        raise SettingsError(f"{table.key}.attempts", "must be at least 1")
    if backoff not in _BACKOFFS:
        raise SettingsError(f"{table.key}.backoff", f"must be one of {', '.join(_BACKOFFS)}")
    policy = RetryPolicy(
        attempts=attempts,
        backoff=backoff,
        initial_delay_ms=duration_ms(table.take("initial_delay", str, "0s"), f"{table.key}.initial_delay"),
        non_retryable=table.texts("non_retryable"),
    )
    table.done()
    return policy


def deployed_lines(workflows: Mapping[str, Workflow]) -> Iterator[str]:
    """What a deployment says of itself, in the words of the page's transcript."""
    for workflow in workflows.values():
        digest = hashlib.sha256(msgspec.json.encode(workflow)).hexdigest()[:12]
        yield f"deployed {workflow.name}@{workflow.version} (sha256:{digest})"
