"""The things a store keeps: calls, their endings, workers and feedback."""

from __future__ import annotations

import os
import time
from collections import deque
from enum import Enum
from typing import Any

import msgspec

__all__ = [
    "LARGEST_NUMBER",
    "Call",
    "Ending",
    "Feedback",
    "Reason",
    "Registration",
    "Verdict",
    "new_request_id",
]

LARGEST_NUMBER = 2**63 - 1
"""What the database can hold; every whole number that is stored is checked against it first."""


class Reason(str, Enum):
    """Why the middleware ended a call itself; a worker's own answer has no reason."""

    expired = "expired"
    worker_died = "worker_died"
    cancelled = "cancelled"


class Verdict(Enum):
    """What became of a worker's or a caller's wish."""

    done = "done"
    late = "late"
    taken = "taken"
    not_given = "not_given"
    unknown = "unknown"
    full = "full"


class Registration(msgspec.Struct, kw_only=True):
    """The twelve fields of the page's section "Registration", as a worker sends them.

    `ip` and `port` are needed in lazy mode only; the last five are for script workers and may be left out.
    """

    worker_id: str
    service_id: str
    run_mode: str
    methods: list[str]
    ip: str | None = None
    port: int | None = None
    version: str | None = None
    tags: dict[str, str] | None = None
    supported_executors: list[str] | None = None
    platform: str | None = None
    interactive_desktop: bool | None = None
    browser_runtime: bool | None = None


class Call(msgspec.Struct, kw_only=True, eq=False):
    """An accepted call that has no answer yet.

    `worker_id` is who it is given to, or who owns its lock; `drained` says that this worker has it in its
    hands, so that nobody can know any more whether it ran. `accepted_at` and `deadline` count on the
    monotonic clock, `created_at` and `expires_at` say the same in wall time for the database. `stray` is a
    call to a method that nobody has, which any worker may take in order to say so.
    """

    seq: int
    request_id: str
    service_id: str
    method: str
    params: bytes
    lock_required: bool
    created_at: float
    expires_at: float
    deadline: float
    accepted_at: float = 0.0
    idempotency_key: str | None = None
    fingerprint: str | None = None
    worker_id: str | None = None
    drained: bool = False
    earlier: tuple[str, ...] = ()
    recent_feedback: deque[Feedback] | None = None
    kept_feedback: int = 0
    stray: bool = False

    def message(self) -> bytes:
        """The element of a drained array (the page's "The request loop", 1)."""
        return b'{"request_id":"%b","method":%b,"lock_required":%b,"params":%b}' % (
            self.request_id.encode(),
            encode(self.method),
            b"true" if self.lock_required else b"false",
            self.params,
        )

    def was_given_to(self, worker_id: str) -> bool:
        """Whether this worker may answer and send feedback for it."""
        return (self.drained and self.worker_id == worker_id) or worker_id in self.earlier


class Ending(msgspec.Struct, kw_only=True):
    """How a call ended; `result` is JSON text, or None when there is none."""

    request_id: str
    service_id: str
    method: str
    status: str
    error_text: str | None
    result: bytes | None
    reason: str | None
    worker_id: str | None
    finished_at: float
    idempotency_key: str | None = None

    def body(self) -> bytes:
        """The JSON object a caller gets."""
        return b'{"request_id":"%b","status":"%b","error_text":%b,"result":%b,"reason":%b}' % (
            self.request_id.encode(),
            self.status.encode(),
            encode(self.error_text),
            b"null" if self.result is None else self.result,
            encode(self.reason),
        )


class Feedback(msgspec.Struct, kw_only=True):
    """One piece of feedback as a worker sent it (the page's section "Feedback"), numbered by the store."""

    feedback_id: int
    request_id: str
    source_type: int
    source_name: str
    feedback_type: int
    content: bytes
    at: float

    def body(self) -> bytes:
        """The JSON object of one event of a feedback stream."""
        return b'{"request_id":%b,"source_type":%d,"source_name":%b,"type":%d,"content":%b,"at":%b}' % (
            encode(self.request_id),
            self.source_type,
            encode(self.source_name),
            self.feedback_type,
            self.content,
            encode(self.at),
        )


_encoder = msgspec.json.Encoder()


def encode(value: Any) -> bytes:
    """JSON text of a plain value."""
    return _encoder.encode(value)


def new_request_id() -> str:
    """A request id that nobody can guess and that sorts by time, so that the index on it grows at one end."""
    text = (int(time.time() * 1000) << 80 | int.from_bytes(os.urandom(10), "big")).to_bytes(16, "big").hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
