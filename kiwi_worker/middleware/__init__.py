"""The bundled middleware: the other side of the worker protocol, and a client side of our own.

Importing this package loads neither a web framework nor SQLite; `kiwi_worker.middleware.server` does.
"""

from __future__ import annotations
