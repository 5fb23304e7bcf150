"""How the one input of a task reaches a handler, from JSON text and from decoded values."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Callable
from typing import Any, Optional

import msgspec
import pytest

from kiwi_worker.context import Context
from kiwi_worker.errors import DefinitionError, InvalidParameters
from kiwi_worker.inputs import InputPlan
from kiwi_worker.methods import Registry
from kiwi_worker.signatures import read_signature

CONTEXT = object()


class TaskContext(Context):
    """A context with more in it."""


class Mode(enum.Enum):
    FAST = "fast"


@dataclasses.dataclass
class Order:
    amount: int
    ids: list[uuid.UUID] = dataclasses.field(default_factory=list)
    mode: Mode = Mode.FAST


def plan_of(function: Callable[..., Any]) -> InputPlan:
    return InputPlan(read_signature(function, "payments.charge"), "payments.charge")


def plain(input: dict, ctx) -> Any:  # type: ignore[type-arg, no-untyped-def]
    return input, ctx


def second_of_any_name(data, task):  # type: ignore[no-untyped-def]
    return data, task


def annotated(data: dict[str, Any], call: Context) -> Any:
    return data, call


def derived(data: Any, *, call: TaskContext) -> Any:
    return data, call


def context_first(call: Context, data: Any) -> Any:
    return data, call


def with_more(data: Any, retries: int = 3, ctx: Any = None) -> Any:
    return data, CONTEXT


def with_own_context_default(data: Any, retries=3, ctx=None):  # type: ignore[no-untyped-def]
    return data, ctx


def positional_only(data: Any, ctx, /) -> Any:  # type: ignore[no-untyped-def]
    return data, ctx


def by_name(*, data: Any, ctx: Context) -> Any:
    return data, ctx


def gathering(*args: Any) -> Any:
    return args


def gathering_with_names(*args: Any, **kwargs: Any) -> Any:
    return args


def gathering_with_context(*args: Any, call: Context) -> Any:
    return args[0], call


@pytest.mark.parametrize(
    "function",
    [
        plain,
        second_of_any_name,
        annotated,
        derived,
        context_first,
        with_more,
        with_own_context_default,
        positional_only,
        by_name,
        gathering,
        gathering_with_names,
        gathering_with_context,
    ],
)
def test_input_and_context_go_where_they_are_asked_for(function: Callable[..., Any]) -> None:
    plan = plan_of(function)
    for args, kwargs in (plan.bind(b'{"a":[1]}', CONTEXT), plan.bind_value({"a": [1]}, CONTEXT)):
        assert function(*args, **kwargs) == ({"a": [1]}, CONTEXT)


def test_a_handler_may_leave_out_the_context_or_everything() -> None:
    assert plan_of(lambda data: data).bind(b"[1]", CONTEXT) == (([1],), {})
    assert plan_of(lambda: None).bind(b'{"a":1}', CONTEXT) == ((), {})
    assert plan_of(lambda: None).bind(b"not json", CONTEXT) == ((), {})
    assert plan_of(lambda ctx: None).bind(b'{"a":1}', CONTEXT) == ((CONTEXT,), {})
    assert plan_of(lambda context: None).bind_value({"a": 1}, CONTEXT) == ((CONTEXT,), {})


def test_an_absent_input_is_the_default_or_null() -> None:
    def defaulted(data: dict[str, int] = {"a": 1}) -> None: ...  # noqa: B006

    def nullable(data: Optional[dict[str, int]]) -> None: ...  # noqa: UP045

    for absent in (None, b"", msgspec.Raw()):
        assert plan_of(defaulted).bind(absent, None) == (({"a": 1},), {})
        assert plan_of(nullable).bind(absent, None) == ((None,), {})
        with pytest.raises(InvalidParameters, match="`input` expected `object`, got `null`"):
            plan_of(plain).bind(absent, None)


def typed(order: Order, ctx: Context) -> Any:
    return order


def test_typed_inputs_are_read_from_text_and_from_values() -> None:
    expected = Order(5, [uuid.UUID(int=1)])
    value = {"amount": 5, "ids": [str(uuid.UUID(int=1))], "mode": "fast"}
    assert plan_of(typed).bind(msgspec.json.encode(value), CONTEXT) == ((expected, CONTEXT), {})
    assert plan_of(typed).bind_value(value, CONTEXT) == ((expected, CONTEXT), {})


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (plain, [1], "`input` expected `object`, got `array` - at `$`"),
        (plain, None, "`input` expected `object`, got `null` - at `$`"),
        (typed, {"amount": "5"}, "`amount` expected `int`, got `str` - at `$.amount`"),
        (typed, {}, "`order` is missing the required field `amount` - at `$`"),
        (typed, {"amount": 1, "ids": ["x"]}, "`ids[0]`: invalid UUID - at `$.ids[0]`"),
        (typed, {"amount": 1, "mode": "slow"}, "`mode` expected one of 'fast', got 'slow' - at `$.mode`"),
    ],
)
def test_an_input_that_does_not_fit(function: Callable[..., Any], value: Any, text: str) -> None:
    plan = plan_of(function)
    for read, given in ((plan.bind, msgspec.json.encode(value)), (plan.bind_value, value)):
        with pytest.raises(InvalidParameters) as caught:
            read(given, CONTEXT)  # type: ignore[arg-type]
        assert str(caught.value) == f"Invalid input for `payments.charge`: {text}"


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(InvalidParameters, match=r"`payments\.charge`: input: not valid JSON"):
        plan_of(plain).bind(b"{", CONTEXT)
    with pytest.raises(InvalidParameters, match="nested too deep"):
        plan_of(second_of_any_name).bind(b"[" * 100_000, CONTEXT)


@pytest.mark.parametrize(
    "function",
    [
        lambda data, ctx, more: None,
        lambda ctx, data, more: None,
        lambda amount, currency, *, customer: None,
    ],
)
def test_a_handler_that_requires_more_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(DefinitionError, match=r"one input and the context, but .* required too"):
        plan_of(function)


def test_a_second_parameter_of_another_type_is_refused() -> None:
    def charge(amount: int, currency: str) -> None: ...

    with pytest.raises(DefinitionError, match="`currency` is required too"):
        plan_of(charge)


def test_one_function_serves_as_method_and_as_task() -> None:
    def charge(input: dict[str, int], ctx: Context) -> dict[str, int]:
        return {"charged": input["amount"]}

    registry = Registry()
    assert registry.method("charge")(charge) is charge
    task = plan_of(charge)
    method = registry["charge"].plan
    for args, kwargs in (
        task.bind(b'{"amount":5}', CONTEXT),
        method.bind(b'{"input":{"amount":5}}', CONTEXT),
    ):
        assert charge(*args, **kwargs) == {"charged": 5}


def test_the_schema_is_that_of_the_input() -> None:
    assert plan_of(typed).schema["$defs"]["Order"]["required"] == ["amount"]
    assert plan_of(lambda: None).schema == {}


def test_values_that_are_not_checked_are_handed_over_as_they_are() -> None:
    value = {"a": [1]}
    args, _ = plan_of(second_of_any_name).bind_value(value, CONTEXT)
    assert args[0] is value
