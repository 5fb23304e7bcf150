"""Calls to the middleware that carry the token, whichever transport they take.

A 401 on any call drops the token, fetches one once for everybody, and repeats the call once (protocol page,
"Authentication").
"""

from __future__ import annotations

from collections.abc import Callable

from kiwi_worker.errors import TokenUnavailable
from kiwi_worker.kiwi.tokens import TokenManager
from kiwi_worker.transport import Answer, Channel, Endpoint, SeldomClient

__all__ = ["Lane", "Session"]

Send = Callable[[str, str, "bytes | None", str, float], Answer]


class Session:
    """What all calls of one worker share.

    Args:
        endpoint: the middleware.
        tokens: the token manager.
        seldom: the client for calls that happen seldom.
        user_agent: the `User-Agent` of every request.
        max_body: the most bytes of an answer that are read.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        tokens: TokenManager,
        seldom: SeldomClient,
        *,
        user_agent: str,
        max_body: int,
    ) -> None:
        self.endpoint = endpoint
        self.tokens = tokens
        self._seldom = seldom
        self._user_agent = user_agent
        self._max_body = max_body
        self.on_success: Callable[[], None] = lambda: None
        """Called after each call that the middleware answered with anything but a server error."""

    def lane(self) -> Lane:
        """A kept connection for one thread."""
        return Lane(self, Channel(self.endpoint, user_agent=self._user_agent, max_body=self._max_body))

    def call(
        self, method: str, path: str, body: bytes | None = None, *, read_timeout: float = 15.0
    ) -> Answer:
        """A call that happens seldom, from any thread; raises like `Lane.call`."""
        return self.send(self._send_seldom, method, path, body, read_timeout)

    def _send_seldom(
        self, method: str, path: str, body: bytes | None, authorization: str, read_timeout: float
    ) -> Answer:
        return self._seldom.call(
            method, path, json=body, authorization=authorization, read_timeout=read_timeout
        )

    def send(self, send: Send, method: str, path: str, body: bytes | None, read_timeout: float) -> Answer:
        """Send with the current token, and once more with a new one when that is refused."""
        tokens = self.tokens
        authorization = tokens.authorization()
        answer = send(method, path, body, authorization, read_timeout)
        if answer.status == 401:
            tokens.refused(authorization)
            authorization = tokens.authorization()
            answer = send(method, path, body, authorization, read_timeout)
            if answer.status == 401:
                tokens.refused(authorization)
                raise TokenUnavailable(
                    f"{method} {path} was answered with 401 twice, the second time with a new token"
                )
        if answer.status < 500:
            self.on_success()
        return answer


class Lane:
    """A kept connection of one thread, with the token of all."""

    def __init__(self, session: Session, channel: Channel) -> None:
        self._session = session
        self._channel = channel

    def call(self, method: str, path: str, body: bytes | None = None, *, read_timeout: float) -> Answer:
        """Send one request and read its whole answer.

        Raises:
            NotSent: it failed before any byte of the request was sent.
            Ambiguous: it was sent and no whole answer came.
            AuthenticationError, TokenUnavailable: there is no token, or a new one was refused, too.
            ProtocolError: a redirect to elsewhere, or a token answer that is none.
        """
        return self._session.send(self._send, method, path, body, read_timeout)

    def _send(
        self, method: str, path: str, body: bytes | None, authorization: str, read_timeout: float
    ) -> Answer:
        return self._channel.call(method, path, body, authorization=authorization, read_timeout=read_timeout)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def interrupt(self) -> None:
        """End a call that another thread waits in."""
        self._channel.interrupt()
