"""The journal: what a worker has received, started and computed, kept so that its death loses none of it."""

from __future__ import annotations

from .image import JournalImage, read_journal
from .journal import Journal, JournalStats, Leftover, Recovered

__all__ = ["Journal", "JournalImage", "JournalStats", "Leftover", "Recovered", "read_journal"]
