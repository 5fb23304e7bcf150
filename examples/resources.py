"""A database that all handlers share, and a transaction around every call."""

import sqlite3
from collections.abc import Iterator

from kiwi_worker import Context, Worker

worker = Worker()


@worker.resource
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.execute("create table visits (name text)")
    yield connection
    connection.close()


@worker.around
def transaction(ctx: Context) -> Iterator[None]:
    with ctx.resources.database:
        yield


@worker.method(concurrency=1)
def visit(name: str, *, ctx: Context) -> int:
    ctx.resources.database.execute("insert into visits values (?)", (name,))
    (count,) = ctx.resources.database.execute("select count(*) from visits").fetchone()
    return int(count)


if __name__ == "__main__":
    worker.run()
