"""Calls over HTTP: the data plane (`Channel`), the seldom calls (`SeldomClient`), and when to repeat them.

Nothing above this package knows which HTTP library is used. Importing it loads none.
"""

from __future__ import annotations

from kiwi_worker.transport.answer import Answer
from kiwi_worker.transport.channel import Channel
from kiwi_worker.transport.endpoint import Endpoint
from kiwi_worker.transport.retry import Backoff, is_transient, retry_after_seconds
from kiwi_worker.transport.seldom import SeldomClient

__all__ = [
    "Answer",
    "Backoff",
    "Channel",
    "Endpoint",
    "SeldomClient",
    "is_transient",
    "retry_after_seconds",
]
