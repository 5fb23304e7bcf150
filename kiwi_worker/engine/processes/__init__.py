"""Handlers in processes of their own: what one does to its process costs its own message and no other."""

from __future__ import annotations

from .origin import origin_of
from .pool import PoolLimits, ProcessPool

__all__ = ["PoolLimits", "ProcessPool", "origin_of"]
