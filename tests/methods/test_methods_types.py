"""Types of parameters: what is read, what is refused, and with which words."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import pathlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict, Union

import msgspec
import pytest

from kiwi_worker.errors import DefinitionError, InvalidParameters
from kiwi_worker.methods import Registry

UTC = datetime.timezone.utc


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Cat:
    lives: int


@dataclasses.dataclass
class Dog:
    name: str


@dataclasses.dataclass
class Node:
    value: int
    inner: Optional[Node] = None  # noqa: UP045


class Point(NamedTuple):
    x: int
    y: int = 0


class Address(TypedDict):
    street: str


class Price(msgspec.Struct, forbid_unknown_fields=True):
    amount: Annotated[int, msgspec.Meta(ge=0)]


class Tagged(msgspec.Struct, tag=True):
    a: int


class Other(msgspec.Struct, tag=True):
    b: int


@dataclasses.dataclass
class Picky:
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("size is negative")
        if self.size > 9:
            raise LookupError("size is too large")


def bind(hint: Any, value: str, **options: Any) -> Any:
    registry = Registry()

    def handler(value: Any) -> None: ...

    handler.__annotations__["value"] = hint
    registry.method("f", **options)(handler)
    return registry["f"].plan.bind(f'{{"value":{value}}}'.encode(), None)[0][0]


@pytest.mark.parametrize(
    ("hint", "given", "expected"),
    [
        (int, "5", 5),
        (int, "1" + "0" * 30, 10**30),
        (float, "5", 5.0),
        (bool, "true", True),
        (Any, '{"a":[1]}', {"a": [1]}),
        (object, '{"a":[1]}', {"a": [1]}),
        (dict[str, object], '{"a":[1]}', {"a": [1]}),
        (dict, '{"a":1}', {"a": 1}),
        (list, "[1]", [1]),
        (list[int], "[1]", [1]),
        (set[int], "[1,1]", {1}),
        (frozenset[int], "[1]", frozenset({1})),
        (tuple[int, str], '[1,"a"]', (1, "a")),
        (tuple[int, ...], "[1,2]", (1, 2)),
        (Sequence[int], "[1]", [1]),
        (Iterable[int], "[1]", [1]),
        (Iterable, "[1]", [1]),
        (Mapping[str, int], '{"a":1}', {"a": 1}),
        (dict[int, Color], '{"1":"red"}', {1: Color.RED}),
        (dict[uuid.UUID, int], '{"00000000-0000-0000-0000-000000000001":1}', {uuid.UUID(int=1): 1}),
        (bytes, '"eA=="', b"x"),
        (Color, '"red"', Color.RED),
        (Level, "2", Level.HIGH),
        (Literal["a", 1], '"a"', "a"),
        (uuid.UUID, '"00000000-0000-0000-0000-000000000001"', uuid.UUID(int=1)),
        (decimal.Decimal, '"1.50"', decimal.Decimal("1.50")),
        (datetime.datetime, '"2024-01-02T03:04:05Z"', datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (datetime.date, '"2024-01-02"', datetime.date(2024, 1, 2)),
        (datetime.time, '"03:04:05"', datetime.time(3, 4, 5)),
        (datetime.timedelta, '"P1D"', datetime.timedelta(days=1)),
        (Cat, '{"lives":9}', Cat(9)),
        (Cat, '{"lives":9,"more":1}', Cat(9)),
        (Node, '{"value":1,"inner":{"value":2}}', Node(1, Node(2))),
        (Point, "[1,2]", Point(1, 2)),
        (Address, '{"street":"x"}', {"street": "x"}),
        (Price, '{"amount":0}', Price(0)),
        (list[dict[str, Optional[Cat]]], '[{"a":null,"b":{"lives":1}}]', [{"a": None, "b": Cat(1)}]),  # noqa: UP045
        (Optional[int], "null", None),  # noqa: UP045
        (Union[int, str], '"x"', "x"),  # noqa: UP007
        (Union[int, str, None], "null", None),  # noqa: UP007
        (Union[Tagged, Other], '{"type":"Other","b":1}', Other(1)),  # noqa: UP007
        (Union[Cat, int], "3", 3),  # noqa: UP007
        (Annotated[int, msgspec.Meta(ge=1)], "1", 1),
        (Annotated[int, "a remark"], "1", 1),
        (pathlib.Path, '"/x"', pathlib.Path("/x")),
        (list[pathlib.Path], '["/x"]', [pathlib.Path("/x")]),
        (msgspec.Raw, "[1, 2]", msgspec.Raw(b"[1, 2]")),
    ],
)
def test_types_that_are_read(hint: Any, given: str, expected: Any) -> None:
    value = bind(hint, given)
    if isinstance(expected, msgspec.Raw):
        value, expected = bytes(value), bytes(expected)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("hint", "given", "text"),
    [
        (int, '"5"', "`value` expected `int`, got `str` - at `$.value`"),
        (int, "3.0", "`value` expected `int`, got `float` - at `$.value`"),
        (list[int], '[1,"2"]', "`value[1]` expected `int`, got `str` - at `$.value[1]`"),
        (dict[str, int], '{"a":"2"}', "`value[...]` expected `int`, got `str` - at `$.value[...]`"),
        (dict[int, int], '{"a":2}', "`value (key)` expected `int`, got `str` - at `$.value`"),
        (Cat, "{}", "`value` is missing the required field `lives` - at `$.value`"),
        (list[Cat], '[{"lives":"9"}]', "`lives` expected `int`, got `str` - at `$.value[0].lives`"),
        (Price, '{"amount":-1}', "`amount` expected `int` >= 0 - at `$.value.amount`"),
        (Price, '{"amount":1,"x":1}', "`value` has the unknown field `x` - at `$.value`"),
        (Color, '"blue"', "`value` expected one of 'red', 'green', got 'blue' - at `$.value`"),
        (list[Color], '["blue"]', "`value[0]` expected one of 'red', 'green', got 'blue' - at `$.value[0]`"),
        (Literal["a", "b"], '"c"', "`value` expected one of 'a', 'b', got 'c' - at `$.value`"),
        (Level, "3", "`value` expected one of 1, 2, got 3 - at `$.value`"),
        (datetime.date, '"x"', "`value`: invalid RFC3339 encoded date - at `$.value`"),
        (uuid.UUID, '"x"', "`value`: invalid UUID - at `$.value`"),
        (pathlib.Path, "1", "`value` expected `str`, got `int` - at `$.value`"),
        (Picky, '{"size":-1}', "`value`: size is negative - at `$.value`"),
        (Picky, '{"size":10}', "params: LookupError: size is too large"),
    ],
)
def test_values_that_do_not_fit(hint: Any, given: str, text: str) -> None:
    with pytest.raises(InvalidParameters) as caught:
        bind(hint, given)
    assert str(caught.value) == f"Invalid parameters for `f`: {text}"


@pytest.mark.parametrize(
    ("hint", "given", "expected"),
    [
        (Union[Cat, Dog], '{"lives":9}', Cat(9)),  # noqa: UP007
        (Union[Cat, Dog], '{"name":"x"}', Dog("x")),  # noqa: UP007
        (list[Union[Cat, Dog]], '[{"name":"x"},{"lives":1}]', [Dog("x"), Cat(1)]),  # noqa: UP007
        (Optional[Union[Cat, Dog]], "null", None),  # noqa: UP007, UP045
        (Union[datetime.date, str], '"2024-01-02"', datetime.date(2024, 1, 2)),  # noqa: UP007
        (Union[datetime.date, str], '"soon"', "soon"),  # noqa: UP007
        (Union[list[int], list[str]], '["a"]', ["a"]),  # noqa: UP007
        (dict[str, Union[Cat, Dog]], '{"a":{"lives":1}}', {"a": Cat(1)}),  # noqa: UP007
        (Union[dict, Cat], '{"lives":1}', {"lives": 1}),  # noqa: UP007
        (Union[pathlib.Path, int], "1", 1),  # noqa: UP007
        ("Cat | Dog", '{"name":"x"}', Dog("x")),
    ],
)
def test_unions_that_cannot_be_told_apart_are_read_from_left_to_right(
    hint: Any, given: str, expected: Any
) -> None:
    assert bind(hint, given) == expected


def test_a_value_that_fits_no_member_of_a_union_is_told_why() -> None:
    with pytest.raises(InvalidParameters) as caught:
        bind(list[Union[Cat, Dog]], '[{"lives":"x"}]')  # noqa: UP007
    text = str(caught.value)
    assert "`value[0]` expected `Cat | Dog`, got `object` that fits none" in text
    assert "Expected `int`, got `str` at `$.lives`" in text
    assert text.endswith("- at `$.value[0]`")


@dataclasses.dataclass
class Holder:
    pet: Union[Cat, Dog]  # noqa: UP007


class Unknown: ...


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (Holder, "may not contain more than one dataclass"),
        (Unknown, "`Unknown` cannot be read from JSON"),
        (list[Unknown], "`Unknown` cannot be read from JSON"),
        (Union[Unknown, Cat], "`Unknown` cannot be read from JSON"),  # noqa: UP007
        (collections.deque, "`deque` cannot be read from JSON"),
        (complex, "`complex` cannot be read from JSON"),
        (5, "`handler`|'5'|not supported|5"),
        (Literal[1.5], "Literal"),  # type: ignore[valid-type]
    ],
)
def test_types_that_cannot_be_read_are_refused_at_definition(hint: Any, text: str) -> None:
    with pytest.raises(DefinitionError, match=rf"`f`: parameter `value`: .*({text})"):
        bind(hint, "null")


def test_relaxed_types() -> None:
    assert bind(list[int], '["5"]', strict=False) == [5]
    assert bind(bool, '"true"', strict=False) is True
    assert bind(Cat, '{"lives":"9"}', strict=False) == Cat(9)
    assert bind(Union[Cat, Dog], '{"lives":"9"}', strict=False) == Cat(9)  # noqa: UP007


def test_attrs_classes_are_read() -> None:
    attrs = pytest.importorskip("attrs")
    order = attrs.make_class("Order", {"count": attrs.field(type=int)})
    assert bind(list[order], '[{"count":1}]')[0].count == 1
    with pytest.raises(InvalidParameters, match=r"`count` expected `int`, .* `\$\.value\[0\]\.count`"):
        bind(list[order], '[{"count":"1"}]')
