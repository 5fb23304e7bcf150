"""Workers under the supervisor against the sink: `python kiwi_processes.py URL MESSAGES PROCESSES KIND`.

Each process drains the array for itself. The CPU is that of all of them, supervisor included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from servers import SECRET, SERVICE, WORKER

WARM = 100


def serve(url: str, count: int, kind: str) -> None:
    """One worker of several: note when it is warm and when it is done."""
    from kiwi_worker import Worker

    worker = Worker(
        middleware_url=url,
        service_id=SERVICE,
        auth_secret=SECRET,
        worker_id=WORKER,
        run_mode="eager",
        grace_period=0,
    )

    @worker.method
    def hello(name: str, n: int = 0) -> str:
        if kind != "no-op":
            until = time.thread_time() + 0.001
            while time.thread_time() < until:
                pass
        return "hello " + name

    def note() -> None:
        engine = None
        while engine is None or engine.runner.counters.answered < WARM:
            time.sleep(0.001)
            engine = worker._engine
        started = time.monotonic(), time.process_time(), engine.runner.counters.answered
        while engine.runner.counters.answered < count:
            time.sleep(0.01)
        done = time.monotonic(), time.process_time(), engine.runner.counters.answered
        note = Path(os.environ["BENCH_FOLDER"], f"{os.getpid()}.part")
        note.write_text(json.dumps([started, done]))
        # Only whole notes are read.
        note.rename(note.with_suffix(".json"))

    # In each process that serves, and not in the one that watches over them.
    worker.on_start(lambda: threading.Thread(target=note, daemon=True).start())
    worker.run()


def main(url: str, count: int, processes: int, kind: str) -> None:
    """Start them, wait for all to be done, print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "KIWI_PROCESSES": str(processes), "BENCH_FOLDER": folder}
        command = [sys.executable, __file__, "serve", url, str(count), kind]
        workers = subprocess.Popen(command, env=environment, start_new_session=True)
        above: list[tuple[float, float]] = []
        try:
            until = time.monotonic() + 120
            while len(notes := list(Path(folder).glob("*.json"))) < processes:
                if time.monotonic() > until or workers.poll() is not None:
                    raise SystemExit("the workers did not finish")
                above.append((time.monotonic(), used_seconds(workers.pid)))
                time.sleep(0.01)
            spans = [json.loads(note.read_text()) for note in notes]
        finally:
            # They end with it.
            workers.kill()
            workers.wait()
    began, ended = min(span[0][0] for span in spans), max(span[1][0] for span in spans)
    cpu = sum(span[1][1] - span[0][1] for span in spans)
    if processes > 1:
        meanwhile = [seconds for moment, seconds in above if moment >= began]
        cpu += meanwhile[-1] - meanwhile[0]
    jobs = sum(span[1][2] - span[0][2] for span in spans)
    print(json.dumps({"per_second": jobs / (ended - began), "cpu_us": cpu / jobs * 1e6}))


def used_seconds(pid: int) -> float:
    """The processor time a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
