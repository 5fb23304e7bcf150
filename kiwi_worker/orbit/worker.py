"""The worker that people construct for an ORBIT runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kiwi_worker.engine.binding import Binding
from kiwi_worker.engine.supervision import Crew
from kiwi_worker.methods import HandlerDefinition
from kiwi_worker.orbit.context import TaskContext
from kiwi_worker.orbit.tasks import TaskRegistry
from kiwi_worker.settings import OrbitSettings
from kiwi_worker.worker import WorkerBase

__all__ = ["OrbitWorker"]


class OrbitWorker(WorkerBase[OrbitSettings]):
    """A worker that speaks the ORBIT worker protocol v1, over HTTP or gRPC.

    Nothing connects here. Every setting can be a keyword; see the reference of settings.

    Raises:
        SettingsError: a setting is misspelt or out of range.
    """

    _settings_type = OrbitSettings
    _context_type = TaskContext

    def __init__(self, **keywords: Any) -> None:
        self.tasks = TaskRegistry()
        self.task = self.tasks.task
        self._release_binding: Callable[[], None] = lambda: None
        super().__init__(**keywords)

    def include(self, registry: TaskRegistry) -> None:
        """Serve the tasks of a registry, too.

        Raises:
            DefinitionError: name and version are taken already.
        """
        self.tasks.include(registry)

    def _definitions(self) -> Iterable[tuple[Any, HandlerDefinition]]:
        return [(key, self.tasks[key]) for key in self.tasks]

    def _bind(self, crew: Crew) -> Binding:
        from kiwi_worker.orbit.assembly import assemble
        from kiwi_worker.orbit.binding import OrbitBinding

        binding, self._release_binding = assemble(
            self.settings, crew, self._hooks.resources, self._succeeded, OrbitBinding
        )
        return binding

    def _release(self) -> None:
        self._release_binding()

    def _succeeded(self) -> None:
        engine = self._engine
        if engine is not None and engine.outbox.unreachable:
            engine.outbox.wake()
