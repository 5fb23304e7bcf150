"""Log records of a handler process, written by the worker's own logging."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from kiwi_worker.engine.processes.frames import Logged, readable

__all__ = ["LinkHandler", "least_level", "write_record"]

_PLACE = ("pathname", "filename", "module", "lineno", "funcName")
_MOMENT = ("created", "msecs", "relativeCreated", "thread", "threadName", "processName", "process")
_FIELDS = ("levelno", "levelname", *_PLACE, *_MOMENT)
_IN_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LinkHandler(logging.Handler):
    """Sends records to the worker while it listens; otherwise they go to standard error.

    Args:
        send: sends one; False when nobody listens now.
    """

    def __init__(self, send: Callable[[Logged], bool]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        try:
            if not self._send(_frame(record)) and logging.lastResort is not None:
                logging.lastResort.handle(record)
        except Exception:  # noqa: BLE001 - as every handler: logging must not fail what logs
            self.handleError(record)


def _frame(record: logging.LogRecord) -> Logged:
    fields = {name: getattr(record, name) for name in _FIELDS}
    fields["msg"] = readable(record.getMessage())
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    fields["exc_text"] = None if record.exc_text is None else readable(record.exc_text)
    more = {name: value for name, value in vars(record).items() if name not in _IN_EVERY_RECORD}
    return Logged(record.name, fields, msgspec.json.encode(more, enc_hook=str))


def write_record(logged: Logged) -> None:
    """Hand a record to the logger of its name, as if it came from here."""
    logger = logging.getLogger(logged.name)
    if logger.isEnabledFor(logged.fields["levelno"]):
        more = msgspec.json.decode(logged.more)
        logger.handle(logging.makeLogRecord({"name": logged.name, **more, **logged.fields}))


def least_level() -> int:
    """The least severe level that any logger of this process is set to."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    levels = [logger.level for logger in loggers if isinstance(logger, logging.Logger) and logger.level]
    return min(levels, default=logging.WARNING)
