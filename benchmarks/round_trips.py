"""Bare HTTP round trips to the bundled middleware over one kept socket: `python round_trips.py COUNT`."""

from __future__ import annotations

import json
import sys
import time
from urllib.parse import urlsplit

from ceiling import BareSocket

from kiwi_worker.testing.middleware import running_middleware


def main(count: int) -> None:
    """Ask for something that costs the middleware nothing, and print how long it took."""
    with running_middleware() as middleware:
        parts = urlsplit(middleware.url)
        connection = BareSocket(str(parts.hostname), parts.port or 80)
        seconds = []
        for _ in range(count + 100):
            since = time.perf_counter()
            # A made-up token: the middleware answers 401 without asking anybody.
            assert connection.call(b"GET", b"/worker/heartbeat/nobody") == 401
            seconds.append(time.perf_counter() - since)
    seconds = sorted(seconds[100:])
    print(json.dumps({"p50_ms": seconds[count // 2] * 1e3, "p99_ms": seconds[int(count * 0.99)] * 1e3}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
