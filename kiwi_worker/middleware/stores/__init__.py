"""Where the middleware keeps what it must not lose: one module per database."""

from __future__ import annotations
