"""Reading the secret of a worker, anew each time it is needed, so that a rotated one takes effect."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from ..errors import SettingsError
from .base import Settings
from .declare import Setting, settings_of
from .kinds import Misfit
from .secret import Secret

__all__ = ["secret_reader"]

STANDARD_INPUT = "-"
LARGEST_SECRET = 65_536


class _StandardInput:
    """The secret that came on standard input: read once, kept, since it cannot be read again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: Secret | None = None

    def read(self) -> bytes:
        with self._lock:
            if self._kept is None:
                # Windows services have no standard input at all.
                content = sys.stdin.buffer.read(LARGEST_SECRET + 1) if sys.stdin else b""
                self._kept = Secret(content.decode("latin-1"))
            return self._kept.reveal().encode("latin-1")


_standard_input = _StandardInput()


def secret_reader(settings: Settings) -> Callable[[], str] | None:
    """A function that gives the worker's secret or token, or None when neither it nor its file was given.

    Each call reads the file again and strips one line end; standard input (`-`) is read by the first call,
    once per process.

    Raises:
        SettingsError: by the function, when the file is missing, unreadable, empty, or no secret.
    """
    if settings.credential is None:
        return None
    secret_key, file_key = settings.credential
    given: Secret | None = getattr(settings, secret_key)
    if given is not None:
        return given.reveal
    path: str | None = getattr(settings, file_key)
    if path is None:
        return None
    declared = next(setting for setting in settings_of(type(settings)) if setting.key == secret_key)
    return _FileReader(path, settings.written_as(file_key), declared)


class _FileReader:
    def __init__(self, path: str, written_as: str, declared: Setting) -> None:
        self.path = path
        self.written_as = written_as
        self.declared = declared

    def __call__(self) -> str:
        content = self._content()
        if len(content) > LARGEST_SECRET:
            raise self._error("is too large to be a secret")
        text = self._decoded(content).removesuffix("\n").removesuffix("\r")
        return self._accepted(text).reveal()

    def _accepted(self, text: str) -> Secret:
        try:
            secret: Secret = self.declared.kind.convert(text)
        except Misfit as misfit:
            problem = str(misfit)
        else:
            return secret
        raise self._error(problem)

    @property
    def _name(self) -> str:
        return "standard input" if self.path == STANDARD_INPUT else self.path

    def _content(self) -> bytes:
        if self.path == STANDARD_INPUT:
            return _standard_input.read()
        try:
            with open(os.path.expanduser(self.path), "rb") as file:
                return file.read(LARGEST_SECRET + 1)
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        raise self._error(problem)

    def _decoded(self, content: bytes) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError:
            pass  # The error would carry the content, so it is left before ours is raised.
        raise self._error("is not UTF-8 text")

    def _error(self, problem: str) -> SettingsError:
        return SettingsError(self.written_as, f"{self._name} {problem}")
