"""A Kiwi worker against the sink: `python kiwi_jobs.py URL MESSAGES CONCURRENCY [key=value …]`.

The figures begin with the 101st answered message, when everything is warm, and end with the last.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import tracemalloc

from servers import SECRET, SERVICE, WORKER

from kiwi_worker import Worker

WARM = 100


def main(url: str, count: int, concurrency: int, options: dict[str, str]) -> None:
    """Serve until `count` messages are answered, and print the figures."""
    with_memory = options.pop("memory", "") == "on"
    worker = Worker(
        middleware_url=url,
        service_id=SERVICE,
        auth_secret=SECRET,
        worker_id=WORKER,
        run_mode="eager",
        concurrency=concurrency,
        grace_period=0,
        **options,
    )

    @worker.method
    def hello(name: str, n: int = 0) -> str:
        return "hello " + name

    if with_memory:
        tracemalloc.start()
    with worker:
        engine = worker._engine
        assert engine is not None
        counters = engine.runner.counters
        while counters.answered < WARM:
            time.sleep(0.0005)
        first, before = counters.answered, resource.getrusage(resource.RUSAGE_SELF)
        since, peak = time.perf_counter(), 0
        while counters.answered < count:
            # Looking more often would cost what is measured.
            time.sleep(0.01)
            peak = max(peak, tracemalloc.get_traced_memory()[1] if with_memory else 0)
        seconds, after = time.perf_counter() - since, resource.getrusage(resource.RUSAGE_SELF)
        done = counters.answered - first
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    figures = {"per_second": done / seconds, "cpu_us": cpu / done * 1e6}
    if with_memory:
        figures["bytes_per_message"] = peak / count
    print(json.dumps(figures))
    sys.stdout.flush()


if __name__ == "__main__":
    main(
        sys.argv[1],
        int(sys.argv[2]),
        int(sys.argv[3]),
        dict(word.split("=", 1) for word in sys.argv[4:]),
    )
