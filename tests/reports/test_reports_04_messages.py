"""Field reports on messages: malformed ones, params in every form, hints that are strings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

import pytest

from kiwi_worker import Worker
from kiwi_worker.testing import KiwiServer

if TYPE_CHECKING:
    from decimal import Decimal

NewWorker = Callable[..., Worker]


def no_params() -> str:
    return "none"


def one_dict(input: dict[str, Any]) -> Any:
    return input


def named(name: str, count: int = 2) -> Any:
    return [name, count]


def gathering(*args: int, **kwargs: int) -> Any:
    return [list(args), kwargs]


def keyword_only(*, a: int) -> int:
    return a


def odd_names(self: int, id: int, type: int) -> Any:
    return [self, id, type]


def optional(a: Optional[int]) -> Any:  # noqa: UP045
    return a


FITTING = [
    (no_params, None, "none"),
    (one_dict, {"input": {"a": 1}}, {"a": 1}),
    (one_dict, [{"a": 1}], {"a": 1}),
    (named, {"name": "x"}, ["x", 2]),
    (named, ["x", 3], ["x", 3]),
    (named, '{"name": "x"}', ["x", 2]),
    (gathering, [1, 2], [[1, 2], {}]),
    (gathering, {"k": 1}, [[], {"k": 1}]),
    (keyword_only, {"a": 1}, 1),
    (odd_names, {"self": 1, "id": 2, "type": 3}, [1, 2, 3]),
    (optional, {"a": None}, None),
]
NOT_FITTING = [
    (no_params, {"a": 1}, "a"),
    (one_dict, {"a": 1}, "input"),
    (named, {}, "name"),
    (named, {"name": 5}, "name"),
    (named, {"name": "x", "extra": 1}, "extra"),
    (named, {"name": "x", "count": "5"}, "count"),
    (keyword_only, {"b": 1}, "a"),
    (optional, {}, "a"),
]


def test_report_23_bad_messages_take_no_good_one_with_them(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server, safety_interval=0.1)
    worker.method("hello")(lambda: "hello")
    first = server.enqueue("hello")
    server.enqueue_raw(b"nonsense")
    server.enqueue_raw(b'{"request_id": tru, "method": nope}')
    server.enqueue_raw(b'{"method": "hello", "lock_required": false, "params": null}')
    unknown = server.enqueue("nobody_has_this")
    wrong = '{"request_id": "wrong", "method": 5, "lock_required": "yes", "params": null}'
    server.enqueue_raw(wrong.encode())
    for odd in (b"5", b"null", b'"text"', b"[]", b"{}"):
        server.enqueue_raw(odd)
    last = server.enqueue("hello")
    with worker:
        for good in (first, last, server.enqueue("hello")):
            server.assert_answered_once(good, "success")
        assert "hello" in server.assert_answered_once(unknown, "error")["error_text"], (
            "it names the known ones"
        )
    assert worker.failure is None


@pytest.mark.parametrize(("function", "params", "result"), FITTING)
def test_report_24_params_that_fit(
    server: KiwiServer, new_worker: NewWorker, function: Callable[..., Any], params: Any, result: Any
) -> None:
    worker = new_worker(server)
    worker.method(function)
    with worker:
        answer = server.assert_answered_once(server.enqueue(function.__name__, params), "success")
    assert answer["result"] == result


@pytest.mark.parametrize(("function", "params", "name"), NOT_FITTING)
def test_report_24_params_that_do_not_fit_are_an_error_that_names_the_parameter(
    server: KiwiServer, new_worker: NewWorker, function: Callable[..., Any], params: Any, name: str
) -> None:
    worker = new_worker(server)
    worker.method(function)
    with worker:
        answer = server.assert_answered_once(server.enqueue(function.__name__, params), "error")
    assert f"`{name}`" in answer["error_text"]
    assert answer["result"] is None


@dataclasses.dataclass
class Item:
    amount: int


class Shop:
    @dataclasses.dataclass
    class Order:
        items: list[Item]
        note: Optional[str] = None  # noqa: UP045


def total(order: Shop.Order) -> int:
    return sum(item.amount for item in order.items)


def price(amount: Decimal) -> str:
    return type(amount).__name__


def test_report_25_hints_that_are_strings_are_checked_and_converted(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server)
    worker.method(total)
    with worker:
        fits = {"order": {"items": [{"amount": 2}, {"amount": 3}]}}
        assert server.assert_answered_once(server.enqueue("total", fits), "success")["result"] == 5
        wrong = {"order": {"items": [{"amount": "2"}]}}
        text = server.assert_answered_once(server.enqueue("total", wrong), "error")["error_text"]
    assert "amount" in text


def test_report_25_a_hint_only_for_type_checkers_falls_back_with_a_warning(
    server: KiwiServer, new_worker: NewWorker, caplog: pytest.LogCaptureFixture
) -> None:
    worker = new_worker(server)
    worker.method(price)
    assert [record for record in caplog.records if record.levelname == "WARNING"]
    with worker:
        answer = server.assert_answered_once(server.enqueue("price", {"amount": "1.5"}), "success")
    assert answer["result"] == "str"
