"""Workers under the supervisor against the sink: `python kiwi_processes.py URL MESSAGES PROCESSES KIND`.

Each process drains the array for itself. The CPU is that of the whole process group, supervisor included.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from servers import SECRET, SERVICE, WORKER

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from counting import group_cpu_seconds

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
        started = time.monotonic(), group_cpu_seconds(), engine.runner.counters.answered
        while engine.runner.counters.answered < count:
            time.sleep(0.002)
        done = time.monotonic(), group_cpu_seconds(), engine.runner.counters.answered
        Path(os.environ["BENCH_FOLDER"], f"{os.getpid()}.json").write_text(json.dumps([started, done]))

    if "_KIWI_WORKER_PROCESS" in os.environ or os.environ["KIWI_PROCESSES"] == "1":
        threading.Thread(target=note, daemon=True).start()
    worker.run()


def main(url: str, count: int, processes: int, kind: str) -> None:
    """Start them, wait for all to be done, print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "KIWI_PROCESSES": str(processes), "BENCH_FOLDER": folder}
        command = [sys.executable, __file__, "serve", url, str(count), kind]
        workers = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            until = time.monotonic() + 120
            while len(notes := list(Path(folder).glob("*.json"))) < processes:
                if time.monotonic() > until or workers.poll() is not None:
                    raise SystemExit("the workers did not finish")
                time.sleep(0.01)
            spans = [json.loads(note.read_text()) for note in notes]
        finally:
            os.killpg(workers.pid, signal.SIGKILL)
            workers.wait()
    began, ended = min(span[0][0] for span in spans), max(span[1][0] for span in spans)
    cpu = max(span[1][1] for span in spans) - min(span[0][1] for span in spans)
    jobs = sum(span[1][2] - span[0][2] for span in spans)
    print(json.dumps({"per_second": jobs / (ended - began), "cpu_us": cpu / jobs * 1e6}))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
