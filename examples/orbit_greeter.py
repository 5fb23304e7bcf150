"""An ORBIT task. In one terminal the dev runtime, in another the worker:

kiwi-worker orbit-runtime --deploy greet.toml
kiwi-worker run orbit_greeter
"""

from typing import Any

from kiwi_worker.orbit import OrbitWorker, TaskContext, TaskError

worker = OrbitWorker()


@worker.task("greeting.compose", version="1.0.0")
def compose(input: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
    if not input["name"]:
        raise TaskError("INVALID_NAME", "name is blank", retryable=False)
    ctx.log("attempt %d", ctx.attempt)
    return {"message": f"Hello, {input['name']}"}


if __name__ == "__main__":
    worker.run()
