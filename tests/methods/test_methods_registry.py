"""Registries: names, options, duplicates, inclusion, and the function that stays the same."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import pickle
import subprocess
import sys
from typing import Any

import method_samples
import pytest

from kiwi_worker.errors import DefinitionError
from kiwi_worker.methods import HandlerDefinition, HandlerOptions, HandlerRegistry, Registry


def hello(name: str = "world") -> str:
    """Say hello.

    To anyone.
    """
    return f"hello {name}"


def test_the_decorator_gives_the_same_function_back() -> None:
    registry = Registry()
    assert registry.method(hello) is hello
    assert registry.method("other", time_limit=3)(hello) is hello
    assert registry.method()(test_the_decorator_gives_the_same_function_back) is (
        test_the_decorator_gives_the_same_function_back
    )
    assert not vars(hello)


def test_a_definition_is_frozen_and_describes_the_handler() -> None:
    registry = Registry()
    registry.method("greet", time_limit=2.5, concurrency=3, on_crash="run_again", idempotent=True)(hello)
    definition = registry["greet"]
    assert definition.name == "greet"
    assert definition.function is hello
    assert definition.doc == "Say hello.\n\nTo anyone."
    assert definition.options == HandlerOptions(
        time_limit=2.5, concurrency=3, on_crash="run_again", idempotent=True
    )
    with pytest.raises(AttributeError, match="immutable"):
        definition.name = "x"  # type: ignore[misc]


def test_a_partial_is_described_by_its_inner_function() -> None:
    registry = Registry()
    registry.method(functools.partial(hello))
    assert registry["hello"].doc.startswith("Say hello.")


def test_one_function_may_have_several_names_and_registries() -> None:
    one, two = Registry(), Registry()
    one.method("a")(hello)
    one.method("b")(hello)
    two.method(hello)
    assert one.names() == ["a", "b"]
    assert two.names() == ["hello"]


def test_a_name_defined_twice_is_refused_naming_both_functions() -> None:
    registry = Registry()
    registry.method(hello)
    with pytest.raises(DefinitionError) as caught:
        registry.method("hello")(method_samples.double)
    assert f"`hello` is defined twice: by {__name__}.hello ({__file__}:" in str(caught.value)
    assert "by method_samples.double (" in str(caught.value)
    assert registry["hello"].function is hello


def test_include_takes_over_definitions_once() -> None:
    registry = Registry()
    registry.include(method_samples.registry)
    registry.include(method_samples.registry)
    assert registry.names() == method_samples.registry.names()
    assert registry["pay"] is method_samples.registry["pay"]
    assert "pay" in registry
    assert registry.get("nothing") is None
    assert len(registry) == len(list(registry))


def test_include_refuses_a_name_taken_by_another_function() -> None:
    registry = Registry()
    registry.method("pay")(hello)
    with pytest.raises(DefinitionError, match="`pay` is defined twice"):
        registry.include(method_samples.registry)


@pytest.mark.parametrize(
    "name", ["a/b", "/", "a\nb", "a\x00", "\x1b[0m", " a", "a ", "", "\ud800", "a\u2028b"]
)
def test_names_that_cannot_be_served_are_refused(name: str) -> None:
    with pytest.raises(DefinitionError):
        Registry().method(name)(hello)


@pytest.mark.parametrize("name", ["a", "payments.charge", "überweisen", "two words", "日本"])
def test_names_that_can_be_served(name: str) -> None:
    registry = Registry()
    registry.method(name)(hello)
    assert registry.names() == [name]


@pytest.mark.parametrize(
    "options",
    [
        {"time_limit": 0},
        {"time_limit": -1},
        {"time_limit": float("inf")},
        {"time_limit": float("nan")},
        {"time_limit": "5"},
        {"time_limit": True},
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"concurrency": True},
        {"executor": "fiber"},
        {"on_crash": "retry"},
        {"idempotent": "yes"},
        {"extra_keys": "drop"},
        {"strict": 1},
    ],
)
def test_an_option_out_of_range_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=next(iter(options))):
        Registry().method("x", **options)


def test_a_misspelt_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(DefinitionError, match="unknown option `time_limt`, known: `time_limit`"):
        Registry().method("x", time_limt=5)  # type: ignore[call-overload]


def test_an_async_function_cannot_run_in_a_process() -> None:
    async def handler() -> None: ...

    with pytest.raises(DefinitionError, match="async function runs on the event loop"):
        Registry().method("x", executor="process")(handler)


def test_a_registry_can_be_keyed_by_more_than_a_name() -> None:
    registry: HandlerRegistry[tuple[str, str], HandlerDefinition] = HandlerRegistry()
    definition = method_samples.registry["double"]
    registry.add(("double", "1.0.0"), definition)
    registry.add(("double", "2.0.0"), definition)
    assert registry.names() == [("double", "1.0.0"), ("double", "2.0.0")]


def test_defining_handlers_configures_no_logging_and_starts_nothing() -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level, logging.getLogger("kiwi_worker").handlers[:])
    Registry().method(hello)
    assert (list(root.handlers), root.level, logging.getLogger("kiwi_worker").handlers[:]) == before


def test_a_decorated_function_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(method_samples.double)) is method_samples.double


@pytest.mark.parametrize("start_method", multiprocessing.get_all_start_methods())
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_decorated_function_runs_in_a_child(start_method: str) -> None:
    context = multiprocessing.get_context(start_method)
    with context.Pool(1) as pool:
        assert pool.apply(method_samples.double, (21,)) == 42
        pool.close()
        pool.join()


def test_defining_handlers_loads_neither_asyncio_nor_an_http_library_nor_pydantic() -> None:
    code = (
        "import sys, kiwi_worker.methods, kiwi_worker.inputs, kiwi_worker.results\n"
        "r = kiwi_worker.methods.Registry()\n"
        "@r.method\n"
        "def f(a: int, b: list[str] = []): pass\n"
        "r['f'].plan.bind(b'{\"a\":1}', None)\n"
        "kiwi_worker.results.encode_result({'a': [1, 'x']})\n"
        "print([m for m in ('asyncio', 'requests', 'urllib3', 'ssl', 'click', 'pydantic', 'numpy') "
        "if m in sys.modules])\n"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "[]\n", "")
