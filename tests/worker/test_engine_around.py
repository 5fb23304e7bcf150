"""Handler middleware, and the context variables of each call."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from kiwi_worker import Context, MethodError, Worker
from kiwi_worker.errors import DefinitionError
from kiwi_worker.testing import KiwiServer

NewWorker = Callable[..., Worker]
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_context_variables_of_a_call_are_its_own(
    server: KiwiServer, new_worker: NewWorker, kind: str
) -> None:
    worker, together = new_worker(server, concurrency=4), threading.Barrier(4)

    def plain(text: str) -> list[str]:
        before = variable.get()
        variable.set(text)
        together.wait(20)
        return [before, variable.get()]

    async def later(text: str) -> list[str]:
        before = variable.get()
        variable.set(text)
        await asyncio.sleep(0.01)
        return [before, variable.get()]

    worker.method("ask")(plain if kind == "plain" else later)
    ids = [server.enqueue("ask", [str(number)]) for number in range(16)]
    with worker:
        results = [server.assert_answered_once(request_id, "success")["result"] for request_id in ids]
    assert results == [["unset", str(number)] for number in range(16)]


@pytest.fixture(params=["plain", "async"])
def noted(request: pytest.FixtureRequest, server: KiwiServer, new_worker: NewWorker) -> Any:
    """A worker with a method `ask`, and what happened in order."""
    worker, steps = new_worker(server), []

    def plain(what: str = "") -> str:
        steps.append(f"handler {variable.get()}")
        if what:
            raise ValueError(what)
        return "result"

    async def later(what: str = "") -> str:
        await asyncio.sleep(0)
        return plain(what)

    worker.method("ask")(plain if request.param == "plain" else later)
    return worker, steps


def test_the_first_added_is_the_outermost(noted: Any, server: KiwiServer) -> None:
    worker, steps = noted

    @worker.around
    def outer(ctx: Context) -> Iterator[None]:
        steps.append(f"outer in {ctx.method}")
        token = variable.set("by outer")
        yield
        variable.reset(token)
        steps.append("outer out")

    @worker.around
    @contextlib.contextmanager
    def inner(ctx: Context) -> Iterator[None]:
        steps.append(f"inner in {variable.get()}")
        yield
        steps.append("inner out")

    with worker:
        server.assert_answered_once(server.enqueue("ask"), "success")
    assert steps == ["outer in ask", "inner in by outer", "handler by outer", "inner out", "outer out"]


def test_it_sees_the_exception_and_may_replace_it(noted: Any, server: KiwiServer) -> None:
    worker, steps = noted

    @worker.around
    def translate(ctx: Context) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            steps.append(f"saw {error}")
            raise MethodError("translated") from error

    with worker:
        answer = server.assert_answered_once(server.enqueue("ask", ["broken"]), "error")
    assert answer["error_text"] == "translated"
    assert steps[-1] == "saw broken"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_its_own_exception_fails_the_call_and_no_other(noted: Any, server: KiwiServer, moment: str) -> None:
    worker, steps = noted
    failing = [True]

    @worker.around
    def bad(ctx: Context) -> Iterator[None]:
        if moment == "before" and failing:
            raise LookupError("no session")
        yield
        if moment == "after" and failing:
            raise LookupError("no commit")

    with worker:
        answer = server.assert_answered_once(server.enqueue("ask"), "failed")
        assert answer["error_text"].startswith("LookupError: no ")
        failing.clear()
        server.assert_answered_once(server.enqueue("ask"), "success")
    assert len(steps) == (1 if moment == "before" else 2)


def test_it_is_left_when_the_handler_is_cancelled(server: KiwiServer, new_worker: NewWorker) -> None:
    worker, steps = new_worker(server), []

    @worker.around
    async def session(ctx: Context) -> AsyncIterator[None]:
        try:
            yield
        finally:
            steps.append("left")

    @worker.method(time_limit=0.05)
    async def slow() -> None:
        await asyncio.sleep(60)

    with worker:
        server.assert_answered_once(server.enqueue("slow"), "failed")
    assert steps == ["left"]


def test_async_and_plain_ones_mix_around_async_handlers(server: KiwiServer, new_worker: NewWorker) -> None:
    worker, steps = new_worker(server), []

    @worker.around
    async def outer(ctx: Context) -> AsyncIterator[None]:
        steps.append("outer in")
        await asyncio.sleep(0)
        yield
        steps.append("outer out")

    @worker.around
    def inner(ctx: Context) -> Iterator[None]:
        steps.append("inner in")
        yield
        steps.append("inner out")

    @worker.method
    async def ask() -> str:
        return "x"

    with worker:
        server.assert_answered_once(server.enqueue("ask"), "success")
    assert steps == ["outer in", "inner in", "inner out", "outer out"]


def test_an_async_one_around_a_plain_handler_is_refused(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server)

    @worker.around
    async def session(ctx: Context) -> AsyncIterator[None]:
        yield

    @worker.method
    def ask() -> None: ...

    with pytest.raises(DefinitionError, match=r"session.*async.*ask"):
        worker.start()
    assert not server.calls


def test_it_is_not_entered_for_what_cannot_be_run(noted: Any, server: KiwiServer) -> None:
    worker, steps = noted

    @worker.around
    def note(ctx: Context) -> Iterator[None]:
        steps.append("in")
        yield

    with worker:
        server.assert_answered_once(server.enqueue("unknown"), "error")
        server.assert_answered_once(server.enqueue("ask", {"unheard": 1}), "error")
    assert steps == []
