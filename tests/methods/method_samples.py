"""Handlers in a module with string annotations: names under TYPE_CHECKING, nested classes, decorated ones."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

from kiwi_worker.methods import Registry

if TYPE_CHECKING:
    from decimal import Decimal as Money

    from kiwi_worker.context import Context

registry = Registry()


class Shop:
    @dataclasses.dataclass
    class Item:
        amount: int

    @staticmethod
    @registry.method("shop.count")
    def count(items: list[Item]) -> int:
        return sum(item.amount for item in items)


def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@registry.method
def pay(item: Shop.Item, *, ctx: Context) -> int:
    return item.amount


@registry.method
def tip(price: Money, percent: int = 10, ctx: Optional[Context] = None) -> Any:  # noqa: UP045
    return price


@registry.method
@passed_on
def wrapped(item: Shop.Item, times: int = 1) -> int:
    return item.amount * times


@registry.method
def double(value: int) -> int:
    return value * 2
