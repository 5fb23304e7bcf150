"""The log of a command: the only place where logging is configured."""

from __future__ import annotations

import logging
import sys

__all__ = ["configure_logging"]

_LINE = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_FIELDS = ("method", "request_id")


def configure_logging(level: str) -> None:
    """Write records of this level and above to standard error, one line each and the traceback of errors.

    Handlers that the root logger has already, a user's own, are left alone.
    """
    logging.captureWarnings(True)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(_LINE))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # It logs every connection, which the transport of this package tells better.
    logging.getLogger("urllib3").setLevel(logging.WARNING)


class _Formatter(logging.Formatter):
    """Names the request a record is about, when it is about one and does not say so itself."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        fields = [(name, getattr(record, name, None)) for name in _FIELDS]
        shown = [f"{name}={value}" for name, value in fields if value and str(value) not in record.message]
        return f"{line} [{' '.join(shown)}]" if shown else line
