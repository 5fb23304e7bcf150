"""Handlers in processes of their own: what one does to its process costs its own message and no other."""

from __future__ import annotations

from .pool import ProcessPool

__all__ = ["ProcessPool"]
