"""One piece of work, from the moment a binding admits it until its answer is handed on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from kiwi_worker.engine.outcomes import Ending, Outcome
from kiwi_worker.engine.timekeeper import Alarm
from kiwi_worker.methods import HandlerDefinition

__all__ = ["Gate", "Served", "Work"]


class Gate:
    """Lets a limited number of pieces of work through at once; the others are parked here, in order."""

    __slots__ = ("_free", "_lock", "parked")

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._lock = threading.Lock()
        self.parked: deque[Work] = deque()

    def enter(self, work: Work) -> bool:
        """Take a place, or park the work; the place is given back by `leave`."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            self.parked.append(work)
            return False

    def leave(self) -> Work | None:
        """Give a place back, or hand it on to the work that waited longest, which has entered with that."""
        with self._lock:
            if self.parked:
                return self.parked.popleft()
            self._free += 1
            return None

    def clear(self) -> list[Work]:
        """Take out everything that is parked."""
        with self._lock:
            parked = list(self.parked)
            self.parked.clear()
            return parked


class Served:
    """A definition as one engine serves it, with what it learned about it.

    Attributes:
        gates: the limits a call has to pass, in this order.
        calls: how many calls of it ended.
        seconds: how long they took together, from the start of the handler to its end.
    """

    __slots__ = (
        "bind",
        "calls",
        "definition",
        "function",
        "gates",
        "is_async",
        "name",
        "runs_in_process",
        "seconds",
        "time_limit",
        "wants_context",
    )

    def __init__(
        self,
        definition: HandlerDefinition,
        *,
        bind: Callable[[Any, object], tuple[tuple[Any, ...], dict[str, Any]]],
        gates: tuple[Gate, ...],
        time_limit: float | None,
        wants_context: bool,
    ) -> None:
        self.definition = definition
        self.name = definition.name
        self.function = definition.function
        self.bind = bind
        self.is_async = definition.is_async
        self.runs_in_process = definition.options.executor == "process"
        self.gates = gates
        self.time_limit = definition.options.time_limit or time_limit
        self.wants_context = wants_context
        self.calls = 0
        self.seconds = 0.0

    def learn(self, seconds: float) -> None:
        """One more call ended."""
        self.calls += 1
        self.seconds += seconds


class Work:
    """One piece of work.

    Attributes:
        key: what the journal, the table of running work and its answer know it by.
        name: the name the sender called the method by.
        params: the JSON text of its params, or what else the method's `bind` takes.
        served: what runs it; None when `refusal` says why nothing will.
        refusal: the outcome of work that is not to be run.
        needs_claim: whether it may only be run or answered once it is claimed.
        claimed: whether it is claimed.
        delivery: what the binding wants to remember about it.
        run: which run of it this is, over restarts, from 1.
        outer_deadline: when its sender's own limit is over, on the monotonic clock; None without one.
        claiming_at: when it was first asked for its claim, on the monotonic clock; None before.
        started_at: when its handler was started, on the monotonic clock; None before.
        ended_at: when its handler ended, on the monotonic clock; None before.
        deadline: when its time is over, on the monotonic clock; None for never.
        cause: why it was cancelled; None when it was not.
        context: what its handler sees; None until one is wanted.
        entered: how many gates it has passed.
        stop: how its executor makes the handler stop; None when it has no way.
        on_told: how its executor lets a handler elsewhere see that it should stop; None when it is here.
        alarm: what rings at its method's time limit.
        outer_alarm: what rings at `outer_deadline`.
        slot_lost: whether its handler still holds a slot after it was answered.
    """

    __slots__ = (
        "_cancelled",
        "alarm",
        "cause",
        "claimed",
        "claiming_at",
        "context",
        "deadline",
        "delivery",
        "ended_at",
        "entered",
        "key",
        "name",
        "needs_claim",
        "on_told",
        "outer_alarm",
        "outer_deadline",
        "params",
        "refusal",
        "run",
        "served",
        "slot_lost",
        "started_at",
        "stop",
    )

    def __init__(
        self,
        key: str,
        name: str,
        params: Any,
        served: Served | None,
        *,
        refusal: Outcome | None = None,
        needs_claim: bool = False,
        delivery: Any = None,
    ) -> None:
        self.key = key
        self.name = name
        self.params = params
        self.served = served
        self.refusal = refusal
        self.needs_claim = needs_claim
        self.claimed = False
        self.delivery = delivery
        self.run = 1
        self.outer_deadline: float | None = None
        self.claiming_at: float | None = None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.deadline: float | None = None
        self.cause: Ending | None = None
        self.context: Any = None
        self.entered = 0
        self.alarm: Alarm | None = None
        self.outer_alarm: Alarm | None = None
        self.slot_lost = False
        self.stop: Callable[[], None] | None = None
        self.on_told: Callable[[Ending], None] | None = None
        self._cancelled: threading.Event | None = None

    def __repr__(self) -> str:
        return f"Work({self.key!r}, {self.name!r})"

    @property
    def cancelled(self) -> threading.Event:
        """Set when the work is to stop; made when somebody asks, since most handlers never do."""
        if self._cancelled is None:
            self._cancelled = threading.Event()
            if self.cause is not None:
                self._cancelled.set()
        return self._cancelled

    def cancel(self, cause: Ending) -> None:
        """Ask the handler to stop, in the ways its executor has; the first cause counts."""
        self.tell(cause)
        if self.stop is not None:
            self.stop()

    def tell(self, cause: Ending) -> None:
        """Let the handler see that it should stop, and leave it at that."""
        if self.cause is None:
            self.cause = cause
        if self._cancelled is not None:
            self._cancelled.set()
        if self.on_told is not None:
            self.on_told(cause)

    @property
    def may_be_answered(self) -> bool:
        """Whether an answer to it is ours to give."""
        return self.claimed or not self.needs_claim
