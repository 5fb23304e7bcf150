"""What a type checker must reject; each line is named by the error code it must have."""

from __future__ import annotations

from kiwi_worker.methods import Registry

registry = Registry()


@registry.method
def hello(name: str) -> str:
    return name


@registry.method("other", time_limit=1)
async def other(name: str) -> str:
    return name


hello(5)  # error: arg-type
hello()  # error: call-arg
number: int = hello("a")  # error: assignment
text: str = other("a")  # error: assignment
registry.method(5)  # error: call-overload
registry.method("x", time_limt=5)  # error: call-overload
registry.method("x", executor="fiber")  # error: call-overload
registry.method("x", on_crash="retry")  # error: call-overload
registry.method("x", concurrency="3")  # error: call-overload
registry.method("x")(5)  # error: type-var
registry["hello"].name = "x"  # error: misc
registry[5]  # error: index
registry.include([])  # error: arg-type
