"""Pydantic models as parameters and results."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
from typing import Annotated, Any, Optional, Union

import pytest

from kiwi_worker.errors import InvalidParameters, UnencodableResult
from kiwi_worker.inputs import InputPlan
from kiwi_worker.methods import Registry
from kiwi_worker.results import encode_result
from kiwi_worker.signatures import read_signature

pydantic = pytest.importorskip("pydantic")


class Line(pydantic.BaseModel):  # type: ignore[misc, name-defined, unused-ignore]
    sku: str
    count: Annotated[int, pydantic.Field(gt=0)] = 1
    due: Optional[datetime.date] = None  # noqa: UP045


class Order(pydantic.BaseModel):  # type: ignore[misc, name-defined, unused-ignore]
    model_config = pydantic.ConfigDict(extra="forbid")

    lines: list[Line]
    total: decimal.Decimal = decimal.Decimal(0)


class Refund(pydantic.BaseModel):  # type: ignore[misc, name-defined, unused-ignore]
    reason: str


class Measured(pydantic.BaseModel):  # type: ignore[misc, name-defined, unused-ignore]
    value: float
    secret: Any = None


@pydantic.dataclasses.dataclass
class Parcel:
    weight: Annotated[int, pydantic.Field(gt=0)]


@dataclasses.dataclass
class Basket:
    order: Order


def bind(hint: Any, value: str, **options: Any) -> Any:
    registry = Registry()

    def handler(value: Any) -> None: ...

    handler.__annotations__["value"] = hint
    registry.method("f", **options)(handler)
    return registry["f"].plan.bind(f'{{"value":{value}}}'.encode(), None)[0][0]


LINE = '{"sku":"x","due":"2024-01-02"}'


@pytest.mark.parametrize(
    ("hint", "given", "expected"),
    [
        (Line, LINE, Line(sku="x", due=datetime.date(2024, 1, 2))),
        (list[Line], f"[{LINE}]", [Line(sku="x", due=datetime.date(2024, 1, 2))]),
        (Optional[Line], "null", None),  # noqa: UP045
        (Optional[Line], '{"sku":"x"}', Line(sku="x")),  # noqa: UP045
        (dict[str, list[Line]], '{"a":[{"sku":"x"}]}', {"a": [Line(sku="x")]}),
        (Order, '{"lines":[],"total":"1.5"}', Order(lines=[], total=decimal.Decimal("1.5"))),
        (Basket, '{"order":{"lines":[]}}', Basket(Order(lines=[]))),
        (Union[Line, Refund], '{"reason":"x"}', Refund(reason="x")),  # noqa: UP007
        (list[Union[Line, Refund]], '[{"reason":"x"}]', [Refund(reason="x")]),  # noqa: UP007
        (Union[Line, int, None], "3", 3),  # noqa: UP007
        (Parcel, '{"weight":1}', Parcel(1)),
        (Annotated[int, pydantic.Field(gt=0)], "1", 1),
    ],
)
def test_models_are_read_anywhere_in_a_type(hint: Any, given: str, expected: Any) -> None:
    assert bind(hint, given) == expected


@pytest.mark.parametrize(
    ("hint", "given", "text"),
    [
        (Line, '{"sku":1}', "`sku` expected `str`, got `int` - at `$.value.sku`"),
        (Line, "[]", "`value` expected `object`, got `array` - at `$.value`"),
        (Line, "{}", "`value` is missing the required field `sku` - at `$.value`"),
        (Line, '{"sku":"x","count":"1"}', "`count` expected `int`, got `str` - at `$.value.count`"),
        (Line, '{"sku":"x","count":0}', "`count`: input should be greater than 0 - at `$.value.count`"),
        (list[Line], '[{"sku":1}]', "`sku` expected `str`, got `int` - at `$.value[0].sku`"),
        (Order, '{"lines":[{"sku":1}]}', "`sku` expected `str`, got `int` - at `$.value.lines[0].sku`"),
        (Order, '{"lines":[],"x":1}', "`value` has the unknown field `x` - at `$.value`"),
        (
            Order,
            '{"lines":[{"sku":1,"count":0}]}',
            "`sku` expected `str`, got `int` (and 1 more) - at `$.value.lines[0].sku`",
        ),
        (
            list[Union[Line, Refund]],  # noqa: UP007
            '[{"reason":5}]',
            "`value[0]` is missing the required field `sku` (and 1 more) - at `$.value[0]`",
        ),
        (Parcel, '{"weight":0}', "`weight`: input should be greater than 0 - at `$.value.weight`"),
        (Annotated[int, pydantic.Field(gt=0)], "0", "`value`: input should be greater than 0 - at `$.value`"),
    ],
)
def test_values_that_do_not_fit_are_told_in_the_same_words(hint: Any, given: str, text: str) -> None:
    with pytest.raises(InvalidParameters) as caught:
        bind(hint, given)
    assert str(caught.value) == f"Invalid parameters for `f`: {text}"


def test_models_are_relaxed_with_their_handler() -> None:
    assert bind(Line, '{"sku":"x","count":"2"}', strict=False).count == 2


def test_models_are_inputs_of_tasks() -> None:
    def charge(order: Order) -> None: ...

    plan = InputPlan(read_signature(charge, "charge"), "charge")
    assert plan.bind_value({"lines": [{"sku": "x"}]}, None) == ((Order(lines=[Line(sku="x")]),), {})
    with pytest.raises(InvalidParameters, match=r"`sku` expected `str`, .* at `\$\.lines\[0\]\.sku`"):
        plan.bind(b'{"lines":[{"sku":1}]}', None)


def test_the_schema_has_the_definitions_of_models_at_its_root() -> None:
    registry = Registry()

    @registry.method
    def handler(orders: list[Order], either: Union[Line, Refund]) -> None: ...  # noqa: UP007

    schema = registry["handler"].params_schema
    assert {"handler", "Line", "Refund"} <= set(schema["$defs"])
    assert "sku" in schema["$defs"]["Line"]["properties"]


def test_models_are_results() -> None:
    assert encode_result({"a": [Line(sku="x", due=datetime.date(2024, 1, 2))]}) == (
        b'{"a":[{"sku":"x","count":1,"due":"2024-01-02"}]}'
    )
    assert encode_result(Parcel(2)) == b'{"weight":2}'


def test_nan_in_a_model_is_refused_though_pydantic_would_say_null() -> None:
    with pytest.raises(UnencodableResult, match=r"`float` at `\$\[0\]\.value`: NaN"):
        encode_result([Measured(value=float("nan"))])
    with pytest.raises(UnencodableResult, match="NaN"):
        encode_result({"a": None, "b": Measured(value=float("inf"))})


def test_what_only_pydantic_can_encode_does_not_count_as_nan() -> None:
    value = Measured(value=1.0, secret=pydantic.SecretStr("x"))
    assert encode_result([value, None]) == b'[{"value":1.0,"secret":"**********"},null]'


def test_a_model_that_cannot_be_dumped_is_refused() -> None:
    with pytest.raises(UnencodableResult, match="Measured"):
        encode_result([Measured(value=1.0, secret=object())])
