"""Runs the benchmarks, writes their tables and a plot: `python benchmarks/run.py [NAME …] [--rounds N]`."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
from collections.abc import Callable
from pathlib import Path

from measure import Contender, Figures, Table, compared, process, take_turns
from servers import messages, redis, sink

from kiwi_worker import __version__
from kiwi_worker.testing.middleware import running_middleware

RESULTS = Path(__file__).parent / "results"
JOBS = {"per_second": "jobs/s", "cpu_us": "CPU µs/job"}
Bars = dict[str, float]


class Report:
    """Tables and bars, as they come."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self.bars: dict[str, Bars] = {}

    def add(self, table: Table) -> None:
        """One more table."""
        self.tables.append(table)
        print(f"\n{table}", flush=True)

    def compare(
        self, title: str, results: dict[str, list[Figures]], figures: dict[str, str], base: str
    ) -> None:
        """A table of results, and bars of its first figure."""
        self.add(compared(title, results, figures, base))
        first = next(iter(figures))
        self.bars[f"{title}: {figures[first]}"] = {
            name: statistics.median(row[first] for row in rows) for name, rows in results.items()
        }

    def write(self) -> None:
        """Write `results/results.md` and `results/results.png`."""
        RESULTS.mkdir(exist_ok=True)
        today = datetime.datetime.now(datetime.timezone.utc)
        machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
        head = (
            f"kiwi-worker {__version__}, {today:%Y-%m-%d}, CPython {platform.python_version()}, {machine}. "
            "Medians (smallest … largest); ratios are taken round by round.\n\n"
        )
        (RESULTS / "results.md").write_text(head + "\n".join(map(str, self.tables)))
        self._plot()
        print(f"written to {RESULTS}")

    def _plot(self) -> None:
        try:
            import matplotlib
        except ModuleNotFoundError:
            print("matplotlib is not installed: there is no plot")
            return
        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(len(self.bars), 1, figsize=(8, 2.4 * len(self.bars)), squeeze=False)
        for axis, (title, bars) in zip(axes[:, 0], self.bars.items(), strict=True):
            axis.barh(list(bars), list(bars.values()), color="#5a8f29")
            axis.set_title(title, loc="left", fontsize=10)
            axis.invert_yaxis()
        figure.tight_layout()
        figure.savefig(RESULTS / "results.png", dpi=110)


def transport(report: Report, rounds: int) -> None:
    """One POST over a kept connection."""
    with sink() as server:
        names = ["socket", "kiwi-worker", "pycurl", "http.client", "requests"]
        contenders = {
            name: process("transports.py", name, server.url, 1000 if name == "requests" else 5000)
            for name in names
        }
        figures = {"per_second": "calls/s", "cpu_us": "CPU µs/call"}
        report.compare("One POST over a kept connection", take_turns(contenders, rounds), figures, "socket")


def jobs(report: Report, rounds: int) -> None:
    """No-op jobs per second, against the ceiling and peers."""
    for lock in (False, True):
        word = "lock" if lock else "plain"
        with sink() as server, redis() as address:
            server.offer(messages(20_000, lock))
            contenders: dict[str, Contender] = {
                "kiwi-worker": process("kiwi_jobs.py", server.url, 20_000, 8),
                "kiwi-worker, 1 slot": process("kiwi_jobs.py", server.url, 20_000, 1),
                "ceiling, 8 threads": process("ceiling.py", server.url, 20_000, 8, word),
                "ceiling, 1 thread": process("ceiling.py", server.url, 20_000, 1, word),
            }
            peers = ["dramatiq"] if lock else ["dramatiq", "huey", "taskiq", "arq", "celery"]
            for peer in peers:
                contenders[peer] = process("peer_jobs.py", peer, 4000, environment={"BENCH_REDIS": address})
            results = take_turns(contenders, rounds)
            title = "No-op jobs, one worker process" + (", each with a lock" if lock else "")
            report.compare(title, results, JOBS, "dramatiq")
            for slots, threads in (
                ("kiwi-worker", "ceiling, 8 threads"),
                ("kiwi-worker, 1 slot", "ceiling, 1 thread"),
            ):
                both = {name: results[name] for name in (slots, threads)}
                report.add(
                    compared(f"{title}: {slots} and the {threads}", both, {"cpu_us": "CPU µs/job"}, threads)
                )


def calls(report: Report, rounds: int) -> None:
    """Calls through middleware and worker, both on this machine."""
    with redis() as address:
        environment = {"BENCH_REDIS": address}
        for callers, count in ((1, 1000), (16, 4000)):
            contenders = {
                "kiwi-worker, eager": process("kiwi_calls.py", "eager", callers, count),
                "kiwi-worker, lazy": process("kiwi_calls.py", "lazy", callers, count),
                "taskiq": process("peer_calls.py", "taskiq", callers, count, environment=environment),
                "huey": process("peer_calls.py", "huey", callers, count, environment=environment),
            }
            figures = {"per_second": "calls/s", "p50_ms": "p50 ms", "p99_ms": "p99 ms"}
            title = f"Call to result, {callers} caller{'s' if callers > 1 else ''}"
            report.compare(title, take_turns(contenders, rounds), figures, "taskiq")


def idle(report: Report, rounds: int) -> None:
    """The first call after an idle minute."""
    with redis() as address:
        environment = {"BENCH_REDIS": address}
        contenders = {
            "kiwi-worker, eager": process("kiwi_calls.py", "eager", 1, 1, 60),
            "kiwi-worker, lazy": process("kiwi_calls.py", "lazy", 1, 1, 60),
            "taskiq": process("peer_calls.py", "taskiq", 1, 1, 60, environment=environment),
            "huey": process("peer_calls.py", "huey", 1, 1, 60, environment=environment),
        }
        results = take_turns(contenders, min(rounds, 3))
        report.compare("The first call after an idle minute", results, {"first_ms": "ms"}, "taskiq")


def probe(report: Report, rounds: int) -> None:
    """Wake-up packet to ACK, against a bare echo."""
    contenders = {
        "probe to ACK": process("probes.py", "probe", 3000),
        "bare echo": process("probes.py", "echo", 3000),
    }
    figures = {"p50_us": "p50 µs", "p99_us": "p99 µs"}
    report.compare("Wake-up probe", take_turns(contenders, rounds), figures, "bare echo")


def trips(report: Report, rounds: int) -> None:
    """Call to result in bare HTTP round trips to the same middleware."""
    contenders = {
        "eager": process("kiwi_calls.py", "eager", 1, 1000),
        "lazy": process("kiwi_calls.py", "lazy", 1, 1000),
        "bare round trip": process("round_trips.py", 1000),
    }
    report.compare(
        "Call to result through the bundled middleware",
        take_turns(contenders, rounds),
        {"p50_ms": "p50 ms", "p99_ms": "p99 ms"},
        "bare round trip",
    )


def drains(report: Report, rounds: int) -> None:
    """Time and memory per message, whatever the number drained at once."""
    with sink() as server:
        sizes = (1_000, 10_000, 100_000)

        def contender(size: int, *options: str) -> Contender:
            run = process("kiwi_jobs.py", server.url, size, 8, *options)

            def offered() -> Figures:
                server.offer(messages(size))
                return run()

            return offered

        speed = take_turns({f"{size:,}": contender(size) for size in sizes}, rounds)
        report.compare("Messages in one drain: time", speed, JOBS, "1,000")
        memory = take_turns({f"{size:,}": contender(size, "memory=on") for size in sizes[1:]}, 1)
        table = Table(
            "Messages in one drain: memory, the body itself included", "messages", "bytes a message"
        )
        for name, rows in memory.items():
            table.add(name, f"{rows[0]['bytes_per_message']:.0f}")
        report.add(table)


def journal(report: Report, rounds: int) -> None:
    """Throughput with a journal, against without."""
    path = RESULTS / "journal"
    RESULTS.mkdir(exist_ok=True)
    with sink() as server:
        server.offer(messages(20_000))
        plain = process("kiwi_jobs.py", server.url, 20_000, 8)
        kept = process("kiwi_jobs.py", server.url, 20_000, 8, f"journal={path}")

        def with_journal() -> Figures:
            path.unlink(missing_ok=True)
            return kept()

        results = take_turns({"without": plain, "with journal": with_journal}, rounds)
        path.unlink(missing_ok=True)
        report.compare("Journal (not synced)", results, JOBS, "without")


def footprint(report: Report, rounds: int) -> None:
    """Import time, memory and idle CPU."""
    contenders = {name: process("footprint.py", "import", name) for name in ("kiwi_worker", "requests")}
    figures = {"import_ms": "ms", "resident_mib": "MiB resident"}
    report.compare("Import", take_turns(contenders, rounds), figures, "requests")
    with running_middleware() as middleware:
        environment = {
            "KIWI_MIDDLEWARE_URL": middleware.url,
            "KIWI_SERVICE_ID": middleware.service_id,
            "KIWI_AUTH_SECRET": middleware.worker_secret,
        }
        rows = take_turns({"eager worker": process("footprint.py", "idle", 30, environment=environment)}, 1)
    table = Table("Idle", "", "CPU ms in 30 s", "MiB resident")
    for name, (row, *_) in rows.items():
        table.add(name, f"{row['cpu_ms_in_30_s']:.2f}", f"{row['resident_mib']:.1f}")
    report.add(table)


def processes(report: Report, rounds: int) -> None:
    """Two processes against one, with a supervisor above."""
    with sink() as server:
        server.offer(messages(20_000))
        for kind, count in (("no-op", 20_000), ("1 ms of CPU", 2_000)):
            contenders = {
                f"{number} process{'es' if number > 1 else ''}": process(
                    "kiwi_processes.py", server.url, count, number, kind
                )
                for number in (1, 2)
            }
            results = take_turns(contenders, rounds)
            report.compare(f"Processes, {kind} handlers", results, JOBS, "1 process")


def orbit(report: Report, rounds: int) -> None:
    """An ORBIT task over HTTP, against two POSTs of the ceiling with as many threads, and barer ones."""
    figures = {"cpu_us": "CPU µs", "per_second": "in a second"}
    with sink() as server:
        server.offer(messages(20_000))
        for threads in (8, 1):
            ceiling = process("ceiling.py", server.url, 20_000, threads, "plain")

            def twice(once: Contender = ceiling) -> Figures:
                one = once()
                return {"cpu_us": 2 * one["cpu_us"], "per_second": one["per_second"] / 2}

            contenders = {
                "a task": process("orbit_task_cost.py", "tasks", 5000, threads),
                "two ceiling POSTs": twice,
                "two POSTs without content": process("orbit_task_cost.py", "socket", 6000, threads),
                "two POSTs by http.client": process("orbit_task_cost.py", "http.client", 4000, threads),
            }
            title = f"ORBIT task over HTTP, {threads} thread{'s' if threads > 1 else ''}"
            report.compare(title, take_turns(contenders, rounds), figures, "two ceiling POSTs")


BENCHMARKS: dict[str, Callable[[Report, int], None]] = {
    "transport": transport,
    "jobs": jobs,
    "calls": calls,
    "idle": idle,
    "probe": probe,
    "trips": trips,
    "drains": drains,
    "processes": processes,
    "journal": journal,
    "footprint": footprint,
    "orbit": orbit,
}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of {', '.join(BENCHMARKS)}; all by default"
    )
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    unknown = set(chosen.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    report = Report()
    for name in chosen.names or BENCHMARKS:
        print(f"\n{name}", flush=True)
        BENCHMARKS[name](report, chosen.rounds)
    report.write()


if __name__ == "__main__":
    main()
