"""A process that writes a journal and says on standard output what it has written, until it is killed:
`python journal_writer.py PATH WORKER_ID THREADS COMPACT_BYTES SYNC`.

Each line is an act that has returned: `received 0-1,0-2`, `started 0-1 1`, `outcome 0-1`, `forgotten 0-1`.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from typing import Literal

from kiwi_worker.engine.journal import Journal


def body_of(kind: str, key: str) -> bytes:
    """The body this writer gives: of another size for each key, some over a page."""
    return f"{kind}:{key}:".encode() * (1 + hash_of(key) % 97) * (40 if hash_of(key) % 13 == 0 else 1)


def hash_of(key: str) -> int:
    """The same number in every process."""
    return sum(key.encode()) * 31


def say(line: str) -> None:
    """One write, so that lines of several threads stay whole."""
    os.write(1, line.encode() + b"\n")


def write(journal: Journal, name: int) -> None:
    """Write for ever; every fifth batch is left as received, every seventh started, each ninth unanswered."""
    for number in itertools.count():
        keys = [f"{name}-{number}-{index}" for index in range(4)]
        journal.received([(key, body_of("in", key)) for key in keys])
        say(f"received {','.join(keys)}")
        for key in keys:
            handle(journal, key, number)


def handle(journal: Journal, key: str, number: int) -> None:
    """Bring one key as far as it goes."""
    if number % 5 == 4:
        return
    claimed = number % 2 == 0
    say(f"started {key} {journal.started(key, claimed=claimed)}")
    if number % 7 == 6:
        return
    journal.outcome(key, body_of("out", key))
    say(f"outcome {key}")
    if number % 9 == 8:
        return
    journal.forgotten(key)
    if number % 3 == 0:
        journal.flush()
        say(f"forgotten {key}")


def main() -> None:
    """Open the journal and write from some threads."""
    path, worker_id, threads, compact_bytes, sync = sys.argv[1:]
    modes: dict[str, Literal["interval", "always"] | None] = {
        "none": None,
        "interval": "interval",
        "always": "always",
    }
    journal = Journal.open(path, worker_id=worker_id, compact_bytes=int(compact_bytes), sync=modes[sync])
    say("open")
    for name in range(int(threads)):
        threading.Thread(target=write, args=(journal, name), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
