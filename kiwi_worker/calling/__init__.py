"""The inside of `kiwi_worker.client`: one core that knows the client side, and two ways to carry it out."""

from __future__ import annotations
