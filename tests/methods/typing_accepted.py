"""What a type checker must accept: a decorated function keeps its static type."""

from __future__ import annotations

from kiwi_worker.context import Context
from kiwi_worker.methods import Registry

registry = Registry()


@registry.method
def bare(name: str, n: int = 0) -> str:
    return name * n


@registry.method("named", time_limit=2.5, concurrency=3, executor="process", on_crash="run_again")
def named(name: str, *, ctx: Context | None = None) -> list[str]:
    return [name]


@registry.method(idempotent=True, extra_keys="ignore", strict=False)
async def unnamed(name: str) -> int:
    return len(name)


class Service:
    @staticmethod
    @registry.method("static")
    def static(value: int) -> int:
        return value

    def bound(self, value: int) -> int:
        return value


registry.method("bound")(Service().bound)
registry.include(Registry())
definition = registry["bare"]

text: str = bare("a", n=2)
texts: list[str] = named("a")
number: int = Service.static(1)
is_async: bool = definition.is_async


async def caller() -> int:
    return await unnamed("a")
