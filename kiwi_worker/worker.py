"""What people construct: a worker, its handlers, and its life from start to stop."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kiwi_worker.callables import is_async
from kiwi_worker.context import Context
from kiwi_worker.errors import DefinitionError, KiwiWorkerError, SettingsError, StartError
from kiwi_worker.hooks import Hooks
from kiwi_worker.loading import end_loading
from kiwi_worker.methods import HandlerDefinition, Registry
from kiwi_worker.settings import KiwiSettings, WorkerSettings, check_files
from kiwi_worker.settings.command_line import load, masked

if TYPE_CHECKING:
    from typing_extensions import Self

    from kiwi_worker.engine.binding import Binding
    from kiwi_worker.engine.engine import Engine, Limits, Running
    from kiwi_worker.engine.journal import Journal
    from kiwi_worker.engine.outcomes import Outcome
    from kiwi_worker.engine.processes import ProcessPool
    from kiwi_worker.engine.processes.origin import Origin
    from kiwi_worker.engine.snapshot import Snapshot
    from kiwi_worker.engine.supervision import Crew
    from kiwi_worker.engine.work import Work
    from kiwi_worker.kiwi.binding import KiwiBinding
    from kiwi_worker.observe.health import Health
    from kiwi_worker.observe.publishing import Publication

__all__ = ["Worker", "WorkerBase"]

_logger = logging.getLogger("kiwi_worker.worker")

LEAST_CLOSE_SECONDS = 0.2
"""How long handler processes may take for their stop hooks, when the grace period is used up."""

Function = TypeVar("Function", bound=Callable[..., Any])
SettingsType = TypeVar("SettingsType", bound=WorkerSettings)


class WorkerBase(Generic[SettingsType]):
    """What workers of both protocols share: settings, hooks, handler middleware, start and stop.

    Attributes:
        settings: every setting, frozen.
    """

    _settings_type: type[SettingsType]
    _context_type: type[Context] = Context

    def __init__(self, **keywords: Any) -> None:
        self.keywords = masked(self._settings_type, keywords)
        self._hooks = Hooks()
        self._around: list[Callable[[Any], Any]] = []
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._started = threading.Event()
        self._stopped = threading.Event()
        self._stopper: threading.Thread | None = None
        self._clean = True
        self._crew: Crew | None = None
        self._processes: ProcessPool | None = None
        self._publication: Publication | None = None
        self._fatal: BaseException | None = None
        self._listener: Callable[[], None] = lambda: None
        self.settings = load(self._settings_type, keywords)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(worker_id={self.settings.worker_id!r})"

    # What a worker is told before it starts

    def configure(self, settings: SettingsType) -> None:
        """Take other settings, as a command line gives them; before the start."""
        self.settings = settings

    def on_start(self, function: Function) -> Function:
        """Run a function once per process, before the worker connects. It may take the resources.

        When it raises, the start fails with `HookError`.
        """
        return self._hooks.on_start(function)

    def on_stop(self, function: Function) -> Function:
        """Run a function once per process, when the worker has stopped. It may take the resources."""
        return self._hooks.on_stop(function)

    def resource(self, function: Function) -> Function:
        """Share what a generator function yields with all handlers, as `context.resources.<its name>`.

        What comes after the `yield` runs when the worker has stopped.
        """
        return self._hooks.resource(function)

    def around(self, middleware: Function) -> Function:
        """Run every call within what `middleware(context)` gives, a context manager.

        A generator function that yields once is one, too. The first added is the outermost. One that is async
        works for async handlers only, so a worker that has one may have no plain handler.
        """
        if inspect.isasyncgenfunction(middleware):
            self._around.append(contextlib.asynccontextmanager(middleware))
        elif inspect.isgeneratorfunction(middleware):
            self._around.append(contextlib.contextmanager(middleware))
        else:
            self._around.append(middleware)
        return middleware

    # Life

    def check(self) -> None:
        """Check everything that can be checked without connecting.

        Raises:
            SettingsError: a file that a setting names cannot be used.
            DefinitionError: handler middleware and handlers do not fit together.
        """
        check_files(self.settings)
        if self.settings.metrics_port is not None and not find_spec("prometheus_client"):
            raise SettingsError(
                self.settings.written_as("metrics_port"),
                "needs prometheus-client: pip install 'kiwi-worker[metrics]'",
            )
        self._find_origin()
        plain = [definition.name for _, definition in self._definitions() if not definition.is_async]
        for middleware in self._around:
            if plain and (is_async(middleware) or inspect.isasyncgenfunction(inspect.unwrap(middleware))):
                raise DefinitionError(
                    f"handler middleware `{getattr(middleware, '__name__', middleware)}` is async, and "
                    f"`{plain[0]}` is a plain function: give a plain context manager"
                )

    def start(self) -> None:
        """Start in the background: hooks, login, registration, then work. Installs no signal handler.

        Raises:
            StartError: the worker could not start; nothing is left running.
            SettingsError, DefinitionError: see `check`.
        """
        end_loading()
        self.check()
        with self._lock:
            if self._engine is not None:
                raise StartError(f"{self!r} is running already")
            self._started.clear()
            self._stopped.clear()
            engine = self._engine = self._assemble()
        try:
            self._publish()
            self._hooks.start(engine.loop.call)
            engine.start()
        except BaseException:
            self._started.set()
            self.stop()
            raise
        finally:
            self._started.set()
        self._nudge()

    def _publish(self) -> None:
        settings = self.settings
        if (settings.health_port, settings.health_file, settings.metrics_port) != (None, None, None):
            from kiwi_worker.observe.publishing import publish

            self._publication = publish(settings, self.snapshot)

    def _nudge(self) -> None:
        if self._publication is not None:
            self._publication.nudge()

    def _assemble(self) -> Engine:
        from kiwi_worker.engine.engine import Engine
        from kiwi_worker.engine.supervision import Crew

        settings = self.settings
        self._fatal = None
        crew = self._crew = Crew(settings.worker_id, self._end_with)
        try:
            binding = self._bind(crew)
            journal = self._open_journal()
        except BaseException:
            self._release()
            raise
        return Engine(
            crew=crew,
            binding=binding,
            definitions=self._definitions(),
            limits=self._limits(),
            around=tuple(self._around),
            journal=journal,
            run_in_process=self._run_in_process,
        )

    def _limits(self) -> Limits:
        from kiwi_worker.engine.engine import Limits

        settings = self.settings
        return Limits(
            concurrency=settings.concurrency,
            async_concurrency=settings.async_concurrency,
            reporters=settings.reporters,
            outbox_limit=settings.outbox_limit,
            report_limit=settings.report_limit,
            time_limit=settings.time_limit,
            grace_period=settings.grace_period,
            process_pool_size=self._pool_size,
            max_result_bytes=settings.max_result_bytes,
        )

    def _find_origin(self) -> Origin | None:
        if not any(definition.options.executor == "process" for _, definition in self._definitions()):
            return None
        from kiwi_worker.engine.processes import origin_of

        return origin_of(self)

    def _run_in_process(self, work: Work, begin: Callable[[], None]) -> Outcome:
        engine = self._engine
        assert engine is not None
        return self._pool().run(work, engine.context_of(work), begin)

    @property
    def _pool_size(self) -> int:
        return self.settings.process_pool_size or os.cpu_count() or 1

    def _pool(self) -> ProcessPool:
        with self._lock:
            if self._processes is None:
                from kiwi_worker.engine.processes import PoolLimits, ProcessPool

                settings, origin = self.settings, self._find_origin()
                assert origin is not None
                limits = PoolLimits(
                    self._pool_size,
                    settings.process_recycle_calls,
                    settings.process_recycle_memory,
                    settings.max_result_bytes,
                )
                self._processes = ProcessPool(origin, limits)
            return self._processes

    def _open_journal(self) -> Journal | None:
        settings = self.settings
        if settings.journal is None:
            return None
        from kiwi_worker.engine.journal import Journal

        return Journal.open(
            settings.journal,
            worker_id=settings.worker_id,
            sync=None if settings.journal_sync == "none" else settings.journal_sync,  # type: ignore[arg-type]
            max_age_seconds=settings.journal_max_age,
            max_bytes=settings.journal_max_bytes,
        )

    def _bind(self, crew: Crew) -> Binding:
        raise NotImplementedError

    def _definitions(self) -> Iterable[tuple[Any, HandlerDefinition]]:
        raise NotImplementedError

    def _end_with(self, error: BaseException) -> None:
        if self._fatal is None:
            self._fatal = error
        self._listener()

    def stop(self, hurry: Callable[[], bool] | None = None) -> bool:
        """Shut down in order and give whether everything was finished; harmless when nothing runs.

        A start that is under way gives up. A second call, from another thread, waits for the first.

        Args:
            hurry: asked now and then, when given; True ends the grace period.
        """
        own = threading.current_thread()
        with self._lock:
            engine, stopper = self._engine, self._stopper
            if engine is None or stopper is own:
                return True
            self._stopper = stopper or own
        if stopper is not None:
            self._stopped.wait()
            return self._clean
        self._clean = False
        end = time.monotonic() + self.settings.grace_period
        if self._processes is not None:
            self._processes.stop()
        self._nudge()
        try:
            self._clean = engine.stop(hurry=hurry or _never, last=self._hooks.stop, started=self._started)
        finally:
            if self._processes is not None:
                self._processes.close(max(LEAST_CLOSE_SECONDS, end - time.monotonic()))
            self._release()
            if self._publication is not None:
                self._publication.close()
            with self._lock:
                self._publication = None
                self._engine = self._stopper = self._processes = None
            self._stopped.set()
        return self._clean

    def _release(self) -> None:
        """Close what the binding was made of."""

    def running(self) -> list[Running]:
        """The calls that run now, the longest first."""
        engine = self._engine
        return [] if engine is None else engine.running()

    def snapshot(self) -> Snapshot | None:
        """How the worker is now, in plain values; None when it does not run."""
        engine = self._engine
        return None if engine is None else engine.snapshot()

    def health(self) -> Health:
        """Whether it is live, ready and healthy, and why not; from any thread, at any time."""
        from kiwi_worker.observe.health import health_of

        return health_of(self.settings.worker_id, self.snapshot())

    @property
    def ports(self) -> dict[str, int]:
        """The real `health_port` and `metrics_port` while it runs, when they are set."""
        return {} if self._publication is None else dict(self._publication.ports)

    def notify_failures(self, listener: Callable[[], None]) -> None:
        """Call a function, from any thread, when `failure` is set."""
        self._listener = listener

    @property
    def failure(self) -> BaseException | None:
        """What the worker has to stop for; None as long as nothing is."""
        return self._fatal

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run(self) -> None:
        """Run until a signal says stop, or the worker has to; the main program of a worker process.

        Returns when the shutdown was clean. SIGTERM, SIGINT and SIGHUP stop in order, a second one at once.
        Works off the main thread, too, where no signal handler can be installed.

        Raises:
            SystemExit: with the exit status of the documentation, after one line on standard error.
        """
        from kiwi_worker.running import run

        run(self)


class Worker(WorkerBase[KiwiSettings]):
    """A worker that speaks the Kiwi worker protocol.

    Nothing connects here. Every setting can be a keyword; see the reference of settings for their names,
    environment variables and defaults.

    Raises:
        SettingsError: a setting is misspelt or out of range.
    """

    _settings_type = KiwiSettings

    def __init__(self, **keywords: Any) -> None:
        self.methods = Registry()
        self.method = self.methods.method
        self._binding: KiwiBinding | None = None
        self._release_binding: Callable[[], None] = lambda: None
        super().__init__(**keywords)

    def include(self, registry: Registry) -> None:
        """Serve the methods of a registry, too.

        Raises:
            DefinitionError: a name is taken already.
        """
        self.methods.include(registry)

    def feedback(self, source: str, content: Any, type: int | None = None, persist: bool = False) -> None:  # noqa: A002
        """Feedback from code that runs outside a request (source type 2); dropped while not running.

        Args:
            source: the source name `sn`.
            content: a string goes as it is, any other value as JSON text.
            type: the feedback type `ft`; None for the one of the settings.
            persist: whether the middleware is to keep it.
        """
        if self._binding is not None:
            self._binding.feedback(source, content, type, persist)

    def _definitions(self) -> Iterable[tuple[Any, HandlerDefinition]]:
        return [(name, self.methods[name]) for name in self.methods]

    def _bind(self, crew: Crew) -> Binding:
        from kiwi_worker.kiwi.assembly import assemble
        from kiwi_worker.kiwi.binding import KiwiBinding

        self._binding, self._release_binding = assemble(
            self.settings, crew, self._hooks.resources, self._end_with, self._succeeded, KiwiBinding
        )
        return self._binding

    def _succeeded(self) -> None:
        engine, binding = self._engine, self._binding
        if engine is not None and engine.outbox.unreachable:
            engine.outbox.wake()
        if binding is not None:
            binding.draining.reached()

    def _release(self) -> None:
        self._release_binding()
        self._binding = None

    @property
    def probe_port(self) -> int | None:
        """The port on which the wake-up probe is awaited; None when there is none."""
        return None if self._binding is None else self._binding.probe_port


def error_of(worker: WorkerBase[Any]) -> KiwiWorkerError | None:
    """The worker's failure, as an error of this package."""
    failure = worker.failure
    if failure is None or isinstance(failure, KiwiWorkerError):
        return failure
    return StartError(f"{type(failure).__name__}: {failure}")


def _never() -> bool:
    return False
