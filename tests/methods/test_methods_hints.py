"""Type hints that are strings, unresolvable, local or inherited through decorators."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import sys
from typing import Annotated, Any, Optional, TypeVar

import method_samples
import pytest

from kiwi_worker.context import Context
from kiwi_worker.errors import DefinitionError, InvalidParameters
from kiwi_worker.methods import Registry

CONTEXT = object()


class ReportContext(Context):
    """A context with more in it."""


def test_string_annotations_are_checked_like_real_ones() -> None:
    bind = method_samples.registry["pay"].plan.bind
    assert bind(b'{"item":{"amount":3}}', CONTEXT) == ((method_samples.Shop.Item(3),), {"ctx": CONTEXT})
    with pytest.raises(InvalidParameters, match=r"`amount` expected `int`, got .* `\$\.item\.amount`"):
        bind(b'{"item":{"amount":"3"}}', CONTEXT)


def test_a_decorated_function_is_checked_by_the_hints_of_the_inner_one() -> None:
    bind = method_samples.registry["wrapped"].plan.bind
    with pytest.raises(InvalidParameters, match=r"at `\$\.item\.amount`"):
        bind(b'{"item":{"amount":"3"}}', None)


def test_a_nested_class_named_from_its_class_body_is_resolved() -> None:
    bind = method_samples.registry["shop.count"].plan.bind
    assert bind(b'{"items":[{"amount":1}]}', None) == (([method_samples.Shop.Item(1)],), {})


def test_context_under_type_checking_still_receives_the_context() -> None:
    assert method_samples.registry["pay"].plan.signature.context_name == "ctx"
    assert method_samples.registry["tip"].plan.signature.context_name == "ctx"


def test_unresolvable_hints_fall_back_to_no_check_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    sys.modules.pop("method_samples")
    with caplog.at_level(logging.WARNING, logger="kiwi_worker.methods"):
        fresh = importlib.import_module("method_samples")
    sys.modules["method_samples"] = method_samples
    assert len(caplog.records) == 1
    record = caplog.records[0]
    assert record.__dict__["action"] == "skip_type_hint"
    assert record.__dict__["method"] == "tip"
    assert "`price`" in record.getMessage()
    assert "Money" in record.getMessage()
    bind = fresh.registry["tip"].plan.bind
    assert bind(b'{"price":"anything"}', CONTEXT) == (("anything", 10, CONTEXT), {})
    with pytest.raises(InvalidParameters, match="`percent` expected `int`"):
        bind(b'{"price":1,"percent":"2"}', CONTEXT)


def test_types_local_to_a_function_are_resolved() -> None:
    @dataclasses.dataclass
    class Local:
        size: int

    registry = Registry()

    @registry.method
    def measure(local: Local, others: list[Local]) -> int:
        return local.size

    with pytest.raises(InvalidParameters, match=r"at `\$\.others\[0\]\.size`"):
        registry["measure"].plan.bind(b'{"local":{"size":1},"others":[{"size":"1"}]}', None)


def test_a_dataclass_whose_own_fields_cannot_be_resolved_costs_only_its_check(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @dataclasses.dataclass
    class Open:
        part: Nowhere  # type: ignore[name-defined]  # noqa: F821

    registry = Registry()

    @registry.method
    def inspect(thing: Open, size: int) -> None: ...

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert registry["inspect"].plan.bind(b'{"thing":{"part":1},"size":2}', None) == (({"part": 1}, 2), {})


@pytest.mark.parametrize(
    "hint",
    [Context, Optional[Context], ReportContext, Annotated[Context, "the call"], "Context | None"],  # noqa: UP045
)
def test_whatever_its_name_the_annotated_parameter_receives_the_context(hint: Any) -> None:
    def handler(value: int, whatever: Any = None) -> None: ...

    handler.__annotations__["whatever"] = hint
    registry = Registry()
    registry.method(handler)
    assert registry["handler"].plan.bind(b'{"value":1}', CONTEXT) == ((1, CONTEXT), {})


def test_two_parameters_asking_for_the_context_are_refused() -> None:
    def handler(one: Context, two: Context) -> None: ...

    with pytest.raises(DefinitionError, match="`one` and `two` both ask for the context"):
        Registry().method(handler)


def test_gathered_parameters_cannot_ask_for_the_context() -> None:
    def handler(*contexts: Context) -> None: ...

    with pytest.raises(DefinitionError, match="`contexts` gathers parameters"):
        Registry().method(handler)


def test_an_unbound_type_variable_is_not_checked() -> None:
    thing = TypeVar("thing")

    def handler(value: thing) -> thing:
        return value

    registry = Registry()
    registry.method(handler)
    assert registry["handler"].plan.bind(b'{"value":[1]}', None) == (([1],), {})


def test_a_type_that_no_json_can_be_read_into_is_refused_by_name() -> None:
    class Engine: ...

    def handler(engine: list[Engine]) -> None: ...

    with pytest.raises(DefinitionError, match="parameter `engine`: `Engine` cannot be read from JSON"):
        Registry().method(handler)


def test_a_callable_without_a_readable_signature_is_refused() -> None:
    with pytest.raises(DefinitionError, match="no readable signature"):
        Registry().method("update")({}.update)
