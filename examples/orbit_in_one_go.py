"""Dev runtime, worker and client in one process's care: `python orbit_in_one_go.py`.

Add `grpc` to speak gRPC (it needs the extra `orbit-grpc`).
"""

import sys
from pathlib import Path

from orbit_greeter import compose

from kiwi_worker.orbit import Client, OrbitWorker
from kiwi_worker.testing.orbit_runtime import running_runtime


def main(over_grpc: bool) -> None:
    with running_runtime(Path(__file__).with_name("greet.toml"), grpc=over_grpc) as runtime:
        server = runtime.grpc_url if over_grpc else runtime.url
        worker = OrbitWorker(server=server, proto="assumed" if over_grpc else None, concurrency=2)
        worker.task("greeting.compose", version="1.0.0")(compose)
        with worker, Client(server=runtime.url) as client:
            for name in ("Ada", "Grace", ""):
                execution = client.wait(client.start("Greet", {"name": name}), timeout=30)
                print(execution.status, execution.output or execution.error)


if __name__ == "__main__":
    main(sys.argv[1:] == ["grpc"])
