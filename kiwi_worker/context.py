"""What a handler may ask and do while it runs."""

from __future__ import annotations

__all__ = ["Context"]


class Context:
    """What a handler may ask and do while it runs; a parameter annotated with it receives it."""
