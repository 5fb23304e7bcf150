"""Whatever a drain is answered with: what is whole in it is found, and nobody falls over the rest."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

import msgspec
from any_answers import DEEP, any_json, bodies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kiwi_worker import Worker
from kiwi_worker.errors import ProtocolError
from kiwi_worker.kiwi.messages import Malformed, elements_of, read_message, salvage
from kiwi_worker.testing import KiwiServer

NAMES = ("request_id", "method", "lock_required", "params")
elements = bodies(*NAMES)
objects = st.dictionaries(st.text(max_size=5), any_json, max_size=3).map(
    lambda value: json.dumps(value).encode()
)


@settings(deadline=None, max_examples=300)
@given(st.lists(elements, max_size=4).map(lambda found: b"[" + b",".join(found) + b"]") | elements)
def test_any_body_is_read_salvaged_or_refused(body: bytes) -> None:
    try:
        found = elements_of(body)
    except ProtocolError:
        return
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found, lost = salvage(body)
        assert 0 <= lost <= len(body)
    for element in found:
        with contextlib.suppress(Malformed):
            message = read_message(element)
            assert message.request_id
            assert isinstance(message.method, str)


@settings(deadline=None, max_examples=300)
@given(st.lists(objects, max_size=4), st.sampled_from([b",", b" , ", b",\r\n"]), st.data())
def test_of_an_array_that_breaks_off_all_that_is_whole_is_found(
    whole: list[bytes], comma: bytes, data: st.DataObject
) -> None:
    body = b"[" + comma.join(whole) + b"]"
    end = data.draw(st.integers(0, len(body)))
    complete = [one for number, one in enumerate(whole) if 1 + len(comma.join(whole[: number + 1])) <= end]
    assert salvage(body[:end])[0] == complete


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(elements.filter(lambda body: len(body) < len(DEEP)), min_size=1, max_size=5))
def test_no_neighbour_takes_a_good_message_down(
    lax_server: KiwiServer, new_worker: Callable[..., Worker], neighbours: list[bytes]
) -> None:
    worker = new_worker(lax_server)

    @worker.method
    def hello() -> str:
        return "hello"

    good = []
    for neighbour in neighbours:
        # One that is no JSON value would make the array another one.
        with contextlib.suppress(ValueError):
            json.loads(neighbour)
            lax_server.enqueue_raw(neighbour)
        good.append(lax_server.enqueue("hello"))
    with worker:
        for request_id in good:
            lax_server.assert_answered_once(request_id, "success")
