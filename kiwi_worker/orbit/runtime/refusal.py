"""How the dev runtime says no (ORBIT page, "Errors")."""

from __future__ import annotations

import logging

from kiwi_worker.errors import KiwiWorkerError

_logger = logging.getLogger("kiwi_worker.orbit.runtime")


class Refused(KiwiWorkerError):
    """A call the runtime does not carry out.

    Args:
        status: the HTTP status; the gRPC binding translates it by the page's table.
        code: the ORBIT error code, the one thing a client may branch on.
        message: text for people.
        code_in_metadata: whether gRPC repeats the code in `orbit-error-code`; the page names the exceptions.
    """

    def __init__(self, status: int, code: str, message: str, *, code_in_metadata: bool = True) -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.code_in_metadata = code_in_metadata


class Malformed(KiwiWorkerError):
    """A request that is not even of the right form; answered in plain text.

    Args:
        status: 400, 413, 415 or 422.
        text: what is wrong with it.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def invalid_request(message: str, *, code_in_metadata: bool = True) -> Refused:
    """400: the request is well-formed JSON but not valid."""
    return Refused(400, "INVALID_REQUEST", message, code_in_metadata=code_in_metadata)


def forbidden(message: str) -> Refused:
    """403: the credential may not perform this call."""
    return Refused(403, "FORBIDDEN", message)


def unauthenticated() -> Refused:
    """401: credentials are required and none were valid."""
    text = "a valid bearer token or client certificate is required"
    return Refused(401, "UNAUTHENTICATED", text, code_in_metadata=False)


def unknown_session() -> Refused:
    """404 from poll and heartbeat."""
    return Refused(404, "UNKNOWN_SESSION", "unknown or expired worker session; register again")


def unknown_session_at_unregister() -> Refused:
    """404 from unregister, which has words of its own."""
    return Refused(404, "UNKNOWN_SESSION", "unknown worker session")


def unknown_execution(execution_id: str) -> Refused:
    """404 from the execution calls."""
    return Refused(404, "UNKNOWN_EXECUTION", f"unknown execution `{execution_id}`")


def unknown_workflow(name: str) -> Refused:
    """404 from starting an execution."""
    return Refused(404, "UNKNOWN_WORKFLOW", f"no workflow `{name}` is deployed")


def not_leader() -> Refused:
    """503 while the development switch of that name is on."""
    return Refused(503, "NOT_LEADER", "this runtime is not the leader; use another server")


def stopping() -> Refused:
    """503 for a call that was waiting when the runtime was told to stop."""
    return Refused(503, "STOPPING", "the runtime is stopping; try again")


def internal(error: Exception) -> Refused:
    """500: a fault of the runtime itself; its traceback goes to the log."""
    _logger.error("the runtime failed to answer", exc_info=error, extra={"action": "answer_failed"})
    return Refused(500, "INTERNAL", f"the runtime failed: {type(error).__name__}")
