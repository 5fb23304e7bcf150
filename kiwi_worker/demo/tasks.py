"""The worker of the demo; two processes of it run, one lazy and one eager."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from kiwi_worker import Context, Worker

worker = Worker()


@worker.method
def hello(name: str = "world") -> str:
    """Greet somebody."""
    return f"hello {name}"


@dataclass
class Item:
    """One line of an order."""

    name: str
    price: Decimal
    count: int = 1


@worker.method
def total(items: list[Item]) -> Decimal:
    """What an order costs; the items are checked against their types before this is called."""
    return sum((item.price * item.count for item in items), Decimal(0))


@worker.method
def reserve(seat: str, *, ctx: Context) -> str:
    """Reserve a seat, and note who did: a call with a lock must be run by exactly one worker."""
    with Path(os.environ["DEMO_RESERVATIONS"]).open("a") as book:
        book.write(f"{seat} {ctx.request_id}\n")
    time.sleep(0.05)
    return worker.settings.worker_id


@worker.method
def longtask(steps: int, *, ctx: Context) -> str:
    """Take some time, and tell the caller how far it is."""
    for step in range(1, steps + 1):
        ctx.feedback({"done": step, "of": steps})
        time.sleep(0.15)
    return f"{steps} steps"


@worker.method
async def pause(seconds: float) -> float:
    """Sleep on the event loop, where many calls sleep at once without a thread each."""
    await asyncio.sleep(seconds)
    return seconds


@worker.method
def divide(a: int, b: int) -> float:
    """Raise, when b is 0."""
    return a / b
