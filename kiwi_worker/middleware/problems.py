"""What the middleware answers instead of a result: one JSON object per mistake."""

from __future__ import annotations

__all__ = ["Problem"]


class Problem(Exception):
    """A request that cannot be served, and the answer that says so.

    Args:
        status: the HTTP status.
        code: a stable word for programs.
        message: what is wrong and what would be right, for people. Never a secret or a token.
        headers: further answer headers.
    """

    def __init__(
        self, status: int, code: str, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers


def bad_request(message: str) -> Problem:
    """400: what was sent is not what the route takes."""
    return Problem(400, "bad_request", message)


def unauthorized(message: str) -> Problem:
    """401: no token, or one that does not hold."""
    return Problem(401, "unauthorized", message, ((b"www-authenticate", b"Bearer"),))


def forbidden(message: str) -> Problem:
    """403: the token is good, and does not allow this."""
    return Problem(403, "forbidden", message)


def not_found(message: str) -> Problem:
    """404: there is no such thing, or none that this token may see."""
    return Problem(404, "not_found", message)


def conflict(message: str) -> Problem:
    """409: somebody else was first."""
    return Problem(409, "conflict", message)
