"""The one event loop that all async handlers of a worker run on; its thread starts with the first of them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from kiwi_worker.engine.outcomes import Ending, Outcome, outcome_of
from kiwi_worker.engine.work import Work

if TYPE_CHECKING:
    import asyncio
    from contextlib import AsyncExitStack

__all__ = ["AsyncExecutor"]


class AsyncExecutor:
    """Runs async handlers, and hooks, on one loop.

    Args:
        around: handler middleware, the first outermost.
        outcome_of_error: what an exception of a handler comes to.
        finish: takes the outcome of each piece of work.
        start: starts the thread, with a task name and what it runs.
        max_result_bytes: the longest a result may be; None for any length.
    """

    def __init__(
        self,
        *,
        around: Sequence[Callable[[Any], Any]],
        outcome_of_error: Callable[[Work, BaseException], Outcome],
        finish: Callable[[Work, Outcome], None],
        start: Callable[[str, Callable[[], None]], object],
        max_result_bytes: int | None = None,
    ) -> None:
        self._around = around
        self._outcome_of_error = outcome_of_error
        self._finish = finish
        self._start = start
        self._max_result_bytes = max_result_bytes
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._closing = False
        self._tasks: dict[asyncio.Task[None], Work] = {}
        self._asked_at: float | None = None

    def submit(self, work: Work, make: Callable[[], Any]) -> None:
        """Run the awaitable that `make` gives, and finish the work with its outcome."""
        self._running_loop().call_soon_threadsafe(self._begin, work, make)

    def soon(self, run: Callable[[], None]) -> None:
        """Run something short on the loop's thread, which must not raise."""
        self._running_loop().call_soon_threadsafe(run)

    @property
    def asked_at(self) -> float | None:
        """Since when the loop owes a turn, on the monotonic clock; asks it for one when there is work."""
        loop = self._loop
        if self._asked_at is None and self._tasks and loop is not None and not self._closing:
            self._asked_at = time.monotonic()
            with contextlib.suppress(RuntimeError):  # it was closed in this moment
                loop.call_soon_threadsafe(self._turned)
        return self._asked_at

    def _turned(self) -> None:
        self._asked_at = None

    def call(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run something on the loop and wait for its result; for hooks."""
        import asyncio

        return asyncio.run_coroutine_threadsafe(make(), self._running_loop()).result()

    def close(self) -> None:
        """Cancel what is left and end the thread."""
        with self._lock:
            loop = self._loop
            self._closing = True
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._stop, loop)

    def release(self) -> None:
        """Close the loop of a thread that could not be started again."""
        loop = self._loop
        if loop is not None and not loop.is_running() and not loop.is_closed():
            loop.close()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                import asyncio

                self._loop = asyncio.new_event_loop()
                self._start("async-loop", self._serve)
        self._ready.wait()
        return self._loop

    def _serve(self) -> None:
        import asyncio

        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        self._ready.set()
        try:
            # What ends it by an exception (a SystemExit in a task that a handler made) does not end the
            # calls on it: it goes on with them when the thread is started again.
            loop.run_forever()
        finally:
            asyncio.set_event_loop(None)
            if self._closing:
                self._end(loop)

    @staticmethod
    def _end(loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        for task in list(self._tasks):
            task.cancel()
        loop.call_later(0.05 if self._tasks else 0, loop.stop)

    def _begin(self, work: Work, make: Callable[[], Any]) -> None:
        assert self._loop is not None
        if work.cause is not None:
            # A task that is cancelled before its first step would never come to its end.
            self._give_up(work, make)
            return
        # `copy_context` gives each call variables of its own; the task copies them once more, which is cheap.
        task = copy_context().run(self._loop.create_task, self._run(work, make))
        self._tasks[task] = work
        task.add_done_callback(self._tasks.pop)
        work.stop = lambda: self._cancel(task)
        if work.cause is not None:
            self._cancel(task)

    def _give_up(self, work: Work, make: Callable[[], Any]) -> None:
        assert work.cause is not None
        if not isinstance(make, partial):
            make().close()
        self._finish(work, outcome_of(work.cause))

    def _cancel(self, task: asyncio.Task[None]) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)

    async def _run(self, work: Work, make: Callable[[], Any]) -> None:
        try:
            outcome = outcome_of(Ending.RETURNED, await self._call(work, make), self._max_result_bytes)
        except BaseException as error:
            if self._closing and isinstance(error, GeneratorExit):
                raise  # a call that outlived its loop is thrown away, long answered
            outcome = self._outcome_of_error(work, error)
        self._finish(work, outcome)

    async def _call(self, work: Work, make: Callable[[], Any]) -> Any:
        if not self._around:
            return await make()
        from contextlib import AsyncExitStack

        async with AsyncExitStack() as stack:
            for middleware in self._around:
                await _enter(stack, middleware(work.context))
            return await make()


async def _enter(stack: AsyncExitStack, manager: Any) -> None:
    if hasattr(manager, "__aenter__"):
        await stack.enter_async_context(manager)
    else:
        stack.enter_context(manager)
