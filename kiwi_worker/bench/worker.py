"""The worker that the calls of `kiwi-worker bench` go to: a process of its own, with one method."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Mapping

from kiwi_worker.cli.group import one_line
from kiwi_worker.cli.logs import configure_logging
from kiwi_worker.errors import KiwiWorkerError
from kiwi_worker.orphans import end_with_parent
from kiwi_worker.settings.command_line import command_line
from kiwi_worker.worker import Worker

__all__ = ["new_worker", "serve"]


def cpu_seconds() -> float:
    """The processor time that this process has used so far."""
    return time.process_time()


def new_worker(
    options: Mapping[str, object], config: str | None, worker_id: str, method: str | None
) -> Worker:
    """A worker with a user's own settings, but for what only one worker may have.

    Args:
        options: as given on the command line, by key.
        config: the settings file.
        worker_id: the one it registers as, whatever the settings say.
        method: the name of its method, which takes nothing and returns the seconds of processor time that
            its process has used; None for a worker without methods, to look at its settings.

    Raises:
        SettingsError: a setting is missing or wrong.
    """
    with command_line(options, config):
        worker = Worker()
    worker.configure(
        dataclasses.replace(
            worker.settings,
            worker_id=worker_id,
            processes=1,
            wakeup_probe_service_port=0,
            advertised_port=None,
            journal=None,
            health_file=None,
            health_port=None,
            metrics_port=None,
        )
    )
    if method is not None:
        worker.method(method)(cpu_seconds)
    return worker


def serve(options: Mapping[str, object], config: str | None, worker_id: str, method: str) -> None:
    """The main program of the process: run it until SIGTERM."""
    # Here, since what is imported here is imported by the command, too, which need not run a worker.
    from kiwi_worker.running import run_to_status

    end_with_parent(os.getppid(), signal.SIGTERM)
    configure_logging("critical")
    try:
        status, error = run_to_status(new_worker(options, config, worker_id, method))
    except KiwiWorkerError as problem:
        status, error = problem.exit_status, problem
    if error is not None:
        sys.stderr.write(f"kiwi-worker bench: {one_line(error)}\n")
    sys.exit(status)
