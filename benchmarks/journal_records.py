"""How long one journal record takes, in nanoseconds: `python benchmarks/journal_records.py [DIRECTORY]`.

One thread first, record by record; then what a slot writes for a message (its share of a batch, started,
outcome, forgotten) from one thread and from eight; then recovery.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from kiwi_worker.engine.journal import Journal

ROUNDS = 50_000
PARAMS = b'{"name": "world", "amount": 12345, "currency": "EUR", "note": "%s"}' % (b"x" * 100)
RESULT = b'{"status": "success", "result": "%s", "error_text": null}' % (b"y" * 100)
KEYS = [f"0b7f6a5e-9c1d-4e0f-8a2b-{number:012d}" for number in range(ROUNDS)]


def measure(name: str, count: int, work: Callable[[], object]) -> None:
    """Print how long each of the `count` things that `work` does took."""
    start = time.perf_counter_ns()
    work()
    print(f"{name:42}{(time.perf_counter_ns() - start) / count:10,.0f} ns")


def each(act: Callable[[str], object]) -> Callable[[], None]:
    """Call `act` with every key."""

    def work() -> None:
        for key in KEYS:
            act(key)

    return work


def handle(journal: Journal, keys: list[str]) -> None:
    """What is written for messages that arrive eight at a time."""
    for start in range(0, len(keys), 8):
        batch = keys[start : start + 8]
        journal.received([(key, PARAMS) for key in batch])
        for key in batch:
            journal.started(key)
            journal.outcome(key, RESULT)
            journal.forgotten(key)


def handle_in_threads(journal: Journal, count: int) -> None:
    """`handle` all keys, shared out to `count` threads."""
    threads = [threading.Thread(target=handle, args=(journal, KEYS[n::count])) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Measure and print."""
    logging.disable()
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as directory:
        path = os.path.join(directory, "journal")
        with Journal.open(path, worker_id="benchmark", compact_bytes=1 << 30, max_bytes=1 << 30) as journal:
            measure(
                "received, 8 at a time, per message",
                ROUNDS,
                lambda: [
                    journal.received([(key, PARAMS) for key in KEYS[start : start + 8]])
                    for start in range(0, ROUNDS, 8)
                ],
            )
            measure("claimed", ROUNDS, each(journal.claimed))
            measure("started", ROUNDS, each(journal.started))
            measure("outcome", ROUNDS, each(lambda key: journal.outcome(key, RESULT)))
            measure("forgotten", ROUNDS, each(journal.forgotten))
        with Journal.open(path, worker_id="benchmark") as journal:
            measure("a whole message, rewrites included", ROUNDS, lambda: handle(journal, KEYS))
            measure("the same from 8 threads", ROUNDS, lambda: handle_in_threads(journal, 8))
            journal.received([(key, PARAMS) for key in KEYS])
        measure("recovered, per entry", ROUNDS, lambda: Journal.open(path, worker_id="benchmark").close())


if __name__ == "__main__":
    main()
