"""What the core asks its face to do, so that the core itself neither blocks nor awaits."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

__all__ = ["Ask", "Done", "Effect", "Emit", "Exclusive", "More", "Open", "Operation", "Pause", "Steps"]

T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """Send a request, bring the whole answer (an `Answer`). The body is JSON, unless it is a form."""

    method: str
    target: str
    body: bytes | None = field(default=None, repr=False)
    read_seconds: float = 15.0
    authorization: str | None = field(default=None, repr=False)
    form: bool = False


@dataclass(frozen=True)
class Open(Ask):
    """Send a request for an event stream, bring the answer (only its head when the status is 200).

    `last_event_id` is the last event that was seen, 0 for none.
    """

    last_event_id: int = 0


@dataclass(frozen=True)
class More:
    """Bring the next bytes of the open answer, at most so many seconds later; none when it has ended."""

    seconds: float


@dataclass(frozen=True)
class Pause:
    """Wait."""

    seconds: float


@dataclass(frozen=True)
class Exclusive:
    """Carry out these steps while nobody else carries out such; bring what they return."""

    steps: Generator[Any, Any, Any]


@dataclass(frozen=True)
class Emit:
    """Give this to whoever iterates."""

    item: object


Effect = Ask | More | Pause | Exclusive | Emit
Steps = Generator[Effect, Any, T]


@dataclass(frozen=True)
class Done:
    """The steps have ended with this."""

    value: Any


class Operation:
    """Steps under way: what they ask for next, and what they are told.

    Args:
        steps: what the core made.
    """

    def __init__(self, steps: Steps[Any]) -> None:
        self._steps = steps
        self._reply: Any = None
        self._failure: Exception | None = None

    def next_effect(self) -> Effect | Done:
        """What is to be done next; an error that the steps do not handle is raised."""
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                return self._steps.throw(failure)
            return self._steps.send(self._reply)
        except StopIteration as stop:
            return Done(stop.value)
        finally:
            self._reply = None

    def reply(self, value: Any) -> None:
        """It was done, and brought this."""
        self._reply = value

    def fail(self, failure: Exception) -> None:
        """It could not be done."""
        self._failure = failure
