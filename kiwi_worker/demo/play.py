"""The calls of the demo, and what would be the right outcome of each."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kiwi_worker.client import Client, Feedback, Outcome

__all__ = ["ACTS", "Act", "Line", "Stage"]

LOCKED_CALLS = 24
PAUSES = 20
TIMEOUT_SECONDS = 20.0


class Stage(NamedTuple):
    """What the acts play on.

    Attributes:
        client: calls the middleware.
        reservations: the file in which `reserve` notes each run.
    """

    client: Client
    reservations: Path


class Line(NamedTuple):
    """One line of the table.

    Attributes:
        what: what was tried.
        came: what came of it.
        right: whether that is what should have.
        seconds: how long it took.
    """

    what: str
    came: str
    right: bool
    seconds: float = 0.0


class Act(NamedTuple):
    """One thing to try; `play` gives what came of it, and whether that is right."""

    what: str
    play: Callable[[Stage], tuple[str, bool]]

    def perform(self, stage: Stage) -> Line:
        """Play it; whatever it raises is its outcome, and not the right one."""
        since = time.monotonic()
        try:
            came, right = self.play(stage)
        except Exception as error:  # noqa: BLE001 - the table is to show it
            came, right = f"{type(error).__name__}: {error}", False
        return Line(self.what, came, right, time.monotonic() - since)


def _outcome(stage: Stage, method: str, params: object) -> Outcome:
    return stage.client.outcome(method, params, timeout=TIMEOUT_SECONDS)


def _returns(method: str, params: object, result: object) -> Callable[[Stage], tuple[str, bool]]:
    def play(stage: Stage) -> tuple[str, bool]:
        outcome = _outcome(stage, method, params)
        return f"{outcome.status}: {outcome.result!r}", (outcome.status, outcome.result) == (
            "success",
            result,
        )

    return play


def _refuses(method: str, params: object, status: str, word: str) -> Callable[[Stage], tuple[str, bool]]:
    def play(stage: Stage) -> tuple[str, bool]:
        outcome = _outcome(stage, method, params)
        text = outcome.error_text or ""
        return f"{outcome.status}: {text}", outcome.status == status and word in text

    return play


def _locked(stage: Stage) -> tuple[str, bool]:
    client = stage.client
    seats = [f"{number}A" for number in range(1, LOCKED_CALLS + 1)]
    ids = [client.start("reserve", {"seat": seat}, lock=True) for seat in seats]
    outcomes = [client.wait(request_id, timeout=TIMEOUT_SECONDS) for request_id in ids]
    runs = Counter(line.split()[1] for line in stage.reservations.read_text().splitlines())
    by = Counter(str(outcome.result) for outcome in outcomes)
    once = all(outcome.status == "success" for outcome in outcomes) and all(runs[one] == 1 for one in ids)
    shares = ", ".join(f"{count} by {worker}" for worker, count in sorted(by.items()))
    return f"{LOCKED_CALLS} calls, each run once: {shares}" if once else f"runs: {dict(runs)}", once


def _followed(stage: Stage) -> tuple[str, bool]:
    events = list(stage.client.call_and_follow("longtask", {"steps": 5}, timeout=TIMEOUT_SECONDS))
    # Feedback that is no string arrives as JSON text.
    steps = [json.loads(event.content)["done"] for event in events if isinstance(event, Feedback)]
    outcome = events[-1]
    ended = isinstance(outcome, Outcome) and (outcome.status, outcome.result) == ("success", "5 steps")
    # Feedback is fire-and-forget: the last one may come after the result, or never.
    grows = bool(steps) and steps == sorted(set(steps))
    return f"feedback {' '.join(map(str, steps))}, then the result", ended and grows


def _at_once(stage: Stage) -> tuple[str, bool]:
    since = time.monotonic()
    ids = [stage.client.start("pause", {"seconds": 0.5}) for _ in range(PAUSES)]
    outcomes = [stage.client.wait(request_id, timeout=TIMEOUT_SECONDS) for request_id in ids]
    seconds = time.monotonic() - since
    right = all(outcome.result == 0.5 for outcome in outcomes) and seconds < PAUSES * 0.5 / 2
    return f"{PAUSES} pauses of 0.5 s in {seconds:.1f} s", right


def _fetched(stage: Stage) -> tuple[str, bool]:
    request_id = stage.client.start("hello", {"name": "later"}, idempotency_key="demo-fetch")
    again = stage.client.start("hello", {"name": "later"}, idempotency_key="demo-fetch")
    stage.client.wait(request_id, timeout=TIMEOUT_SECONDS)
    outcome = stage.client.fetch(request_id)
    right = request_id == again and outcome.result == "hello later"
    return f"{outcome.status}: {outcome.result!r}, one call for two with one key", right


ACTS = [
    Act("a plain call", _returns("hello", {"name": "Ada"}, "hello Ada")),
    Act(
        "typed parameters",
        _returns("total", {"items": [{"name": "tea", "price": "2.50", "count": 4}]}, "10.00"),
    ),
    Act("locked, workers competing", _locked),
    Act("a long task with feedback", _followed),
    Act("async calls, all at once", _at_once),
    Act("a call fetched later", _fetched),
    Act("a method nobody has", _refuses("goodbye", {}, "error", "hello")),
    Act(
        "bad parameters",
        _refuses("total", {"items": [{"name": "tea", "price": []}]}, "error", "$.items[0].price"),
    ),
    Act("a handler that raises", _refuses("divide", {"a": 1, "b": 0}, "failed", "ZeroDivisionError")),
]
