"""Calls with a lock: every worker that has the method is offered one, and exactly one of them runs it.

The caller asks for it: `kiwi-worker call SERVICE/reserve seat=12C --lock`. Start two workers to see both.
"""

from kiwi_worker import Worker

worker = Worker()


@worker.method
def reserve(seat: str) -> str:
    return f"{seat} reserved by {worker.settings.worker_id}"


if __name__ == "__main__":
    worker.run()
