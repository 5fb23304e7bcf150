"""The engine: everything a worker does with work that is the same for every protocol.

    receive ──▶ claim ──▶ handle ──▶ report
    binding     binding    engine     binding, through the outbox

`start` brings it up, `stop` is the ordered shutdown. What each part does is in the module of its name.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kiwi_worker.engine.binding import Binding, Facts, Report
from kiwi_worker.engine.forks import watch_forks
from kiwi_worker.engine.journal import Journal
from kiwi_worker.engine.lookout import Lookout
from kiwi_worker.engine.loop import AsyncExecutor
from kiwi_worker.engine.outbox import Outbox
from kiwi_worker.engine.outcomes import Ending, Outcome, outcome_of
from kiwi_worker.engine.recovery import recover
from kiwi_worker.engine.runner import Around, Runner
from kiwi_worker.engine.slots import Slots
from kiwi_worker.engine.snapshot import Snapshot, snapshot_of
from kiwi_worker.engine.supervision import Crew
from kiwi_worker.engine.timekeeper import Timekeeper
from kiwi_worker.engine.work import Gate, Served, Work
from kiwi_worker.methods import HandlerDefinition

__all__ = ["Engine", "Limits", "Running"]

_logger = logging.getLogger("kiwi_worker.engine")

READ_ON_SECONDS = 1.5
"""How long a receive that waits is read on at shutdown: breaking it off could destroy what it brings."""
LEAST_READ_ON_SECONDS = 0.3
"""The same, when there is no grace period."""
LEAST_START_SECONDS = 1.0
"""How long a start that is under way may take to give up."""
LOOK_SECONDS = 0.02
CANCEL_SECONDS = 0.25
"""How long cancelled handlers may take to end."""
FLUSH_SECONDS = 0.9
"""How long after the grace period the last answers may take; the whole end fits the watchdog's limit."""
LEAST_FLUSH_SECONDS = 0.5
"""The same, counted from when they are all there."""
BREAK_OFF_SECONDS = 0.15
"""How long a call that was broken off may take to notice."""
SEND_LIMIT_SECONDS = 30.0
NAMED_KEYS = 10
"""How many requests one log record names."""


class Limits(NamedTuple):
    """The numbers an engine is held to; what they mean is in the settings of the same names."""

    concurrency: int = 8
    async_concurrency: int = 100
    reporters: int = 4
    outbox_limit: int = 10_000
    report_limit: float = 5.0
    time_limit: float | None = None
    grace_period: float = 30.0
    process_pool_size: int = 1
    max_result_bytes: int | None = None


class Running(NamedTuple):
    """One call that runs now."""

    key: str
    name: str
    seconds: float


class Engine:
    """Runs the work a binding brings.

    Args:
        crew: starts the threads.
        binding: the protocol.
        definitions: what is served, by the keys the binding finds it with.
        limits: the numbers.
        around: handler middleware, the first outermost.
        journal: remembers what must survive the process; None for nothing.
        run_in_process: runs a call in a process of its own and gives its outcome.

    Attributes:
        served: every definition as it is served, by the key the binding finds it with.
        receiving_at: since when the receiver is in a receive, on the monotonic clock; None while it is not.
        waits_for_room: whether the receiver waits for room.
        receives: how many receives have ended.
    """

    def __init__(
        self,
        *,
        crew: Crew,
        binding: Binding,
        definitions: Iterable[tuple[Any, HandlerDefinition]],
        limits: Limits,
        around: Sequence[Around] = (),
        journal: Journal | None = None,
        run_in_process: Callable[[Work, Callable[[], None]], Outcome],
    ) -> None:
        self._binding = binding
        self.limits = limits
        self.journal = journal
        self.crew = crew
        start = crew.start
        self.timekeeper = Timekeeper(start)
        self.outbox = Outbox(
            binding,
            start=start,
            reporters=limits.reporters,
            limit=limits.outbox_limit,
            send_limit_seconds=SEND_LIMIT_SECONDS,
            on_answered=lambda key: self.runner.answered(key),
            on_change=lambda: self.slots.backlog.nudge(),
        )
        self.loop = AsyncExecutor(
            around=around,
            outcome_of_error=lambda work, error: self.runner.outcome_of_error(work, error),
            finish=lambda work, outcome: self.runner.finish(work, outcome),
            start=start,
            max_result_bytes=limits.max_result_bytes,
        )
        self.runner = Runner(
            binding=binding,
            outbox=self.outbox,
            journal=journal,
            around=around,
            timekeeper=self.timekeeper,
            report_limit_seconds=limits.report_limit,
            start_async=self.loop.submit,
            run_in_process=run_in_process,
            max_result_bytes=limits.max_result_bytes,
            resume=self._resume,
            on_forgotten=lambda: self.slots.backlog.nudge_if_low(),
        )
        watch_forks(self.runner)
        self.slots = Slots(
            limits.concurrency, binding=binding, runner=self.runner, may_poll=self._may_poll, start=start
        )
        if journal is not None:
            # What was forgotten is noted with the next record, and none may come for long after a slot idles.
            self.slots.backlog.on_idle = journal.flush
            binding.on_dropped = journal.forgotten
        self._receiver: threading.Thread | None = None
        self._receiver_lane: Any = None
        self._resuming: set[Work] = set()
        self._stopping = threading.Event()
        self._opening = False
        self.receiving_at: float | None = None
        self.waits_for_room = False
        self.receives = 0
        self.lookout = Lookout(self)
        self.served = self._served(definitions, bool(around))
        binding.serve(self.served)

    def _served(
        self, definitions: Iterable[tuple[Any, HandlerDefinition]], needs_context: bool
    ) -> dict[Any, Served]:
        on_loop, in_process = Gate(self.limits.async_concurrency), Gate(self.limits.process_pool_size)
        self._gates = [on_loop, in_process]
        return {
            key: self._serve_one(definition, on_loop if definition.is_async else in_process, needs_context)
            for key, definition in definitions
        }

    def _serve_one(self, definition: HandlerDefinition, shared: Gate, needs_context: bool) -> Served:
        gates = []
        if definition.options.concurrency is not None:
            gates.append(Gate(definition.options.concurrency))
            self._gates += gates
        if definition.is_async or definition.options.executor == "process":
            # The last one, so that what waits for its own method's limit takes no place of the others.
            gates.append(shared)
        return Served(
            definition,
            bind=definition.plan.bind,
            gates=tuple(gates),
            time_limit=self.limits.time_limit,
            wants_context=needs_context or definition.plan.wants_context,
        )

    def start(self) -> None:
        """Open the binding, take up what a former process left, and begin to receive.

        Raises:
            StartError: the binding could not be opened.
        """
        self._opening = True
        if not self._stopping.is_set():
            self._binding.open()
        if self._stopping.is_set():
            return
        if self.journal is not None:
            recover(self.journal, self._binding, self.runner, self.slots.backlog)
        if self._binding.brings_batches:
            self._receiver = self.crew.start("receiver", self._receive)
        else:
            self.slots.start_all()

    @property
    def is_stopping(self) -> bool:
        """Whether the shutdown has begun."""
        return self._stopping.is_set()

    def facts(self) -> Facts:
        """What the binding says of itself."""
        return self._binding.facts()

    def snapshot(self) -> Snapshot:
        """How everything is now; from any thread, at any time."""
        return snapshot_of(self)

    def context_of(self, work: Work) -> Any:
        """What a handler of this work sees, for an executor that hands on what the handler says."""
        return self._binding.context(work)

    def running(self) -> list[Running]:
        """The calls that run now, the longest first."""
        now = time.monotonic()
        calls = [
            Running(work.key, work.name, now - (work.started_at or now))
            for work in list(self.runner.running.values())
        ]
        return sorted(calls, key=lambda call: -call.seconds)

    @property
    def waiting(self) -> int:
        """How much was received and has not been started."""
        return len(self.slots.backlog) + sum(len(gate.parked) for gate in self._gates) + len(self._resuming)

    def _resume(self, work: Work) -> None:
        """Take up work that had to wait at a gate."""
        served = work.served
        if self._binding.brings_batches or served is None or not served.is_async:
            self.slots.backlog.put_first(work)
            return
        # Every slot may hang in a poll, and an async handler needs none to be started.
        self._resuming.add(work)
        self.loop.soon(lambda: self._start_resumed(work))

    def _start_resumed(self, work: Work) -> None:
        try:
            self.slots.run(work, None)
        finally:
            self._resuming.discard(work)
            self.slots.backlog.nudge()

    # Receiving

    def has_room(self) -> bool:
        """Whether more is to be received; true at the shutdown, so that nobody waits for room any more."""
        if self._stopping.is_set():
            return True
        journal_full = self.journal is not None and self.journal.full
        return self.waiting < self.limits.concurrency and not self.outbox.full and not journal_full

    def _may_poll(self) -> bool:
        backlog = self.slots.backlog
        if not self.has_room():
            backlog.wait_for_room(lambda: len(backlog) > 0 or self.has_room())
        return not self._stopping.is_set()

    def _receive(self) -> None:
        backlog = self.slots.backlog
        lane = self._receiver_lane = self._binding.lane("receive")
        try:
            while not self._stopping.is_set():
                self.waits_for_room = True
                backlog.wait_for_room(self.has_room)
                self.waits_for_room = False
                if not self._stopping.is_set():
                    self.receiving_at = time.monotonic()
                    batch = self._binding.receive(lane)
                    self.receiving_at = None
                    self.receives += 1
                    self._take_in(batch)
        finally:
            self.receiving_at = None
            lane.close()

    def _take_in(self, batch: Sequence[Any]) -> None:
        if batch:
            if self.journal is not None:
                self.journal.received(self._binding.keys_of(batch))
            self.slots.backlog.extend(batch)

    # Shutdown

    def stop(self, *, hurry: Callable[[], bool], last: Callable[[], None], started: threading.Event) -> bool:
        """The ordered shutdown; gives whether everything was finished and delivered.

        1. Say so to the server; no receive begins from here on, one that waits is read on for a moment.
        2. What was received goes on being run, and running handlers go on, up to the grace period.
        3. What still runs is cancelled.
        4. What was not started, or was cut off, is answered, as far as the answer is ours to give.
        5. The last answers are delivered.
        6. The binding is closed, the last heartbeat with it, and `last` runs while the loop is still there.

        Args:
            hurry: asked now and then; True ends the grace period.
            last: stop hooks.
            started: set when no start is under way any more; one that is gives up soon.
        """
        end = time.monotonic() + self.limits.grace_period
        self._stopping.set()
        self.runner.stopping = True
        backlog = self.slots.backlog
        backlog.nudge()
        self.outbox.nudge()
        self._binding.stop_receiving()
        # A start hook may finish. A server that is silent has given nothing yet that could be lost.
        grace = 0.0 if self._opening else self.limits.grace_period
        started.wait(max(LEAST_START_SECONDS, grace))
        self._end_receiving(end)
        if not self._wait_for_handlers(end, hurry):
            self._cut_off()
        backlog.close()
        last_moment = max(end + FLUSH_SECONDS, time.monotonic() + LEAST_FLUSH_SECONDS)
        clean = self._deliver(last_moment) and self._all_finished
        self.crew.close()
        self._binding.close(clean)
        self.timekeeper.close()
        last()
        self.loop.close()
        left = self.crew.join(BREAK_OFF_SECONDS)
        self.loop.release()
        if left:
            _logger.warning("threads still busy at the end: %s", left, extra={"action": "threads_left"})
        if self.journal is not None:
            self.journal.close()
        return clean

    def _end_receiving(self, end: float) -> None:
        if self._receiver is None:
            self._binding.interrupt()
            self.slots.interrupt_polls()
            return
        left = max(LEAST_READ_ON_SECONDS, end - time.monotonic())
        self._receiver.join(min(READ_ON_SECONDS, left))
        if self._receiver.is_alive():
            self._binding.interrupt()
            if self._receiver_lane is not None:
                self._receiver_lane.interrupt()
            self._receiver.join(BREAK_OFF_SECONDS)

    def _wait_for_handlers(self, end: float, hurry: Callable[[], bool]) -> bool:
        while self.runner.running or self.waiting or self._slots_busy:
            left = end - time.monotonic()
            if left <= 0 or hurry():
                return False
            self.runner.wait_for_end(min(left, LOOK_SECONDS))
        return True

    @property
    def _slots_busy(self) -> bool:
        # Also what no table holds: a lock that is being asked for, an answer that is being sent.
        return self.slots.busy > self.runner.counters.lost_slots

    def _cut_off(self) -> None:
        runner = self.runner
        runner.over = True
        unstarted = self._take_unstarted()
        running = list(runner.running.values())
        for work in running:
            work.cancel(Ending.CUT_OFF)
        self._wait_for_handlers(time.monotonic() + CANCEL_SECONDS, lambda: False)
        for work in unstarted + self._take_unstarted():
            runner.refuse(work)
        for work in running:
            # What ended by its cancellation was cut off, too.
            runner.settle(work, outcome_of(Ending.CUT_OFF, "the worker stopped while it ran"))
        runner.counters.cut_off += len(running)

    @property
    def _all_finished(self) -> bool:
        counters = self.runner.counters
        return not counters.cut_off and not counters.not_started

    def _deliver(self, until: float) -> bool:
        while (left := until - time.monotonic()) > 0 and self._slots_busy:
            self.runner.wait_for_end(min(left, LOOK_SECONDS))
        delivered = self.outbox.flush(until - time.monotonic()) and not self._slots_busy
        # What a slot is still sending comes to the outbox when it is broken off, and is named there.
        self.slots.interrupt()
        until = time.monotonic() + BREAK_OFF_SECONDS
        while self._slots_busy and time.monotonic() < until:
            self.runner.wait_for_end(LOOK_SECONDS)
        self._note_undelivered(self.outbox.close(BREAK_OFF_SECONDS))
        return delivered

    def _take_unstarted(self) -> list[Work]:
        items = self.slots.backlog.clear()
        for gate in self._gates:
            items.extend(gate.clear())
        works = [item if isinstance(item, Work) else self._binding.admit(item) for item in items]
        return [work for work in works if work is not None]

    def _note_undelivered(self, reports: Sequence[Report]) -> None:
        if not reports:
            return
        keys = [report.key for report in reports]
        _logger.error(
            "%d answers could not be delivered before the end%s: %s%s",
            len(keys),
            "; the journal keeps them" if self.journal is not None else "",
            ", ".join(keys[:NAMED_KEYS]),
            " …" if len(keys) > NAMED_KEYS else "",
            extra={"action": "answers_undelivered", "request_ids": keys[:NAMED_KEYS]},
        )
