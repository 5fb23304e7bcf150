"""Starting and watching workflow executions on an ORBIT runtime.

    from kiwi_worker.orbit import Client

    with Client("http://127.0.0.1:7233", token=...) as client:
        execution_id = client.start("Greet", {"name": "Ada"})
        execution = client.wait(execution_id, timeout=30)
        print(execution.status, execution.output, execution.error)

`AsyncClient` is the same with `await`. Both are thin: what a call means is in `kiwi_worker.orbit.calls`. HTTP
only: the protocol's gRPC service is for workers and has no calls for executions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from kiwi_worker.calling.effects import Ask, Done, Operation, Pause
from kiwi_worker.orbit.calls import (
    Calls,
    Execution,
    ExecutionError,
    InvalidRequest,
    NotPermitted,
    OrbitCallError,
    OrbitClientSettings,
    RegisteredWorker,
    RuntimeFailure,
    ServerAsk,
    UnknownExecution,
    UnknownWorkflow,
)

if TYPE_CHECKING:
    from kiwi_worker.transport.endpoint import Endpoint

__all__ = [
    "AsyncClient",
    "Client",
    "Execution",
    "ExecutionError",
    "InvalidRequest",
    "NotPermitted",
    "OrbitCallError",
    "OrbitClientSettings",
    "RegisteredWorker",
    "RuntimeFailure",
    "UnknownExecution",
    "UnknownWorkflow",
]


class Client:
    """Calls from any thread, over kept connections. Nothing connects before the first call.

    Args:
        server: the runtime's address, or several (a list, or comma-separated), tried in turn;
            `ORBIT_SERVER`, or `http://127.0.0.1:7233`.
        token: the admin token; `ORBIT_TOKEN`.
        settings: further `OrbitClientSettings` as keywords: `token_file`, `ca_file`, `client_cert`,
            `client_key`, `connect_timeout`, `retry_limit`.

    Raises:
        SettingsError: a setting is wrong; `grpc://` is.
        OrbitCallError, NotSent, Ambiguous, ProtocolError: from every method below. The subclasses of
            `OrbitCallError` tell the reasons apart.
    """

    def __init__(
        self, server: str | list[str] | None = None, token: str | None = None, **settings: object
    ) -> None:
        from kiwi_worker.calling.blocking import BlockingFace

        loaded = OrbitClientSettings.load({"server": server, "token": token, **settings})
        self._calls = Calls(loaded)
        self._faces = [BlockingFace(each, loaded.connect_timeout) for each in _endpoints(loaded)]

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the kept connections."""
        for face in self._faces:
            face.close()

    def start(self, workflow: str, input: object = None, *, execution_id: str | None = None) -> str:  # noqa: A002
        """Start an execution, and return its id.

        Args:
            workflow: its name.
            input: what the workflow takes, as anything that has a JSON form.
            execution_id: an id of your own; the same id again is the same execution. Made when left out.

        Raises:
            UnknownWorkflow: it is not deployed.
            InvalidRequest: the input does not fit its contract.
            UnencodableResult: the input has no JSON form.
        """
        return self._run(self._calls.start(workflow, input, execution_id))  # type: ignore[no-any-return]

    def wait(self, execution_id: str, *, timeout: float | None = None) -> Execution:
        """Wait until an execution is finished, and return it, whatever its outcome.

        Args:
            execution_id: from `start`.
            timeout: seconds; when they are over, the execution is returned as it stands, not `finished`.

        Raises:
            UnknownExecution: there is none of that id.
        """
        return self._run(self._calls.wait(execution_id, timeout))  # type: ignore[no-any-return]

    def fetch(self, execution_id: str) -> Execution:
        """An execution as it stands now."""
        return self._run(self._calls.fetch(execution_id))  # type: ignore[no-any-return]

    def cancel(self, execution_id: str, *, reason: str | None = None) -> Execution:
        """Ask an execution to stop, and return it as it stands then: attempts in flight are waited for."""
        return self._run(self._calls.cancel(execution_id, reason))  # type: ignore[no-any-return]

    def workers(self) -> list[RegisteredWorker]:
        """Every worker that has registered with the runtime."""
        return self._run(self._calls.workers())  # type: ignore[no-any-return]

    def _run(self, steps: Any) -> Any:
        operation = Operation(steps)
        while not isinstance(effect := operation.next_effect(), Done):
            try:
                operation.reply(self._perform(effect))
            except Exception as failure:  # noqa: BLE001 - the steps decide what it means
                operation.fail(failure)
        return effect.value

    def _perform(self, effect: Any) -> Any:
        if isinstance(effect, Pause):
            return time.sleep(effect.seconds)
        return self._faces[effect.server].run(_alone(effect))


class AsyncClient:
    """`Client` on an asyncio loop: the same arguments, methods and errors."""

    def __init__(
        self, server: str | list[str] | None = None, token: str | None = None, **settings: object
    ) -> None:
        from kiwi_worker.calling.asynchronous import AsyncFace

        loaded = OrbitClientSettings.load({"server": server, "token": token, **settings})
        self._calls = Calls(loaded)
        self._faces = [AsyncFace(each, loaded.connect_timeout) for each in _endpoints(loaded)]

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the kept connections."""
        for face in self._faces:
            await face.close()

    async def start(self, workflow: str, input: object = None, *, execution_id: str | None = None) -> str:  # noqa: A002
        """See `Client.start`."""
        return await self._run(self._calls.start(workflow, input, execution_id))  # type: ignore[no-any-return]

    async def wait(self, execution_id: str, *, timeout: float | None = None) -> Execution:
        """See `Client.wait`."""
        return await self._run(self._calls.wait(execution_id, timeout))  # type: ignore[no-any-return]

    async def fetch(self, execution_id: str) -> Execution:
        """See `Client.fetch`."""
        return await self._run(self._calls.fetch(execution_id))  # type: ignore[no-any-return]

    async def cancel(self, execution_id: str, *, reason: str | None = None) -> Execution:
        """See `Client.cancel`."""
        return await self._run(self._calls.cancel(execution_id, reason))  # type: ignore[no-any-return]

    async def workers(self) -> list[RegisteredWorker]:
        """See `Client.workers`."""
        return await self._run(self._calls.workers())  # type: ignore[no-any-return]

    async def _run(self, steps: Any) -> Any:
        operation = Operation(steps)
        while not isinstance(effect := operation.next_effect(), Done):
            try:
                operation.reply(await self._perform(effect))
            except Exception as failure:  # noqa: BLE001 - the steps decide what it means
                operation.fail(failure)
        return effect.value

    async def _perform(self, effect: Any) -> Any:
        if isinstance(effect, Pause):
            return await asyncio.sleep(effect.seconds)
        return await self._faces[effect.server].run(_alone(effect))


def _alone(ask: ServerAsk) -> Generator[Ask, Any, Any]:
    return (yield ask)


def _endpoints(settings: OrbitClientSettings) -> list[Endpoint]:
    from kiwi_worker.transport.endpoint import Endpoint

    return [
        Endpoint(address, settings.ca_file, settings.client_cert, settings.client_key, setting="server")
        for address in settings.server
    ]
