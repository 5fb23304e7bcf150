"""The pytest plugin of this package."""

from __future__ import annotations
