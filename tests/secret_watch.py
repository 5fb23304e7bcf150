"""Reads everything the suite prints and fails the test in which a secret or a token came out.

Read are: what each test and its child processes write to standard output and error, whether pytest captured
it or the test read it from a pipe; and every log record at DEBUG, its extra fields and its traceback
included. Looked for are: every secret that settings were made with or a child process was given in its
environment, as it is and in base64; anything with the form of a token or of a bundled middleware's secret.
A test that is about printing a secret is marked `prints_secrets`.
"""

from __future__ import annotations

import base64
import io
import logging
import re
import subprocess
import traceback
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import pytest
from required import refuse_missing

from kiwi_worker.settings import Secret

SHORTEST = 8
"""Shorter ones, such as the `x` of a test, are in half of all words."""

VARIABLES = ("KIWI_AUTH_SECRET", "KIWI_CLIENT_SECRET", "KIWI_JWT_KEY", "ORBIT_TOKEN", "ORBIT_WORKER_TOKEN")
TOKENS = re.compile(
    r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+"  # a JSON web token
    r"|kiwi_(?:worker|client)_[\w-]{40,}"  # a secret the bundled middleware made
    r"|[Bb]earer [\w.~+/-]{12,}",
)


class Watch:
    """What was printed since the last look, and the secrets that were made so far."""

    def __init__(self) -> None:
        self.printed: list[str] = []
        self._secrets: dict[str, tuple[str, ...]] = {}

    def learn(self, secret: str) -> None:
        """Look for this secret from now on."""
        if len(secret) >= SHORTEST and secret not in self._secrets:
            self._secrets[secret] = tuple(_forms_of(secret))

    def hear(self, text: str | bytes) -> None:
        """Something was printed."""
        if text:
            self.printed.append(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)

    def found(self) -> str | None:
        """A line that shows a secret, with the secret taken out; what was heard is forgotten."""
        heard, self.printed = "\n".join(self.printed), []
        for line in heard.splitlines():
            shown = self._shown_in(line)
            if shown is not None:
                return line.replace(shown, "<SECRET>")
        return None

    def _shown_in(self, line: str) -> str | None:
        token = TOKENS.search(line)
        if token is not None:
            return token.group()
        forms = (form for forms in self._secrets.values() for form in forms)
        return next((form for form in forms if form in line), None)


def _forms_of(secret: str) -> Iterator[str]:
    yield secret
    for shift in range(3):
        # What stands before and after moves the bits, so the outermost characters are left away.
        coded = base64.b64encode(b"\0" * shift + secret.encode("utf-8", "replace")).rstrip(b"=")
        yield coded[(0, 2, 3)[shift] : -1].decode()


watch = Watch()


def _watch_records() -> None:
    """Hear every record of this package, and leave everybody else the level they chose."""
    enabled, handle = logging.Logger.isEnabledFor, logging.Logger.handle

    def is_enabled(self: logging.Logger, level: int) -> bool:
        return _is_own(self) or enabled(self, level)

    def handled(self: logging.Logger, record: logging.LogRecord) -> None:
        if _is_own(self):
            _hear_record(record)
        if enabled(self, record.levelno):
            handle(self, record)

    logging.Logger.isEnabledFor = is_enabled  # type: ignore[method-assign]
    logging.Logger.handle = handled  # type: ignore[method-assign]


def _is_own(logger: logging.Logger) -> bool:
    return logger.name.partition(".")[0] == "kiwi_worker"


def _hear_record(record: logging.LogRecord) -> None:
    """As a careless formatter would print it."""
    watch.hear(f"{record.getMessage()} {vars(record)!r}")
    if record.exc_info and record.exc_info[1]:
        watch.hear("".join(traceback.format_exception(record.exc_info[1])))


class _HeardText(io.TextIOWrapper):
    """A child's output that a test reads as text."""

    def __next__(self) -> str:
        return _heard(super().__next__())

    def readline(self, size: Any = -1) -> str:
        return _heard(super().readline(size))

    def read(self, size: Any = -1) -> str:
        return _heard(super().read(size))


class _HeardBytes(io.BufferedReader):
    """A child's output that a test reads as bytes."""

    def __next__(self) -> bytes:
        return _heard(super().__next__())

    def readline(self, size: Any = -1) -> bytes:
        return _heard(super().readline(size))

    def read(self, size: Any = -1) -> bytes:
        return _heard(super().read(size))


def _heard(text: Any) -> Any:
    watch.hear(text)
    return text


def _listen(stream: Any) -> Any:
    if isinstance(stream, io.TextIOWrapper):
        encoding, errors = stream.encoding, stream.errors
        return _HeardText(stream.detach(), encoding=encoding, errors=errors)
    return _HeardBytes(stream.detach()) if isinstance(stream, io.BufferedReader) else stream


def _watch_children() -> None:
    make, communicate = subprocess.Popen.__init__, subprocess.Popen.communicate

    def init(self: Any, *args: Any, **keywords: Any) -> None:
        make(self, *args, **keywords)
        for name in VARIABLES:
            watch.learn((keywords.get("env") or {}).get(name, ""))
        for name in ("stdout", "stderr"):
            setattr(self, name, _listen(getattr(self, name)))

    def communicated(self: Any, *args: Any, **keywords: Any) -> Any:
        both = communicate(self, *args, **keywords)
        for text in both:
            watch.hear(text or "")
        return both

    subprocess.Popen.__init__ = init  # type: ignore[method-assign]
    subprocess.Popen.communicate = communicated  # type: ignore[method-assign]


def _watch_secrets() -> None:
    make = Secret.__init__

    def init(self: Secret, text: str) -> None:
        make(self, text)
        watch.learn(text)

    Secret.__init__ = init  # type: ignore[method-assign]


def pytest_configure(config: pytest.Config) -> None:
    """Watch from before anything is collected."""
    config.addinivalue_line("markers", "prints_secrets: the test is about printing a secret")
    _watch_secrets()
    _watch_children()
    _watch_records()


def _parts(report: pytest.TestReport, sections: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    yield from (text for when, _, text in sections if when == report.when)


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail the phase of a test in which a secret was printed."""
    report = yield
    refuse_missing(report)
    # A lone surrogate in the log of a test cannot be sent to another process.
    report.sections = [(title, _sendable(text)) for title, text in report.sections]
    for text in _parts(report, item._report_sections):
        watch.hear(text)
    line = watch.found()
    if line is not None and report.passed and item.get_closest_marker("prints_secrets") is None:
        report.outcome = "failed"
        report.longrepr = f"a secret was printed during {report.when} of {item.nodeid}:\n{line[:2000]}"
    return report
