"""The responses a Kiwi server was given, and whether each request was answered once."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from kiwi_worker.testing.calls import Call

__all__ = ["AnswerBook"]


@dataclass(eq=False)
class AnswerBook:
    """Every response, in order; the first one to a request id is the accepted one. Callers hold the lock."""

    _records: list[tuple[dict[str, Any], Call]] = field(default_factory=list)
    _first: dict[str, dict[str, Any]] = field(default_factory=dict)

    def record(self, body: dict[str, Any], call: Call) -> bool:
        """Record a response; whether it is the first one to its request id."""
        self._records.append((body, call))
        return self._first.setdefault(body["request_id"], body) is body

    @property
    def accepted(self) -> list[dict[str, Any]]:
        """The first response to each request id, in order."""
        return list(self._first.values())

    @property
    def refused(self) -> list[dict[str, Any]]:
        """The later ones, in order."""
        return [body for body, _ in self._records if self._first[body["request_id"]] is not body]

    def find(self, request_id: str) -> dict[str, Any] | None:
        """The accepted response to this request, or None."""
        return self._first.get(request_id)

    def check(self, request_id: str, status: str | None) -> None:
        """Assert that an answered request was answered with one outcome; see `KiwiServer`.

        Raises:
            AssertionError: it was not.
        """
        sent = [(body, call) for body, call in self._records if body["request_id"] == request_id]
        first, _ = sent[0]
        if status is not None and first.get("status") != status:
            raise AssertionError(f"{request_id} was answered {_short(first)}, not with status {status!r}")
        for (before, call), (body, again) in pairwise(sent):
            if body != before:
                raise AssertionError(f"{request_id} was answered {_short(before)} and then {_short(body)}")
            if call.outcome == "answered" and call.fault is None:
                raise AssertionError(
                    f"{request_id} was answered {_short(body)} again (call {again.number}) although the "
                    f"server had taken it in call {call.number} (status {call.status})"
                )


def _short(body: dict[str, Any]) -> str:
    text = f"{body.get('status')!r} (error_text {body.get('error_text')!r}, result {body.get('result')!r})"
    return text if len(text) <= 300 else text[:300] + "…"
