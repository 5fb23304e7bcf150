"""Every error this package raises, as one tree:

    KiwiWorkerError
    ├── SettingsError            a setting is missing, misspelt or out of range        (exit status 78)
    ├── DefinitionError          a handler, a hook or a method name cannot be served   (78)
    ├── StartError               the worker could not start                            (1)
    │   ├── AuthenticationError  the credentials were refused                          (77)
    │   ├── RegistrationError    the registration was refused                          (78)
    │   ├── ProbePortError       the wake-up probe port could not be bound             (78)
    │   ├── JournalError         the journal is unusable, foreign or corrupt           (78)
    │   ├── HookError            a start hook raised                                   (1)
    │   └── UnreachableError     the server was not reached within the start-up limit  (69)
    ├── ForgottenError           the middleware no longer knows this worker            (75)
    ├── TransportError           a call over the network did not bring an answer
    │   ├── NotSent              it failed before any byte of the request was sent: repeating is safe
    │   │   └── TokenUnavailable no token can be had just now, so the call that needs it was not made
    │   └── Ambiguous            bytes were sent and no whole answer came: it may have been done
    ├── ProtocolError            an answer came and it is not what the protocol page says
    ├── InvalidParameters        the params of a message do not fit the handler's signature
    ├── UnencodableResult        what the handler returned has no JSON form
    ├── DeliberateError          raised by a handler to choose its answer
    │   ├── MethodFailed         answer `failed` with this text
    │   └── MethodError          answer `error` with this text
    └── CallError                a call through a client did not bring a result

Errors carry their facts as attributes; their text says what happened, to what, and what to do. No error
holds a secret, a token or a settings value in its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = [
    "Ambiguous",
    "AuthenticationError",
    "CallError",
    "DefinitionError",
    "DeliberateError",
    "ForgottenError",
    "HookError",
    "InvalidParameters",
    "JournalError",
    "KiwiWorkerError",
    "MethodError",
    "MethodFailed",
    "NotSent",
    "ProbePortError",
    "ProtocolError",
    "RegistrationError",
    "SettingsError",
    "StartError",
    "TokenUnavailable",
    "TransportError",
    "UnencodableResult",
    "UnreachableError",
]


class KiwiWorkerError(Exception):
    """The base of every error of this package."""

    exit_status = 1
    """The status a command line ends with when this error stops it."""


class SettingsError(KiwiWorkerError):
    """A setting is missing, misspelt or out of range.

    Args:
        key: the setting, as the person wrote it (keyword, variable, file key or option).
        problem: what is wrong with it, and what would be right. Never the value of a secret.
    """

    exit_status = 78

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem


class DefinitionError(KiwiWorkerError):
    """A handler, a hook or a method name cannot be served; raised where it is defined."""

    exit_status = 78


class StartError(KiwiWorkerError):
    """The worker could not start."""


class AuthenticationError(StartError):
    """The credentials were refused, or the token is not this worker's: trying again will not help by itself.

    Attributes:
        status: the status the token endpoint answered with; None when the token itself was the trouble.
        retry_seconds: how long no further attempt is made, counted from when this was raised.
    """

    exit_status = 77

    def __init__(self, text: str, *, status: int | None = None, retry_seconds: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.retry_seconds = retry_seconds


class RegistrationError(StartError):
    """The registration was refused."""

    exit_status = 78


class ProbePortError(StartError):
    """The wake-up probe port could not be bound.

    Attributes:
        address: the address it was to be bound to.
        port: the port.
    """

    exit_status = 78

    def __init__(self, text: str, *, address: str = "", port: int = 0) -> None:
        super().__init__(text)
        self.address = address
        self.port = port


class JournalError(StartError):
    """The journal is unusable, belongs to another worker, or is corrupt."""

    exit_status = 78


class HookError(StartError):
    """A start hook raised."""


class UnreachableError(StartError):
    """The server was not reached within the start-up limit."""

    exit_status = 69


class ForgottenError(KiwiWorkerError):
    """The middleware no longer knows this worker; a new process may register again."""

    exit_status = 75


class TransportError(KiwiWorkerError):
    """A call over the network did not bring an answer."""


class NotSent(TransportError):
    """The call failed before any byte of the request was sent: repeating it is safe."""


class TokenUnavailable(NotSent):
    """No token can be had just now, for a reason that passes; the call that needs it was not made.

    Attributes:
        retry_seconds: how long no further attempt is made, counted from when this was raised.
    """

    def __init__(self, text: str, *, retry_seconds: float = 0.0) -> None:
        super().__init__(text)
        self.retry_seconds = retry_seconds


class Ambiguous(TransportError):
    """Bytes of the request were sent and no whole answer came: the server may have acted on it.

    Attributes:
        status: the status of an answer whose body broke off, or None when not even its head came.
        partial_body: the bytes of the body that did come.
    """

    def __init__(self, text: str, *, status: int | None = None, partial_body: bytes = b"") -> None:
        super().__init__(text)
        self.status = status
        self.partial_body = partial_body


class ProtocolError(KiwiWorkerError):
    """An answer came and it is not what the protocol page says."""


class InvalidParameters(KiwiWorkerError):
    """The params of a message do not fit the handler's signature; the text names the path and the type."""


class UnencodableResult(KiwiWorkerError):
    """What the handler returned has no JSON form; the text names the type and, where known, the path."""


class DeliberateError(KiwiWorkerError):
    """Raised by a handler to choose its answer.

    Attributes:
        answer: what the answer shall say, in the words of the binding that reads it.
    """

    answer: Mapping[str, Any] = MappingProxyType({})


class MethodFailed(DeliberateError):
    """Raise it in a handler to answer `failed`, with exactly this text for the client."""

    answer = MappingProxyType({"status": "failed"})


class MethodError(DeliberateError):
    """Raise it in a handler to answer `error`, with exactly this text for the client."""

    answer = MappingProxyType({"status": "error"})


class CallError(KiwiWorkerError):
    """A call through a client did not bring a result.

    Attributes:
        outcome: how the call stands, when that is what went wrong; None when the request itself was refused.
        http_status: the status of the answer that refused it.
        code: the server's word for why.
    """

    def __init__(
        self, text: str, *, outcome: Any = None, http_status: int | None = None, code: str | None = None
    ) -> None:
        super().__init__(text)
        self.outcome = outcome
        self.http_status = http_status
        self.code = code
