"""How params reach parameters: every form of params against every form of signature."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Optional

import msgspec
import pytest

from kiwi_worker.context import Context
from kiwi_worker.errors import InvalidParameters
from kiwi_worker.methods import Registry

CONTEXT = object()


class Called:
    """Registers a function and calls it the way an engine does."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        registry = Registry()
        registry.method("f", **options)(function)
        self._definition = registry["f"]

    def __call__(self, params: str | bytes | msgspec.Raw | None) -> Any:
        given = params.encode() if isinstance(params, str) else params
        args, kwargs = self._definition.plan.bind(given, CONTEXT)
        return self._definition.function(*args, **kwargs)

    def refusal(self, params: str) -> str:
        with pytest.raises(InvalidParameters) as caught:
            self(params)
        prefix = "Invalid parameters for `f`: "
        assert str(caught.value).startswith(prefix)
        return str(caught.value)[len(prefix) :]


def no_parameters() -> str:
    return "called"


def hello(name: str, n: int = 0) -> Any:
    return name, n


def one_dict(input: dict) -> Any:  # type: ignore[type-arg]
    return input


def untyped(a, b=2):  # type: ignore[no-untyped-def]
    return a, b


def gathering(a: int, *rest: int, b: int = 2, **extra: float) -> Any:
    return a, rest, b, extra


def keyword_only(*, a: int, b: int = 2) -> Any:
    return a, b


def positional_only(a: int, b: int = 2, /) -> Any:
    return a, b


def odd_names(self: int, id: str, type: str = "t", ctx: int = 0) -> Any:
    return self, id, type, ctx


def optional(a: Optional[int], b: Optional[int] = None, c: int = None) -> Any:  # type: ignore[assignment]  # noqa: RUF013, UP045
    return a, b, c


def only_rest(*values: int) -> Any:
    return values


def only_extra(**values: int) -> Any:
    return values


@pytest.mark.parametrize(
    ("function", "params", "result"),
    [
        (no_parameters, None, "called"),
        (no_parameters, "", "called"),
        (no_parameters, "null", "called"),
        (no_parameters, "{}", "called"),
        (no_parameters, "[]", "called"),
        (no_parameters, " { } ", "called"),
        (no_parameters, '"{}"', "called"),
        (hello, '{"name":"a"}', ("a", 0)),
        (hello, '{"name":"a","n":3}', ("a", 3)),
        (hello, '{"n":3,"name":"a"}', ("a", 3)),
        (hello, ' \n{"name":"a"}\t', ("a", 0)),
        (hello, '["a"]', ("a", 0)),
        (hello, ' [ "a" , 3 ] ', ("a", 3)),
        (hello, r'"{\"name\":\"a\"}"', ("a", 0)),
        (hello, r'"[\"a\",3]"', ("a", 3)),
        (hello, r'" {\"name\":\"\u00e4\"} "', ("ä", 0)),
        (hello, '{"name":"a","name":"b"}', ("b", 0)),
        (one_dict, '{"input":{"x":[1,null]}}', {"x": [1, None]}),
        (one_dict, '[{"x":1}]', {"x": 1}),
        (untyped, '{"a":{"x":[1.5]}}', ({"x": [1.5]}, 2)),
        (untyped, '[null,"b"]', (None, "b")),
        (gathering, "[1]", (1, (), 2, {})),
        (gathering, "[1,2,3]", (1, (2, 3), 2, {})),
        (gathering, '{"a":1,"b":3,"x":1.5,"y":2}', (1, (), 3, {"x": 1.5, "y": 2.0})),
        (gathering, '{"a":1,"rest":2}', (1, (), 2, {"rest": 2.0})),
        (keyword_only, '{"a":1}', (1, 2)),
        (keyword_only, '{"b":1,"a":3}', (3, 1)),
        (positional_only, '{"a":1}', (1, 2)),
        (positional_only, "[1,3]", (1, 3)),
        (odd_names, '{"self":1,"id":"i"}', (1, "i", "t", 0)),
        (odd_names, '{"ctx":4,"type":"x","id":"i","self":2}', (2, "i", "x", 4)),
        (odd_names, '[1,"i","x",5]', (1, "i", "x", 5)),
        (optional, '{"a":null}', (None, None, None)),
        (optional, '{"a":1,"b":null,"c":null}', (1, None, None)),
        (optional, "[null,2,3]", (None, 2, 3)),
        (only_rest, None, ()),
        (only_rest, "[1,2]", (1, 2)),
        (only_extra, None, {}),
        (only_extra, '{"a":1}', {"a": 1}),
        (functools.partial(hello, "set"), '{"n":4}', ("set", 4)),
        (functools.partial(hello, n=7), '{"name":"a"}', ("a", 7)),
        (functools.partial(hello, n=7), '{"name":"a","n":8}', ("a", 8)),
    ],
)
def test_params_that_fit(function: Callable[..., Any], params: str | None, result: Any) -> None:
    assert Called(function)(params) == result


@pytest.mark.parametrize(
    ("function", "params", "text"),
    [
        (no_parameters, '{"x":1}', "unknown parameter `x`, none can be given by name"),
        (no_parameters, "[1]", "takes at most 0 values by position, got 1"),
        (no_parameters, "5", "params must be an object, an array or null, got `int`"),
        (hello, "{}", "missing required parameter `name`"),
        (hello, "null", "missing required parameter `name`"),
        (hello, "", "missing required parameter `name`"),
        (hello, "[]", "missing required parameter `name`"),
        (hello, '{"name":1}', "`name` expected `str`, got `int` - at `$.name`"),
        (hello, '{"name":null}', "`name` expected `str`, got `null` - at `$.name`"),
        (hello, '{"name":"a","n":"5"}', "`n` expected `int`, got `str` - at `$.n`"),
        (hello, '{"name":"a","n":3.0}', "`n` expected `int`, got `float` - at `$.n`"),
        (hello, '{"name":"a","n":true}', "`n` expected `int`, got `bool` - at `$.n`"),
        (hello, '{"name":"a","N":1}', "unknown parameter `N`, known: `n`, `name`"),
        (
            hello,
            '{"nmae":"a"}',
            "missing required parameter `name`; unknown parameter `nmae`, known: `name`, `n`",
        ),
        (hello, '{"name":"a","x":1,"y":2}', "unknown parameters `x`, `y`, known: `name`, `n`"),
        (hello, '["a","b"]', "`n` expected `int`, got `str` - at `$[1]`"),
        (hello, '["a",1,2]', "takes at most 2 values by position, got 3"),
        (hello, "true", "params must be an object, an array or null, got `bool`"),
        (hello, '"plain"', "params must be an object, an array or null, got `str`"),
        (hello, "1e3", "params must be an object, an array or null, got `float`"),
        (hello, "{", "params: not valid JSON (Input data was truncated)"),
        (hello, "nul", "params must be an object, an array or null, got what is not valid JSON"),
        (hello, r'"[1"', "params: not valid JSON (Input data was truncated)"),
        (hello, r'"\"{}\""', "params must be an object, an array or null, got `str`"),
        (one_dict, '{"x":1}', "missing required parameter `input`; unknown parameter `x`, known: `input`"),
        (one_dict, '{"input":[]}', "`input` expected `object`, got `array` - at `$.input`"),
        (untyped, "{}", "missing required parameter `a`"),
        (gathering, '[1,2,"x"]', "`rest[1]` expected `int`, got `str` - at `$[2]`"),
        (gathering, '["x"]', "`a` expected `int`, got `str` - at `$[0]`"),
        (gathering, '{"a":1,"x":"y"}', "`x` expected `float`, got `str` - at `$.x`"),
        (gathering, '{"x":1.5}', "missing required parameter `a`"),
        (keyword_only, "[1]", "takes at most 0 values by position, got 1"),
        (keyword_only, "[]", "missing required parameter `a`"),
        (positional_only, "{}", "missing required parameter `a`"),
        (odd_names, "{}", "missing required parameters `self`, `id`"),
        (optional, "{}", "missing required parameter `a`"),
        (optional, '{"a":"x"}', "`a` expected `int | null`, got `str` - at `$.a`"),
        (only_rest, '{"values":[1]}', "unknown parameter `values`, none can be given by name"),
        (only_extra, "[1]", "takes at most 0 values by position, got 1"),
    ],
)
def test_params_that_do_not_fit(function: Callable[..., Any], params: str, text: str) -> None:
    assert Called(function).refusal(params) == text


def context_last(name: str, ctx: Context) -> Any:
    return name, ctx


def context_first(ctx: Context, name: str, n: int = 0) -> Any:
    return ctx, name, n


def context_between(a: int, ctx: Context, b: int = 2, *rest: int) -> Any:
    return a, ctx, b, rest


def context_by_name(name: str = "x", *, self: Context) -> Any:
    return name, self


def context_and_extra(*, ctx: Context, **extra: Any) -> Any:
    return ctx, extra


def context_positional_only(ctx: Context, a: int, /) -> Any:
    return ctx, a


def only_context(ctx: Context) -> Any:
    return ctx


def only_context_by_name(*, ctx: Context) -> Any:
    return ctx


@pytest.mark.parametrize(
    ("function", "params", "result"),
    [
        (context_last, '{"name":"a"}', ("a", CONTEXT)),
        (context_last, '["a"]', ("a", CONTEXT)),
        (context_first, '{"name":"a"}', (CONTEXT, "a", 0)),
        (context_first, '["a",1]', (CONTEXT, "a", 1)),
        (context_between, '{"a":1}', (1, CONTEXT, 2, ())),
        (context_between, "[1]", (1, CONTEXT, 2, ())),
        (context_between, "[1,5,6,7]", (1, CONTEXT, 5, (6, 7))),
        (context_by_name, None, ("x", CONTEXT)),
        (context_by_name, '["a"]', ("a", CONTEXT)),
        (context_and_extra, '{"a":1}', (CONTEXT, {"a": 1})),
        (context_positional_only, '{"a":1}', (CONTEXT, 1)),
        (only_context, None, CONTEXT),
        (only_context, "{}", CONTEXT),
        (only_context, " {}", CONTEXT),
        (only_context_by_name, "[]", CONTEXT),
    ],
)
def test_the_context_goes_where_it_is_asked_for(
    function: Callable[..., Any], params: str | None, result: Any
) -> None:
    assert Called(function)(params) == result


@pytest.mark.parametrize(
    "function",
    [context_last, context_first, context_between, context_by_name, context_and_extra, only_context_by_name],
)
def test_a_caller_cannot_send_the_context(function: Callable[..., Any]) -> None:
    key = "self" if function is context_by_name else "ctx"
    assert f"unknown parameter `{key}`" in Called(function).refusal(f'{{"{key}":1}}')


def test_extra_keys_can_be_ignored() -> None:
    called = Called(hello, extra_keys="ignore")
    assert called('{"name":"a","x":1}') == ("a", 0)
    assert called.refusal('{"nmae":"a"}') == "missing required parameter `name`"
    assert called.refusal('["a",1,2]') == "takes at most 2 values by position, got 3"
    assert Called(no_parameters, extra_keys="ignore")('{"x":1}') == "called"
    assert Called(context_and_extra, extra_keys="ignore")('{"ctx":1,"a":2}') == (CONTEXT, {"a": 2})


def test_strict_can_be_relaxed() -> None:
    called = Called(hello, strict=False)
    assert called('{"name":"a","n":"5"}') == ("a", 5)
    assert called('{"name":"a","n":3.0}') == ("a", 3)
    assert called('["a","5"]') == ("a", 5)
    assert called.refusal('{"name":"a","n":"x"}') == "`n` expected `int`, got `str` - at `$.n`"


def test_raw_text_inside_a_bigger_document_is_read_without_a_copy() -> None:
    class Message(msgspec.Struct):
        params: msgspec.Raw = msgspec.Raw()

    message = msgspec.json.decode(b'{ "params" : {"name":"a"} }', type=Message)
    assert Called(hello)(message.params) == ("a", 0)
    assert Called(no_parameters)(msgspec.json.decode(b"{}", type=Message).params) == "called"
    assert Called(no_parameters)(msgspec.json.decode(b'{"params":null}', type=Message).params) == "called"


def test_defaults_are_the_objects_of_the_signature() -> None:
    marker = object()
    values: list[int] = [1]

    def handler(a: Any = marker, b: list[int] = values, c: Any = msgspec.UNSET) -> Any:
        return a, b, c

    a, b, c = Called(handler)("{}")
    assert a is marker
    assert b is values
    assert c is msgspec.UNSET


def test_arguments_of_one_call_are_not_those_of_the_next() -> None:
    registry = Registry()
    registry.method("f")(context_by_name)
    bind = registry["f"].plan.bind
    bind(b"{}", CONTEXT)[1]["left"] = "behind"
    assert bind(b"{}", CONTEXT) == (("x",), {"self": CONTEXT})


@pytest.mark.parametrize("params", ["[" * 100_000, '{"name":' * 100_000, '{"a":' + "[" * 100_000])
def test_params_nested_too_deep_are_refused(params: str) -> None:
    text = Called(untyped).refusal(params)
    assert "nested too deep" in text or "valid JSON" in text


@pytest.mark.parametrize(
    "params",
    [
        b'{"name":"\xff"}',
        b'{"name":"\\ud800"}',
        b"\xff\xfe",
        b"\x00",
        b'{"name":"a"}}',
        b'{"name":"a"},',
        b"[]]",
        b'"\xff"',
        b"{'name':'a'}",
        b'{"name":NaN}',
        b'{"name":"a","n":1' + b"0" * 5000 + b"}",
    ],
)
def test_broken_json_is_refused_and_nothing_else_is_raised(params: bytes) -> None:
    with pytest.raises(InvalidParameters, match="Invalid parameters for `f`: "):
        Called(hello)(params)


def test_the_text_for_unknown_keys_is_bounded_and_safe_for_a_log() -> None:
    called = Called(hello)
    many = ",".join(f'"k{index}":1' for index in range(1000))
    text = called.refusal(f'{{"name":"a",{many}}}')
    assert "and 995 more" in text
    long = called.refusal('{"name":"a","' + "k" * 100_000 + '":1}')
    assert len(long) < 200
    assert "\n" not in called.refusal('{"name":"a","x\\ny":1}')


def test_the_schema_describes_the_params() -> None:
    registry = Registry()
    registry.method(hello)
    schema = registry["hello"].params_schema
    described = schema["$defs"]["hello"]
    assert described["required"] == ["name"]
    assert described["properties"]["n"] == {"type": "integer", "default": 0}
    assert described["additionalProperties"] is False
    assert registry["hello"].params_schema is schema


@pytest.mark.parametrize(
    ("function", "wanted"), [(hello, False), (context_last, True), (only_context_by_name, True)]
)
def test_a_plan_says_whether_the_handler_wants_the_context(
    function: Callable[..., Any], wanted: bool
) -> None:
    registry = Registry()
    registry.method("f")(function)
    assert registry["f"].plan.wants_context is wanted
