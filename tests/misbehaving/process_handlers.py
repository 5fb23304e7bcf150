"""Handlers that do to their process whatever they can; a child finds them here by name."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from kiwi_worker import Context, MethodFailed, Registry

registry = Registry()
in_process = registry.method(executor="process")


@in_process
def pid() -> int:
    return os.getpid()


@in_process
def add(a: int, b: int = 1, *, ctx: Context) -> int:
    ctx.feedback({"adding": [a, b]})
    return a + b


@in_process
def raises(kind: str) -> None:
    errors = {
        "value": ValueError("no"),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "generator": GeneratorExit(),
        "chosen": MethodFailed("as chosen"),
    }
    raise errors[kind]


@in_process
def recurse() -> None:
    recurse()


@in_process
def die(how: str) -> None:
    if how == "exit":
        os._exit(9)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        ctypes.string_at(0)


@registry.method(executor="process", time_limit=0.5)
def hang() -> None:
    time.sleep(3600)


@registry.method(executor="process", time_limit=0.5)
def hold_the_interpreter() -> None:
    ctypes.PyDLL(None).sleep(3600)


@in_process
def wait_for_ever(started: str) -> None:
    Path(started).write_text(str(os.getpid()))
    time.sleep(3600)


@in_process
def grow(mib: int) -> int:
    global _kept
    _kept = bytearray(mib * 1024 * 1024)
    return os.getpid()


_kept = bytearray()


@in_process
def unencodable() -> object:
    return object()


@in_process
def fork() -> int:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return 1


@in_process
def close_output() -> int:
    sys.stdout.close()
    os.close(1)
    return 1


@in_process
def signal_mask_of_a_subprocess() -> str:
    read = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    return subprocess.run(
        [sys.executable, "-c", read], capture_output=True, text=True, check=True
    ).stdout.strip()
