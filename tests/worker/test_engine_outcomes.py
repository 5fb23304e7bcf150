"""How a call ends, and what its caller is told; how results are encoded, end to end."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import math
import sys
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from kiwi_worker import MethodError, MethodFailed, Worker
from kiwi_worker.testing import KiwiServer

NewWorker = Callable[..., Worker]
Ask = Callable[..., dict[str, Any]]


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Cancelled(BaseException):
    pass


def text(length: int) -> str:
    return "ä" * length


RAISED: dict[str, tuple[Callable[[], BaseException], str, str]] = {
    "with text": (lambda: ValueError("bad amount"), "failed", "ValueError: bad amount"),
    "without text": (lambda: KeyError(), "failed", "KeyError"),
    "SystemExit": (lambda: SystemExit(3), "failed", "SystemExit: 3"),
    "KeyboardInterrupt": (lambda: KeyboardInterrupt(), "failed", "KeyboardInterrupt"),
    "GeneratorExit": (lambda: GeneratorExit("x"), "failed", "GeneratorExit: x"),
    "CancelledError": (lambda: asyncio.CancelledError(), "failed", "CancelledError"),
    "own BaseException": (lambda: Cancelled("by hand"), "failed", "Cancelled: by hand"),
    "unreadable": (lambda: Unreadable(), "failed", "Unreadable: (the exception has no readable text)"),
    "lone surrogate": (lambda: ValueError("a\ud800b"), "failed", "ValueError: a?b"),
    "MethodFailed": (lambda: MethodFailed("card declined"), "failed", "card declined"),
    "MethodError": (lambda: MethodError("unknown currency"), "error", "unknown currency"),
    "empty MethodFailed": (lambda: MethodFailed(), "failed", ""),
    "MemoryError": (lambda: MemoryError(), "failed", "MemoryError"),
}


@pytest.fixture(params=["plain", "async"])
def serve(request: pytest.FixtureRequest, server: KiwiServer, new_worker: NewWorker) -> Any:
    """Serves `what()` as a plain or an async method and gives its answer."""

    def run(what: Callable[[], Any], **settings: Any) -> dict[str, Any]:
        worker = new_worker(server, **settings)
        if request.param == "plain":
            worker.method("ask")(lambda: what())
        else:

            @worker.method("ask")
            async def ask() -> Any:
                await asyncio.sleep(0)
                return what()

        worker.method("alive")(lambda: True)
        with worker:
            answer = server.assert_answered_once(server.enqueue("ask"))
            server.assert_answered_once(server.enqueue("alive"), "success")
        return answer

    return run


def raising(make: Callable[[], BaseException]) -> Callable[[], Any]:
    def what() -> Any:
        raise make()

    return what


@pytest.mark.parametrize("case", RAISED)
def test_what_a_caller_sees_of_an_exception(serve: Ask, case: str) -> None:
    make, status, error_text = RAISED[case]
    answer = serve(raising(make))
    assert (answer["status"], answer["error_text"], answer["result"]) == (status, error_text, None)


def test_an_error_text_is_bounded(serve: Ask) -> None:
    answer = serve(raising(lambda: ValueError(text(100_000))))
    assert len(answer["error_text"]) == 2000
    assert answer["error_text"] == "ValueError: " + text(1987) + "…"


def test_a_traceback_is_never_sent(serve: Ask) -> None:
    def nested() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    answer = serve(nested)
    assert answer["error_text"] == "ValueError: outer"


def test_errors_are_not_exposed_when_that_is_off(serve: Ask) -> None:
    answer = serve(raising(lambda: ValueError("marked-detail")), expose_errors=False)
    assert answer["status"] == "failed"
    assert "marked-detail" not in answer["error_text"]
    assert "ValueError" not in answer["error_text"]
    assert answer["error_text"]


@pytest.mark.parametrize("kind", [MethodFailed, MethodError])
def test_a_deliberate_text_is_exposed_always(serve: Ask, kind: type[Exception]) -> None:
    answer = serve(raising(lambda: kind("for the caller")), expose_errors=False)
    assert answer["error_text"] == "for the caller"


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    tags: set[str]


ENCODED: dict[str, tuple[Any, Any]] = {
    "None": (None, None),
    "False": (False, False),
    "zero": (0, 0),
    "empty text": ("", ""),
    "big int": (2**80, 2**80),
    "text": ("Ünï\u2028\x00\U0001f600", "Ünï\u2028\x00\U0001f600"),
    "nested": ({"a": [1, {"b": (2, 3)}]}, {"a": [1, {"b": [2, 3]}]}),
    "UUID": (uuid.UUID(int=5), str(uuid.UUID(int=5))),
    "datetime": (datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc), "2024-02-29T00:00:00Z"),
    "Decimal": (decimal.Decimal("1.10"), "1.10"),
    "dataclass": (Point(1, {"a"}), {"x": 1, "tags": ["a"]}),
    "bytes": (b"\x00\xff", "AP8="),
    "Enum": ([Color.RED], ["red"]),
    "number keys": ({1: "a"}, {"1": "a"}),
}


@pytest.mark.parametrize("case", ENCODED)
def test_results_arrive_as_json(serve: Ask, case: str) -> None:
    value, expected = ENCODED[case]
    answer = serve(lambda: value)
    assert (answer["status"], answer["error_text"], answer["result"]) == ("success", None, expected)


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


UNENCODABLE: dict[str, Callable[[], Any]] = {
    "NaN": lambda: {"a": [1.0, math.nan]},
    "infinity": lambda: -math.inf,
    "object": lambda: object(),
    "lone surrogate": lambda: "\ud800",
    "endless": endless,
    "too deep": lambda: __import__("functools").reduce(lambda value, _: [value], range(100_000), []),
    "generator": lambda: (number for number in range(3)),
    "class": lambda: int,
    "module": lambda: sys,
}


@pytest.mark.parametrize("case", UNENCODABLE)
def test_a_result_without_json_is_an_error(serve: Ask, case: str) -> None:
    answer = serve(UNENCODABLE[case])
    assert answer["status"] == "error"
    assert answer["result"] is None
    assert answer["error_text"]


def test_a_coroutine_that_a_plain_function_returns_is_awaited(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server)

    async def inner(text: str) -> str:
        await asyncio.sleep(0)
        return text.upper()

    worker.method("ask")(lambda text: inner(text))
    with worker:
        assert server.assert_answered_once(server.enqueue("ask", ["hi"]), "success")["result"] == "HI"


def test_a_large_result_arrives_whole(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server)

    @worker.method
    def blob(size: int) -> str:
        return "x" * size

    with worker:
        for size in (10_000, 70_000, 5_000_000):
            result = server.assert_answered_once(server.enqueue("blob", [size]), "success")["result"]
            assert result == "x" * size
