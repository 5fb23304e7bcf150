"""What a handler may ask and do while it runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import threading

    from kiwi_worker.engine.work import Work

__all__ = ["ApplicationSettings", "Context", "Resources"]

SendFeedback = Callable[["Context", Any, "int | None", bool], None]


class ApplicationSettings(Mapping[str, str]):
    """The string map that the middleware answered the registration with (section "Registration").

    It may hold service secrets: its `repr` shows the names only.
    """

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ApplicationSettings({', '.join(sorted(self._values))})"


class Resources(dict[str, Any]):
    """What start hooks made for the handlers of one process; also readable as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"no start hook made a resource {name!r}; there are {sorted(self)}"
            ) from None


class _RequestLogger(logging.LoggerAdapter):  # type: ignore[type-arg]
    """Adds the request to each record, beside what the caller adds."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class Context:
    """What a handler may ask and do while it runs; a parameter annotated with it receives it.

    Attributes:
        request_id: the id of the request this call answers.
        method: the bare name of the method.
        settings: the application settings from the registration.
        resources: what start hooks made.
    """

    def __init__(
        self,
        work: Work,
        *,
        request_id: str,
        settings: Mapping[str, str],
        resources: Resources,
        stopping: Callable[[], bool],
        send_feedback: SendFeedback,
    ) -> None:
        self._work = work
        self._stopping = stopping
        self._send_feedback = send_feedback
        self._logger: logging.LoggerAdapter[logging.Logger] | None = None
        self.request_id = request_id
        self.method = work.name
        self.settings = settings
        self.resources = resources

    def __repr__(self) -> str:
        return f"{type(self).__name__}(request_id={self.request_id!r}, method={self.method!r})"

    def _facts(self) -> dict[str, Any]:
        """What another process makes the same context of, with `_made_of`; plain values only."""
        return {"request_id": self.request_id, "settings": dict(self.settings)}

    @classmethod
    def _made_of(
        cls,
        work: Work,
        facts: Mapping[str, Any],
        *,
        resources: Resources,
        stopping: Callable[[], bool],
        send_feedback: SendFeedback,
    ) -> Context:
        """The context that `_facts` were taken from, for the work in a handler process."""
        return cls(
            work,
            request_id=facts["request_id"],
            settings=ApplicationSettings(facts["settings"]),
            resources=resources,
            stopping=stopping,
            send_feedback=send_feedback,
        )

    @property
    def run(self) -> int:
        """Which run of this request it is, from 1; more only after the worker died while it ran."""
        return self._work.run

    @property
    def deadline(self) -> float | None:
        """When the time limit is passed, on the clock of `time.monotonic`; None without a limit."""
        return self._work.deadline

    def remaining_seconds(self) -> float | None:
        """The seconds until the time limit, 0.0 when it is passed; None without a limit."""
        deadline = self._work.deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    @property
    def cancelled(self) -> threading.Event:
        """Set when the call should stop: its time is over, it was cancelled, or the grace period is."""
        return self._work.cancelled

    @property
    def is_cancelled(self) -> bool:
        """Whether the call should stop."""
        return self._work.cause is not None

    @property
    def is_stopping(self) -> bool:
        """Whether the worker shuts down: a long call may want to end early, within the grace period."""
        return self._stopping()

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry the request id and the method."""
        if self._logger is None:
            extra = {"request_id": self.request_id, "method": self.method}
            self._logger = _RequestLogger(logging.getLogger("kiwi_worker.handler"), extra)
        return self._logger

    def feedback(self, content: Any, type: int | None = None, persist: bool = False) -> None:  # noqa: A002
        """Tell the caller something while the call runs (section "Feedback"); never blocks, never raises.

        Args:
            content: a string goes as it is, any other value as JSON text.
            type: the feedback type `ft`; None for the one of the settings.
            persist: whether the middleware is to keep it.
        """
        self._send_feedback(self, content, type, persist)
