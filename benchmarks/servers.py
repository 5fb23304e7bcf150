"""The servers benchmarks run against: nginx as a sink, and Redis for the peers."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SERVICE, WORKER, SECRET = "bench", "bench-worker", "bench-secret"

NGINX = """
daemon off; master_process on; worker_processes 1;
pid {folder}/nginx.pid; error_log {folder}/error.log warn;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 100000000; keepalive_timeout 300s;
  sendfile on; tcp_nopush on; tcp_nodelay on; default_type application/json;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location = /worker/auth_token {{ return 200 '{token}'; }}
    location = /worker/registration {{ return 200 '{{}}'; }}
    location = /worker/response {{ return 200 '{{"ok": true}}'; }}
    location = /worker/feedback {{ return 200 '{{}}'; }}
    location /worker/lock_request/ {{ return 204; }}
    location /worker/heartbeat/ {{ return 200 'true'; }}
    location /worker/notify_worker_shutdown/ {{ return 200 'true'; }}
    location = /worker/messages {{ alias {folder}/messages.json; }}
  }}
}}
"""


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def messages(count: int, lock: bool = False, method: str = "hello") -> bytes:
    """An array as a drain brings it."""
    return json.dumps(
        [
            {
                "request_id": f"{number:08d}-aaaa-bbbb-cccc-0123456789ab",
                "method": method,
                "lock_required": lock,
                "params": {"name": "x", "n": number},
            }
            for number in range(count)
        ]
    ).encode()


class Sink:
    """nginx, which answers every call of a Kiwi worker with a fixed body.

    Attributes:
        url: its address.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self.url = f"http://127.0.0.1:{port}"

    def offer(self, body: bytes) -> None:
        """Answer every drain with this array."""
        (self._folder / "messages.json").write_bytes(body)


@contextlib.contextmanager
def sink() -> Iterator[Sink]:
    """nginx while it is needed."""
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        folder.chmod(0o755)
        token = json.dumps({"access_token": _token(), "expires_in": 3600})
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port, token=token))
        server = Sink(folder, port)
        server.offer(b"[]")
        with _running([program, "-c", str(folder / "nginx.conf")], port):
            yield server


def _token() -> str:
    # An opaque one, which is any worker's, as long as a real one is.
    return "opaque-" + "x" * 300


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """An empty Redis on loopback; gives its address."""
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with _running(command, port):
        yield f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 10
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if time.monotonic() > until or process.poll() is not None:
                raise SystemExit(f"{command[0]} did not start")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(10)
