"""Round trips of UDP packets: `python probes.py probe|echo COUNT`. A worker's ACK, or a bare echo."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time

from kiwi_worker.kiwi.probe import ProbeListener, acknowledgement, pull_signal


def serve_probe() -> None:
    """The listener of a lazy worker."""
    listener = ProbeListener("127.0.0.1", 0, lambda: None)
    print(listener.bind(), flush=True)
    listener.serve()


def serve_echo() -> None:
    """The least a process can do with a packet."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    print(sock.getsockname()[1], flush=True)
    while True:
        sock.sendto(*sock.recvfrom(2048))


def main(kind: str, count: int) -> None:
    """Send packets, one after the other, and print the figures."""
    server = subprocess.Popen([sys.executable, __file__, f"serve-{kind}"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = int(server.stdout.readline())
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(5)
    sock.connect(("127.0.0.1", port))
    seconds = []
    for number in range(count + 200):
        packet = pull_signal(f"packet-{number}")
        since = time.perf_counter()
        sock.send(packet)
        answer = sock.recv(2048)
        seconds.append(time.perf_counter() - since)
        assert kind == "echo" or answer == acknowledgement(f"packet-{number}"), answer
    server.kill()
    server.wait()
    seconds = sorted(seconds[200:])
    print(json.dumps({"p50_us": seconds[count // 2] * 1e6, "p99_us": seconds[int(count * 0.99)] * 1e6}))


if __name__ == "__main__":
    if sys.argv[1] == "serve-probe":
        serve_probe()
    elif sys.argv[1] == "serve-echo":
        serve_echo()
    else:
        main(sys.argv[1], int(sys.argv[2]))
