"""What handlers return, as JSON text or as a refusal that names the type and the place."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import ipaddress
import json
import math
import pathlib
import types
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from kiwi_worker.errors import UnencodableResult
from kiwi_worker.results import encode_result

NAN, INFINITY = math.nan, math.inf


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntFlag):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Item:
    amount: Any


class Price(msgspec.Struct):
    amount: Any
    note: Any = None


class Point(NamedTuple):
    x: Any
    y: Any


class Text(str):
    def __str__(self) -> str:
        raise RuntimeError("not me")


class Number(int):
    def __int__(self) -> int:
        raise RuntimeError("not me")


class Ratio(float): ...


class Unreadable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class HostileMeta(type):
    def __instancecheck__(cls, instance: object) -> bool:
        raise RuntimeError("no check")


class Hostile(metaclass=HostileMeta):
    @property
    def dtype(self) -> Any:
        raise LookupError("hostile")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("hostile")


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class RaisesUnreadably:
    dtype = "x"

    def tolist(self) -> Any:
        raise UnreadableError


def numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (2**100, 2**100),
        (1.5, 1.5),
        ("ü\n\x00", "ü\n\x00"),
        ({"a": None, "null": "null"}, {"a": None, "null": "null"}),
        ([1, (2, 3)], [1, [2, 3]]),
        ({1}, [1]),
        (frozenset({1}), [1]),
        (collections.deque([1]), [1]),
        (range(2), [0, 1]),
        ({"a": 1}.keys(), ["a"]),
        ({"a": 1}.values(), [1]),
        ({"a": 1}.items(), [["a", 1]]),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.defaultdict(int, a=1), {"a": 1}),
        (collections.Counter("a"), {"a": 1}),
        (collections.UserDict(a=1), {"a": 1}),
        (collections.UserList([1]), [1]),
        (collections.UserString("x"), "x"),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (
            {1: 1, 1.5: 1, Color.RED: 1, uuid.UUID(int=1): 1},
            {"1": 1, "1.5": 1, "red": 1, str(uuid.UUID(int=1)): 1},
        ),
        ({pathlib.PurePosixPath("/x"): 1, Text("t"): 2}, {"/x": 1, "t": 2}),
        (Item([Item(1)]), {"amount": [{"amount": 1}]}),
        (Price(1), {"amount": 1, "note": None}),
        (Point(1, None), [1, None]),
        (types.SimpleNamespace, "refused"),
        (Color.RED, "red"),
        (Level.LOW | Level.HIGH, 3),
        (datetime.datetime(2024, 1, 2, 3, 4, 5), "2024-01-02T03:04:05"),
        (datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone.utc), "2024-01-02T00:00:00Z"),
        (datetime.date(2024, 1, 2), "2024-01-02"),
        (datetime.time(3, 4), "03:04:00"),
        (datetime.timedelta(days=1), "P1D"),
        (decimal.Decimal("1.50"), "1.50"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (pathlib.PurePosixPath("/x"), "/x"),
        (ipaddress.ip_address("::1"), "::1"),
        (ipaddress.ip_network("10.0.0.0/8"), "10.0.0.0/8"),
        (b"x", "eA=="),
        (bytearray(b"x"), "eA=="),
        (memoryview(b"x"), "eA=="),
        (Text("t"), "t"),
        (Number(5), 5),
        (Ratio(1.5), 1.5),
        (msgspec.Raw(b"[1]"), [1]),
    ],
)
def test_documented_encodings(value: Any, expected: Any) -> None:
    if expected == "refused":
        with pytest.raises(UnencodableResult):
            encode_result(value)
        return
    assert json.loads(encode_result(value)) == expected


def circular() -> list[Any]:
    value: list[Any] = [1]
    value.append({"again": value})
    return value


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "culprit", "place"),
    [
        (object(), "object", "$"),
        ({"a": [1, object()]}, "object", "$.a[1]"),
        ({"a b": {3: object()}}, "object", "$['a b'][3]"),
        (Item({"x": Unreadable()}), "Unreadable", "$.amount.x"),
        (Price([Item(object())]), "object", "$.amount[0].amount"),
        (Point(1, object()), "object", "$[1]"),
        (collections.UserDict(a=object()), "object", "$.a"),
        ([numbers()], "generator", "$[0]"),
        (map(str, [1]), "map", "$"),
        (lambda: 1, "function", "$"),
        (int, "type", "$"),
        (json, "module", "$"),
        (ValueError("x"), "ValueError", "$"),
        ({"error": ValueError("x")}, "ValueError", "$.error"),
        (1j, "complex", "$"),
        ("\ud800", "str", "$"),
        ({"a": ["\udcff"]}, "str", "$.a[0]"),
        ({"\ud800": 1}, "dict", "$"),
        ({(1, 2): 1}, "dict", "$"),
        ({None: 1}, "dict", "$"),
        ({True: 1}, "dict", "$"),
        ({"a": {Item(1).amount: 1, frozenset(): 2}}, "dict", "$.a"),
        (circular(), "list", "$[1].again"),
        (NAN, "float", "$"),
        ([1, -INFINITY], "float", "$[1]"),
        ({"a": {"b": (1, NAN)}}, "float", "$.a.b[1]"),
        (Item([Item(INFINITY)]), "float", "$.amount[0].amount"),
        (Price(None, NAN), "float", "$.note"),
        ({NAN}, "float", "$[0]"),
        (collections.deque([NAN]), "float", "$[0]"),
        (collections.UserDict(a=NAN), "float", "$.a"),
        (Ratio("nan"), "Ratio", "$"),
        (msgspec.UNSET, "UnsetType", "$"),
    ],
)
def test_refusals_name_the_type_and_the_place(value: Any, culprit: str, place: str) -> None:
    with pytest.raises(UnencodableResult) as caught:
        encode_result(value)
    assert str(caught.value).startswith(f"result cannot be encoded as JSON: `{culprit}` at `{place}`: ")


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (numbers(), "return a list of what it gives"),
        (ValueError("x"), "raise it, or return its text"),
        (circular(), "it contains itself"),
        (deep(), "it is nested too deep"),
        ("\ud800", "not valid Unicode"),
        (NAN, "NaN and infinities have no JSON form"),
        ({(1, 2): 1}, "`tuple` cannot be a key of an object"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_refusals_say_what_to_do(value: Any, advice: str) -> None:
    with pytest.raises(UnencodableResult, match=advice):
        encode_result(value)


@pytest.mark.parametrize("make", [Hostile, Unreadable, RaisesUnreadably])
def test_objects_that_raise_when_they_are_looked_at_are_refused(make: type) -> None:
    for value, place in ((make(), "$"), ([make()], "$[0]")):
        with pytest.raises(UnencodableResult) as caught:
            encode_result(value)
        assert f"`{make.__name__}` at `{place}`" in str(caught.value)


def test_a_coroutine_inside_a_result_is_refused() -> None:
    async def greet() -> None: ...

    coroutine = greet()
    with pytest.raises(UnencodableResult, match=r"`coroutine` at `\$\[0\]`.*never awaited"):
        encode_result([coroutine])
    coroutine.close()


def test_an_async_generator_inside_a_result_is_refused() -> None:
    async def counted() -> AsyncIterator[int]:
        yield 1

    generator = counted()
    with pytest.raises(UnencodableResult, match="return a list"):
        encode_result([generator])


def test_an_integer_too_long_for_decimal_text_is_refused() -> None:
    with pytest.raises(UnencodableResult, match=r"`int` at `\$\[0\]`"):
        encode_result([10**5000])


def test_null_is_only_what_was_none() -> None:
    assert encode_result({"a": None, "b": [None, 1.5]}) == b'{"a":null,"b":[null,1.5]}'


def test_the_text_of_a_refusal_is_bounded() -> None:
    with pytest.raises(UnencodableResult) as caught:
        encode_result({("k" * 100_000,): 1})
    assert len(str(caught.value)) < 1_000


def test_a_result_that_is_too_large_is_refused_with_both_sizes() -> None:
    assert encode_result("x" * 8, max_bytes=10) == b'"xxxxxxxx"'
    with pytest.raises(UnencodableResult, match="result of 11 bytes is larger than the limit of 10 bytes"):
        encode_result("x" * 9, max_bytes=10)


def test_attrs_classes() -> None:
    attrs = pytest.importorskip("attrs")
    order = attrs.make_class("Order", ["count"])
    assert encode_result([order(1)]) == b'[{"count":1}]'
    with pytest.raises(UnencodableResult, match=r"`object` at `\$\[0\]\.count`"):
        encode_result([order(object())])


class TestNumpy:
    """Scalars and arrays, which are told by their `dtype` and `tolist()`."""

    @pytest.fixture
    def numpy(self) -> Any:
        return pytest.importorskip("numpy")

    def test_scalars_and_arrays(self, numpy: Any) -> None:
        assert encode_result(numpy.float64(1.5)) == b"1.5"
        assert encode_result(numpy.int64(2)) == b"2"
        assert encode_result(numpy.bool_(True)) == b"true"
        assert encode_result(numpy.str_("x")) == b'"x"'
        assert encode_result({"a": numpy.arange(4).reshape(2, 2)}) == b'{"a":[[0,1],[2,3]]}'
        assert encode_result({numpy.int64(3): 1}) == b'{"3":1}'

    def test_times_are_strings(self, numpy: Any) -> None:
        assert encode_result(numpy.datetime64("2024-01-02T03:04:05", "ns")) == b'"2024-01-02T03:04:05"'
        assert encode_result([numpy.timedelta64(1, "D")]) == b'["P1D"]'
        assert encode_result(numpy.array(["2024-01-02"], "datetime64[D]")) == b'["2024-01-02T00:00:00"]'

    @pytest.mark.parametrize(
        "make", ["float64('nan')", "array([1.0, inf])", "datetime64('NaT', 's')", "complex128(1)"]
    )
    def test_values_without_a_json_form_are_refused(self, numpy: Any, make: str) -> None:
        value = eval(f"numpy.{make}", {"numpy": numpy, "inf": numpy.inf})
        with pytest.raises(UnencodableResult):
            encode_result({"a": [value]})

    def test_a_scalar_type_is_no_value(self, numpy: Any) -> None:
        with pytest.raises(UnencodableResult, match="a class has no JSON form"):
            encode_result(numpy.float64)
