"""Parameters are checked against their annotations before the function is called."""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum

from kiwi_worker import MethodError, Worker

worker = Worker()


class Currency(Enum):
    EUR = "EUR"
    USD = "USD"


@dataclass
class Item:
    name: str
    price: Decimal
    count: int = 1


@worker.method
def order(items: list[Item], currency: Currency, due: date | None = None) -> dict[str, object]:
    if not items:
        raise MethodError("an order needs at least one item")
    total = sum((item.price * item.count for item in items), Decimal(0))
    return {"total": total, "currency": currency, "due": due}


if __name__ == "__main__":
    worker.run()
