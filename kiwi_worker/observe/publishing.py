"""Publishing health and metrics of the workers of one process.

Workers that name the same port or file share it: one page, one file, tells of all of them.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kiwi_worker.errors import SettingsError
from kiwi_worker.observe.health import Health, health_of, summary

if TYPE_CHECKING:
    from kiwi_worker.engine.snapshot import Snapshot
    from kiwi_worker.observe.health_file import HealthFile
    from kiwi_worker.observe.http import PageServer
    from kiwi_worker.settings import WorkerSettings

__all__ = ["Publication", "publish"]

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
"""Metrics are scraped from another machine, as a rule."""

Look = Callable[[], "Snapshot | None"]
Place = tuple[str, "str | int"]


class _Watched(NamedTuple):
    worker_id: str
    look: Look


class _Board:
    """The workers that share one place, and what publishes them there."""

    def __init__(self) -> None:
        self.watched: list[_Watched] = []
        self.publisher: HealthFile | PageServer | None = None

    def see(self) -> list[tuple[Health, Snapshot | None]]:
        """How each of them is now."""
        seen = [(one.worker_id, one.look()) for one in list(self.watched)]
        return [(health_of(worker_id, snapshot), snapshot) for worker_id, snapshot in seen]

    def summarize(self) -> dict[str, Any]:
        """How they are together."""
        return summary(self.see())


_lock = threading.Lock()
_boards: dict[Place, _Board] = {}


def publish(settings: WorkerSettings, look: Look) -> Publication:
    """Publish a worker wherever its settings say.

    Args:
        settings: of the worker.
        look: gives its snapshot; None while it does not run.

    Raises:
        SettingsError: a port cannot be had, or a library for it is not installed.
    """
    publication = Publication(_Watched(settings.worker_id, look))
    try:
        for key in ("health_port", "health_file", "metrics_port"):
            value = getattr(settings, key)
            if value is not None:
                publication.add(key, value, settings.written_as(key))
    except BaseException:
        publication.close()
        raise
    return publication


class Publication:
    """One worker, as it is published.

    Args:
        watched: the worker.

    Attributes:
        ports: the real ports, by the setting that asked for them.
    """

    def __init__(self, watched: _Watched) -> None:
        self._watched = watched
        self._places: list[Place] = []
        self.ports: dict[str, int] = {}

    def add(self, key: str, value: Any, written_as: str) -> None:
        """Publish it at one more place."""
        place: Place = (key, os.path.abspath(value) if key == "health_file" else value)
        if value == 0:
            place = (key, f"any-{id(self)}")
        with _lock:
            board = _boards.get(place) or _Board()
            board.watched.append(self._watched)
            if board.publisher is None:
                try:
                    board.publisher = _open(key, value, board)
                except OSError as error:
                    problem = f"port {value} cannot be had: {error.strerror or error}"
                    raise SettingsError(written_as, problem) from error
            _boards[place] = board
            self._places.append(place)
            if key != "health_file":
                self.ports[key] = board.publisher.port  # type: ignore[union-attr]
        self.nudge()

    def nudge(self) -> None:
        """The worker changed: a file that tells of it is written at once."""
        for place in self._places:
            board = _boards.get(place)
            if place[0] == "health_file" and board is not None:
                board.publisher.nudge()  # type: ignore[union-attr]

    def close(self) -> None:
        """It is not published any more; the last of a place closes it."""
        with _lock:
            for place in self._places:
                board = _boards[place]
                board.watched.remove(self._watched)
                if not board.watched:
                    del _boards[place]
                    assert board.publisher is not None
                    board.publisher.close()
            self._places.clear()


def _open(key: str, value: Any, board: _Board) -> HealthFile | PageServer:
    if key == "health_file":
        from kiwi_worker.observe.health_file import HealthFile

        return HealthFile("kiwi-worker-health-file", value, board.summarize)
    from kiwi_worker.observe.http import PageServer

    if key == "health_port":
        return PageServer("kiwi-worker-health", LOOPBACK, value, _health_pages(board))
    from kiwi_worker.observe.metrics import metrics_page

    return PageServer("kiwi-worker-metrics", EVERYWHERE, value, {"/metrics": metrics_page(board.see)})


def _health_pages(board: _Board) -> dict[str, Any]:
    return {
        "/live": lambda accept: _state_page(board.see(), "live"),
        "/ready": lambda accept: _state_page(board.see(), "ready"),
        "/status": lambda accept: _status_page(board.summarize()),
    }


def _state_page(seen: Sequence[tuple[Health, Any]], state: str) -> Any:
    from kiwi_worker.observe.http import Page

    bad = {health.worker_id: _why(health, state) for health, _ in seen if not getattr(health, state)}
    good = not bad and bool(seen)
    return Page(200 if good else 503, json.dumps({state: good, "reasons": bad}).encode())


def _why(health: Health, state: str) -> list[str]:
    return [health.not_ready or ""] if state == "ready" else list(health.reasons)


def _status_page(said: dict[str, Any]) -> Any:
    from kiwi_worker.observe.http import Page

    return Page(200 if said["healthy"] else 503, json.dumps(said).encode())
