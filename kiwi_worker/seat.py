"""The place of a worker process under its supervisor: what it was told, and how the two notice each other."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
from typing import Any

from kiwi_worker.orphans import end_with_parent
from kiwi_worker.settings import WorkerSettings, for_process
from kiwi_worker.settings.worker import own_worker_id
from kiwi_worker.worker import WorkerBase

__all__ = ["VARIABLE", "Seat"]

VARIABLE = "_KIWI_WORKER_SEAT"
"""The variable that tells a process its place: its number, its supervisor's process id, its socket."""


class Seat:
    """One of the places of a supervisor.

    Args:
        number: which one, from 1.
        supervisor: the supervisor's process id.
        link: the socket between the two; its end tells that the other is gone.
    """

    def __init__(self, number: int, supervisor: int, link: socket.socket) -> None:
        self.number = number
        self.link = link
        self._supervisor = supervisor

    @classmethod
    def taken(cls) -> Seat | None:
        """The place this process was started for; None when it was started by no supervisor."""
        number, _, rest = os.environ.pop(VARIABLE, "").partition(":")
        supervisor, _, descriptor = rest.partition(":")
        # What a worker's handlers start inherits the variable, and is not started by the supervisor.
        if supervisor != str(os.getppid()):
            return None
        link = socket.socket(fileno=int(descriptor))
        link.set_inheritable(False)
        return cls(int(number), int(supervisor), link)

    def watch(self) -> None:
        """From now on the end of the supervisor stops this process in order, as SIGTERM does."""
        end_with_parent(self._supervisor, signal.SIGTERM)

    def tell_started(self) -> None:
        """Tell the supervisor that this process did what a start has to."""
        try:
            self.link.send(b"\0")
        except OSError:
            pass  # it is gone, which another way tells

    def workers(self, workers: tuple[WorkerBase[Any], ...]) -> tuple[WorkerBase[Any], ...]:
        """Those of the workers that this process runs, each with its own settings."""
        mine = tuple(worker for worker in workers if worker.settings.processes >= self.number)
        for worker in mine:
            worker.configure(self._own(worker.settings))
        return mine

    def _own(self, settings: WorkerSettings) -> WorkerSettings:
        if settings.source_of("worker_id") == "default":
            # After the one process that stays, so that a restarted worker keeps its name.
            settings = dataclasses.replace(settings, worker_id=own_worker_id(self._supervisor))
        return for_process(settings, self.number)
