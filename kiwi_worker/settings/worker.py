"""What every worker can be told, whichever protocol it speaks."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .base import Settings
from .declare import setting
from .kinds import Choice, Flag, InputFile, OutputFile, Path, Port, Seconds, Text, Url, Whole

__all__ = ["CommandSettings", "WorkerSettings"]


def own_worker_id(pid: int | None = None) -> str:
    """The worker id of a process that was not given one: `<hostname>-<pid>`; None is this process."""
    from socket import gethostname

    return f"{gethostname() or 'worker'}-{pid or os.getpid()}"


@dataclass(frozen=True, repr=False, kw_only=True)
class WorkerSettings(Settings):
    """The settings both kinds of worker share; every one is read from a `KIWI_*` variable."""

    worker_id: str = setting(
        Text(longest=200),
        "the name under which the server knows this worker",
        computed=own_worker_id,
        shown_default="<hostname>-<pid>",
        note="It must be given when there is a journal. With several processes, -1 to -N is added to it.",
    )
    concurrency: int = setting(
        Whole(1, 10_000), "the number of requests handled at once (slots, one thread each)", default=8
    )
    async_concurrency: int = setting(
        Whole(1, 1_000_000), "the number of async handlers that run at once on the event loop", default=100
    )
    reporters: int = setting(
        Whole(1, 1000), "the number of threads that send the answers of async handlers", default=4
    )
    processes: int = setting(
        Whole(1, 1024),
        "the number of processes, each a full worker with its own registration",
        default=1,
    )
    process_pool_size: int | None = setting(
        Whole(1, 1024),
        'the number of child processes for methods with executor="process"',
        shown_default="one per CPU",
    )
    process_recycle_calls: int | None = setting(
        Whole(1), "the number of calls after which such a child process is replaced"
    )
    process_recycle_memory: int | None = setting(
        Whole(1), "the resident memory, in MiB, above which such a child process is replaced"
    )
    grace_period: float = setting(
        Seconds(),
        "the time given to running handlers at shutdown, in seconds",
        default=30,
        note="0 cancels them at once.",
    )
    time_limit: float | None = setting(
        Seconds(0.001),
        "the time a handler may run, in seconds, unless its method says otherwise",
    )
    start_limit: float | None = setting(
        Seconds(0.001),
        "the time after which a start gives up when the server cannot be reached, in seconds",
        note="Without it a worker keeps trying. Giving up ends the command with status 69.",
    )
    report_limit: float = setting(
        Seconds(0.001),
        "the time for which a slot tries to send its own answer before the outbox takes it, in seconds",
        default=5,
    )
    outbox_limit: int = setting(
        Whole(1),
        "the number of unsent answers at which no more work is taken",
        default=10_000,
    )
    max_result_bytes: int = setting(
        Whole(1024),
        "the size of the largest result that is sent, in bytes; a larger one is answered as an error",
        default=256 * 2**20,
    )
    expose_errors: bool = setting(
        Flag(),
        "whether callers see the type and text of an error in a handler",
        default=True,
        note="When false they see one fixed sentence.",
    )
    journal: str | None = setting(
        Path(),
        "the path of the journal that keeps work through the death of the process",
        note="It needs a fixed worker_id. With several processes, .1 to .N is added to it.",
    )
    journal_sync: str = setting(
        Choice("none", "interval", "always"),
        "how often the journal waits for the disk, which only a loss of power needs",
        default="none",
    )
    journal_max_age: float = setting(
        Seconds(1), "the age at which what the journal holds is given up, in seconds", default=86_400
    )
    journal_max_bytes: int = setting(
        Whole(65_536), "the size at which the journal takes no more work, in bytes", default=2**30
    )
    ca_file: str | None = setting(
        InputFile(),
        "the PEM file of the authorities that are trusted to sign the server's certificate",
        shown_default="the system's",
    )
    client_cert: str | None = setting(
        InputFile(), "the PEM file of the certificate this worker shows to the server"
    )
    client_key: str | None = setting(
        InputFile(),
        "the PEM file of that certificate's key",
        note="Needed only when the key is not in the certificate's file.",
    )
    proxy: str | None = setting(
        Url("http", "https", user=True),
        "the address of the proxy through which the server is reached",
        note="The variables HTTP_PROXY and HTTPS_PROXY are not read.",
    )
    health_port: int | None = setting(
        Port(), "the port on which the worker's health can be asked (0: any free one)"
    )
    health_file: str | None = setting(
        OutputFile(),
        "the path of a file that tells the worker's health",
        note="With several processes, .1 to .N is added to it.",
    )
    metrics_port: int | None = setting(Port(), "the port on which metrics can be scraped (0: any free one)")

    def _check_together(self) -> None:
        super()._check_together()
        if self.journal is not None and self.source_of("worker_id") == "default":
            self._refuse("journal", "needs a fixed worker_id; a journal belongs to one worker, so name it")
        if self.client_key is not None and self.client_cert is None:
            self._refuse("client_key", "is given without client_cert, the certificate it belongs to")
        self._check_ports()

    def _listening(self) -> dict[str, int]:
        """The ports this worker listens on, by key; 0 and none are left out."""
        ports = {"health_port": self.health_port, "metrics_port": self.metrics_port}
        return {key: port for key, port in ports.items() if port}

    def _check_ports(self) -> None:
        listening = self._listening()
        for key, port in listening.items():
            self._check_last_port(key, port)
        for key, port in listening.items():
            for other, taken in listening.items():
                if key < other and abs(port - taken) < self.processes:
                    self._refuse(key, f"{port} collides with {other}{self._per_process()}")

    def _check_last_port(self, key: str, port: int) -> None:
        if port + self.processes - 1 > 65535:
            self._refuse(key, f"{port} leaves no room for {self.processes} processes, a port each")

    def _per_process(self) -> str:
        return f"; {self.processes} processes need a port each" if self.processes > 1 else ""


@dataclass(frozen=True, repr=False, kw_only=True)
class CommandSettings(Settings):
    """What only the commands need; the library itself never configures logging."""

    log_level: str = setting(
        Choice("debug", "info", "warning", "error", "critical"),
        "the least severe records that the command writes to its log",
        default="info",
    )
