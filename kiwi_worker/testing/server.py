"""A server that misbehaves on purpose, for testing workers.

In process:

    with MisbehavingServer.kiwi() as server:
        server.fault("respond", DropBefore(), after=True)

As a process, which prints its address on one line and ends on SIGINT or SIGTERM:

    python -m kiwi_worker.testing.server --port 8420 --fault respond:Status:status=503,times=2

The faults of the process form can be changed while it runs, through `/_faults` (see `control`).
"""

from __future__ import annotations

from kiwi_worker.testing.base import MisbehavingServer
from kiwi_worker.testing.kiwi_server import KiwiServer

__all__ = ["KiwiServer", "MisbehavingServer"]

MisbehavingServer.kiwi = KiwiServer
