"""`python -m kiwi_worker` is the command `kiwi-worker`."""

from __future__ import annotations

from kiwi_worker.cli import main

if __name__ == "__main__":
    main(prog_name="kiwi-worker")
