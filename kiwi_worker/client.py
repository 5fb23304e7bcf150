"""Calling methods through the bundled middleware.

    from kiwi_worker.client import Client

    with Client(service_id="demo") as client:      # the secret from KIWI_CLIENT_SECRET
        greeting = client.call("hello", {"name": "Ada"})

`AsyncClient` is the same with `await`. Both are thin: what a call means is in `kiwi_worker.calling.core`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from .calling.core import CallOptions, Core, Options
from .calling.outcomes import Feedback, MethodInfo, Outcome, WorkerInfo
from .calling.settings import ClientSettings
from .errors import CallError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .transport.endpoint import Endpoint

__all__ = [
    "AsyncClient",
    "CallError",
    "Client",
    "ClientSettings",
    "Feedback",
    "MethodInfo",
    "Outcome",
    "WorkerInfo",
]


class Client:
    """Calls from any thread, over kept connections. Nothing connects before the first call.

    Args:
        middleware_url: the base address; `KIWI_MIDDLEWARE_URL`, or `http://127.0.0.1:8420`.
        settings: further `ClientSettings` as keywords: `service_id`, `client_secret` or
            `client_secret_file`, `client_id`, `ca_file`, …

    Raises:
        SettingsError: a setting is missing or wrong.
        NotSent, Ambiguous, ProtocolError, AuthenticationError, CallError: from every method below.
    """

    def __init__(self, middleware_url: str | None = None, **settings: object) -> None:
        self._open(ClientSettings.load({"middleware_url": middleware_url, **settings}))

    @classmethod
    def of(cls, settings: ClientSettings) -> Client:
        """A client with settings that were loaded already."""
        client = cls.__new__(cls)
        client._open(settings)
        return client

    def _open(self, settings: ClientSettings) -> None:
        from .calling.blocking import BlockingFace

        self._core = Core(settings)
        self._face = BlockingFace(_endpoint(settings), settings.connect_timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the kept connections."""
        self._face.close()

    def call(
        self, method: str, params: object = None, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> Any:
        """Call a method and return its result.

        Args:
            method: its bare name.
            params: a mapping for keyword arguments, a sequence for positional ones, or None.
            timeout: seconds to wait here; None waits until the call ends, its time to live at the latest.
            options: `time_to_live` (seconds), `lock` (one of the workers has to claim it),
                `idempotency_key` (the same key again is the same call).

        Raises:
            CallError: the call failed, or has no answer in time; `outcome` says which.
        """
        return result_of(self.outcome(method, params, timeout=timeout, **options))

    def outcome(
        self, method: str, params: object = None, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> Outcome:
        """Like `call`, and returns how it ended whatever that is; pending when the timeout was too short."""
        steps = self._core.call(method, params, CallOptions(**options), timeout)
        return self._face.run(steps)

    def start(self, method: str, params: object = None, **options: Unpack[Options]) -> str:
        """Call without waiting; the request id, which is good as soon as this returns."""
        outcome = self._face.run(self._core.start(method, params, CallOptions(**options)))
        return outcome.request_id

    def wait(self, request_id: str, *, timeout: float | None = None) -> Outcome:
        """Wait for a call to end; pending when the timeout (seconds) was too short."""
        return self._face.run(self._core.wait(request_id, timeout))

    def fetch(self, request_id: str) -> Outcome:
        """How a call stands now. An unknown one, or one over its retention, is a CallError."""
        return self._face.run(self._core.fetch(request_id))

    def cancel(self, request_id: str) -> Outcome:
        """End a call; its worker is not told, its answer is refused. How it ended, when it had already."""
        return self._face.run(self._core.cancel(request_id))

    def follow(self, request_id: str, *, timeout: float | None = None) -> Iterator[Feedback | Outcome]:
        """The feedback of a call as it comes, and its outcome (pending after the timeout) as the last."""
        return self._face.iterate(self._core.follow(request_id, timeout))

    def call_and_follow(
        self, method: str, params: object = None, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> Iterator[Feedback | Outcome]:
        """Call, and follow from the first piece of feedback on."""
        steps = self._core.call_and_follow(method, params, CallOptions(**options), timeout)
        return self._face.iterate(steps)

    def workers(self) -> list[WorkerInfo]:
        """The live workers of the service."""
        return self._face.run(self._core.workers())

    def methods(self) -> list[MethodInfo]:
        """The methods that live workers serve."""
        return self._face.run(self._core.methods())


class AsyncClient:
    """`Client` on an asyncio loop: the same arguments, methods and errors."""

    def __init__(self, middleware_url: str | None = None, **settings: object) -> None:
        self._open(ClientSettings.load({"middleware_url": middleware_url, **settings}))

    @classmethod
    def of(cls, settings: ClientSettings) -> AsyncClient:
        """A client with settings that were loaded already."""
        client = cls.__new__(cls)
        client._open(settings)
        return client

    def _open(self, settings: ClientSettings) -> None:
        from .calling.asynchronous import AsyncFace

        self._core = Core(settings)
        self._face = AsyncFace(_endpoint(settings), settings.connect_timeout)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the kept connections."""
        await self._face.close()

    async def call(
        self, method: str, params: object = None, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> Any:
        """See `Client.call`."""
        return result_of(await self.outcome(method, params, timeout=timeout, **options))

    async def outcome(
        self, method: str, params: object = None, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> Outcome:
        """See `Client.outcome`."""
        steps = self._core.call(method, params, CallOptions(**options), timeout)
        return await self._face.run(steps)

    async def start(self, method: str, params: object = None, **options: Unpack[Options]) -> str:
        """See `Client.start`."""
        outcome = await self._face.run(self._core.start(method, params, CallOptions(**options)))
        return outcome.request_id

    async def wait(self, request_id: str, *, timeout: float | None = None) -> Outcome:
        """See `Client.wait`."""
        return await self._face.run(self._core.wait(request_id, timeout))

    async def fetch(self, request_id: str) -> Outcome:
        """See `Client.fetch`."""
        return await self._face.run(self._core.fetch(request_id))

    async def cancel(self, request_id: str) -> Outcome:
        """See `Client.cancel`."""
        return await self._face.run(self._core.cancel(request_id))

    def follow(self, request_id: str, *, timeout: float | None = None) -> AsyncIterator[Feedback | Outcome]:
        """See `Client.follow`."""
        return self._face.iterate(self._core.follow(request_id, timeout))

    def call_and_follow(
        self, method: str, params: object = None, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> AsyncIterator[Feedback | Outcome]:
        """See `Client.call_and_follow`."""
        steps = self._core.call_and_follow(method, params, CallOptions(**options), timeout)
        return self._face.iterate(steps)

    async def workers(self) -> list[WorkerInfo]:
        """See `Client.workers`."""
        return await self._face.run(self._core.workers())

    async def methods(self) -> list[MethodInfo]:
        """See `Client.methods`."""
        return await self._face.run(self._core.methods())


def result_of(outcome: Outcome) -> Any:
    """The result of a call that was a success.

    Raises:
        CallError: it was none; `outcome` is in it.
    """
    if outcome.status == "success":
        return outcome.result
    if not outcome.ended:
        text = f"no answer to {outcome.request_id} yet; fetch it later, or wait longer"
    else:
        text = f"{outcome.error_text or 'without a text'} ({outcome.status}, request {outcome.request_id})"
    raise CallError(text, outcome=outcome, code=outcome.reason)


def _endpoint(settings: ClientSettings) -> Endpoint:
    from .transport.endpoint import Endpoint

    return Endpoint(settings.middleware_url, settings.ca_file, settings.client_cert, settings.client_key)
