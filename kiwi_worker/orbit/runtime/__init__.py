"""The ORBIT dev runtime: a small runtime to try and test ORBIT workers on, on a laptop.

It holds to the ORBIT worker protocol page for everything a worker sees. Workflows have one step, and perhaps
a compensation, and are declared in a TOML file: the workflow language is the real runtime's own.

Needs the extra `middleware`, and `orbit-grpc` when it serves gRPC.
"""

from __future__ import annotations

from collections.abc import Callable

from kiwi_worker.orbit.runtime.options import RuntimeOptions

__all__ = ["RuntimeOptions", "run"]


def run(options: RuntimeOptions, say: Callable[[str], None] = print) -> None:
    """Serve until SIGINT or SIGTERM; see `kiwi_worker.orbit.runtime.server.run`."""
    # imported here: it loads the HTTP server, which importing the package must not
    from kiwi_worker.orbit.runtime import server

    server.run(options, say)
