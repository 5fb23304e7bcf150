"""The gRPC messages of the ORBIT worker protocol, compiled at run time from a `worker.proto`.

    proto = load_proto("assumed")
    request = proto.register.request(worker_id="w", runtime="python", contracts=[…])

Importing this package loads neither grpcio nor protobuf; `load_proto` does, and names the extra when they
are not installed.
"""

from __future__ import annotations

from kiwi_worker.orbit.proto.loader import ASSUMED, OrbitProto, Rpc, load_proto
from kiwi_worker.orbit.proto.values import LARGEST_EXACT, fill_value, read_value

__all__ = ["ASSUMED", "LARGEST_EXACT", "OrbitProto", "Rpc", "fill_value", "load_proto", "read_value"]
