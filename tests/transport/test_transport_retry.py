"""Which statuses pass, how long the server asks to wait, and how waits grow."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from kiwi_worker.transport import Answer, Backoff, is_transient, retry_after_seconds


def test_the_statuses_that_may_go_better_later() -> None:
    transient = [status for status in range(200, 600) if is_transient(status)]
    assert transient == [408, 425, 429, *range(500, 600)]


def answer(**fields: str) -> Answer:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return Answer(429, b"", "\r\n".join(["HTTP/1.1 429 x", *lines, "", ""]).encode())


NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("7", 7.0),
        ("301", 300.0),
        ("9" * 400, 300.0),
        (formatdate(NOW + 30, usegmt=True), 30.0),
        (formatdate(NOW - 30, usegmt=True), 0.0),
        (formatdate(NOW + 3000, usegmt=True), 300.0),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("\u00b2", None),
        ("Mon, 99 Foo 2020", None),
        ("Thu, 01 Jan 99999 00:00:00 GMT", None),
    ],
)
def test_retry_after_in_seconds_or_as_a_date(value: str, seconds: float | None) -> None:
    found = retry_after_seconds(
        Answer(503, b"", b"HTTP/1.1 503 x\r\nRetry-After: %b\r\n" % value.encode()), NOW
    )
    assert found == seconds


def test_no_retry_after_is_none() -> None:
    assert retry_after_seconds(answer()) is None


def test_a_date_is_compared_with_the_servers_own_clock_first() -> None:
    wrong = NOW - 1e8
    found = answer(Retry_After=formatdate(wrong + 20, usegmt=True), Date=formatdate(wrong, usegmt=True))
    assert retry_after_seconds(found) == 20.0
    found = answer(Retry_After=formatdate(time.time() + 100, usegmt=True))
    assert 90 < (retry_after_seconds(found) or 0) <= 100


def test_waits_grow_to_the_cap_and_begin_again() -> None:
    backoff = Backoff(0.5, 60.0, uniform=lambda low, high: high)
    assert [backoff.next() for _ in range(10)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    backoff.reset()
    assert backoff.next() == 0.5


def test_report_17_waits_at_the_cap_still_vary() -> None:
    fleet = [Backoff(0.5, 60.0) for _ in range(100)]
    waits = [[backoff.next() for _ in range(12)][-1] for backoff in fleet]
    assert len({round(wait, 1) for wait in waits}) > 50
    assert max(waits) <= 60
    assert max(waits) - min(waits) > 30


def test_waits_do_not_overflow() -> None:
    backoff = Backoff()
    for _ in range(5000):
        assert 0 <= backoff.next() <= 60
