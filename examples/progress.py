"""Feedback while a call runs, a time limit, and a handler that stops when it is told to."""

from kiwi_worker import Context, MethodFailed, Worker

worker = Worker()


@worker.method(time_limit=60)
def count_up(steps: int, *, ctx: Context) -> int:
    for step in range(steps):
        if ctx.cancelled.wait(0.05):
            raise MethodFailed(f"stopped after {step} steps")
        ctx.feedback({"done": step + 1, "of": steps})
    return steps


if __name__ == "__main__":
    worker.run()
