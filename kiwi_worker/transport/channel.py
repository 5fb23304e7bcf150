"""The data plane: one kept connection, spoken over directly. This is the hot path.

Every message costs one or two calls, so a call may cost little more than its two system calls. What
makes it so, and why it is still safe:

- urllib3 opens the connection (see `opening`), and then the socket is ours: a general HTTP client spends
  five to thirty times more on building and parsing than the kernel needs to carry the bytes.
- The header fields are bytes that are made once, and made again only when another `authorization` object
  is given. One `send` carries head and body: each system call gives up the interpreter lock and has to
  win it back, and two small writes would wait for each other on the wire.
- A plain socket blocks in the kernel, with the kernel's time limits (SO_RCVTIMEO). Python's own time-outs
  cost one more system call for every wait. Under TLS they are used, since OpenSSL takes the kernel's limit
  for an error.
- The limit is for one `recv`, and set only when it is longer than the call may take: after one that is over
  too early comes another. The clock is looked at before each further one, so that a server that drips bytes
  cannot stretch a call.
- What cannot wait is done with the interpreter lock held (see `kiwi_worker.held`).
- A server repeats its heads: only the date changes, once a second. A head seen before, byte for byte, was
  parsed by the strict parser and need not be parsed again; everything else goes to the strict `Reader`.
- A kept connection is looked at before it is written to: a server may have closed it, or have sent
  something that would be taken for the next answer. One poll costs half a microsecond, which is why
  there is no exception for connections used a moment ago.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from kiwi_worker.errors import NotSent, ProtocolError
from kiwi_worker.transport.answer import Answer
from kiwi_worker.transport.connection import Connection
from kiwi_worker.transport.failures import (
    Interrupted,
    Unconnected,
    ambiguous,
    call_name,
    check_proxy_answer,
    not_sent,
)
from kiwi_worker.transport.heads import (
    BODILESS,
    RequestHeads,
    check_path,
    method_bytes,
    origin_of_target,
    target_prefix,
)
from kiwi_worker.transport.reader import Malformed, Reader
from kiwi_worker.transport.redirects import MAX_REDIRECTS, is_redirect, redirected_target, too_many_redirects

if TYPE_CHECKING:
    from kiwi_worker.errors import TransportError
    from kiwi_worker.transport.endpoint import Endpoint

DEFAULT_MAX_BODY = 64 * 1024 * 1024

_KNOWN_HEADS = 32
_JOINED_BODY_BYTES = 65536
_FIRST_BODY_BYTES = 8192
_SEND_BYTES = 262144
_RECEIVE_BYTES = 65536
_EARLY_ANSWER_SECONDS = 0.1
_SLACK_SECONDS = 0.02
_NOTHING = memoryview(b"")


class Channel:
    """Calls over one kept connection, by one thread at a time.

    Nothing connects before the first call, and a connection that is lost is opened again by the next.

    Args:
        endpoint: the server.
        user_agent: the `User-Agent` of every request.
        connect_timeout: seconds for opening a connection, for each address that the host name has.
        max_body: the most bytes of a body that are read. Of a longer one, that many are in the error.
    """

    # Slots, so that no listing of its attributes shows the token.
    __slots__ = (
        "_authorization",
        "_connection",
        "_deadline",
        "_endpoint",
        "_heads",
        "_known",
        "_max_body",
        "_prefix",
        "_reader",
        "_sent",
        "_user_agent",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        user_agent: str,
        connect_timeout: float = 5.0,
        max_body: int = DEFAULT_MAX_BODY,
    ) -> None:
        self._endpoint = endpoint
        self._user_agent = user_agent
        self._max_body = max_body
        self._connection = Connection(endpoint, connect_timeout)
        self._authorization: str | None = None
        self._heads = RequestHeads(endpoint, user_agent, None)
        self._prefix = target_prefix(endpoint)
        # Heads seen before, and with them the status and the length of the whole answer.
        self._known: dict[bytes, tuple[int, int]] = {}
        self._deadline = 0.0
        self._sent = False
        self._reader: Reader | None = None

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        authorization: str | None,
        read_timeout: float,
    ) -> Answer:
        """Send one request and read its whole answer.

        Args:
            method: GET, POST, PUT, PATCH or DELETE.
            path: percent-encoded, with its query, without the endpoint's prefix.
            body: JSON, or None.
            authorization: the whole header value. Give the same object again as long as it is the same.
            read_timeout: seconds from sending to the last byte of the answer, connecting not counted.

        Raises:
            NotSent: it failed before any byte of the request was sent.
            Ambiguous: it was sent and no whole answer came, or one that breaks the rules of HTTP.
            ProtocolError: a redirect other than a 307 or 308 to the same origin.
            SettingsError: a certificate file cannot be used.
            ValueError: an argument that would not fit on the wire.
        """
        verb = method_bytes(method)
        check_path(path)
        if authorization is not self._authorization:
            self._heads = RequestHeads(self._endpoint, self._user_agent, authorization)
            self._authorization = authorization
        try:
            answer = self._exchange(verb, self._prefix + path.encode("ascii"), body, read_timeout)
            if is_redirect(answer.status):
                answer = self._follow(method, self._endpoint.prefix + path, body, read_timeout, answer)
            if answer.status == 407:
                check_proxy_answer(method, path, self._endpoint)
        except (OSError, Malformed, Interrupted, Unconnected) as error:
            raise self._failure(error, method, path) from error
        except (ProtocolError, NotSent):
            raise
        except BaseException:
            # What was interrupted half-way must not be read by the next call.
            self._connection.discard()
            raise
        return answer

    def close(self) -> None:
        """Close the connection, if one is open. The channel can be used again."""
        self._connection.discard()

    def interrupt(self) -> None:
        """From another thread: end the running call now, or without one, the next call at once.

        It fails with NotSent or Ambiguous; the calls after it are not concerned. While a connection is
        being opened, the end may take as long as `connect_timeout`.
        """
        self._connection.interrupt()

    def _exchange(self, verb: bytes, target: bytes, body: bytes | None, read_timeout: float) -> Answer:
        self._sent = False
        connection = self._connection
        now = monotonic()
        sock = connection.sock
        reused = sock is not None
        if sock is None or (connection.readable() and connection.is_stale()):
            sock, reused, now = connection.open(), False, monotonic()
        if not connection.limit_seconds <= read_timeout:
            connection.set_limit(read_timeout)
        if connection.interrupted:
            raise Interrupted
        self._deadline = now + read_timeout
        request, rest = self._request(verb, target, body)
        try:
            sent = connection.send(request)
        except OSError:
            # Nothing of it left this machine: a connection that was lost meanwhile is opened once more.
            self._sent = connection.sends_parts
            if self._sent or not reused or connection.interrupted:
                raise
            sock = connection.open()
            connection.set_limit(read_timeout)
            sent = connection.send(request)
        self._sent = True
        if sent < len(request) or rest:
            early = self._send_rest(memoryview(request)[sent:], rest)
            if early is not None:
                return early
        try:
            data = sock.recv(_RECEIVE_BYTES)
        except (BlockingIOError, TimeoutError):
            data = self._receive(_RECEIVE_BYTES)
        end = data.find(b"\r\n\r\n") + 4
        raw = data[:end]
        known = self._known.get(raw)
        if known is not None:
            whole = end + known[1]
            if len(data) < whole:
                data = self._joined(data)
            if len(data) == whole:
                return Answer(known[0], data[end:], raw)
        return self._read(data)

    def _joined(self, data: bytes) -> bytes:
        """The beginning of an answer with what comes next: many servers send head and body one by one."""
        try:
            return data + self._receive(_RECEIVE_BYTES)
        except OSError:
            # The strict reader meets it again, and tells how much of the answer came.
            return data

    def _request(self, verb: bytes, target: bytes, body: bytes | None) -> tuple[bytes, memoryview]:
        """What is sent at once, and the rest of a body that is too large to be joined to its head."""
        heads = self._heads
        if body is None:
            return verb + target + (heads.bare if verb in BODILESS else heads.empty), _NOTHING
        if len(body) <= _JOINED_BODY_BYTES:
            return b"%b%b%b%d\r\n\r\n%b" % (verb, target, heads.json, len(body), body), _NOTHING
        start, rest = body[:_FIRST_BODY_BYTES], memoryview(body)[_FIRST_BODY_BYTES:]
        return b"%b%b%b%d\r\n\r\n%b" % (verb, target, heads.json, len(body), start), rest

    def _send_rest(self, *pieces: memoryview) -> Answer | None:
        """Send what the first write did not take; returns the answer of a server that does not want it."""
        try:
            for piece in pieces:
                while piece:
                    piece = piece[self._send_before_deadline(piece[:_SEND_BYTES]) :]
        except OSError:
            early = self._early_answer()
            if early is None:
                raise
            return early
        return None

    def _early_answer(self) -> Answer | None:
        """The refusal (a 413, say) that a server sent before it stopped reading, if there is one."""
        self._deadline = monotonic() + _EARLY_ANSWER_SECONDS
        try:
            answer = self._read(self._receive(_RECEIVE_BYTES))
        except (OSError, Malformed):
            self._reader = None
            return None
        self._connection.discard()
        return answer if answer.status >= 400 else None

    def _send_before_deadline(self, piece: memoryview) -> int:
        connection = self._connection
        connection.limit_write(self._remaining_seconds())
        assert connection.sock is not None
        return connection.sock.send(piece)

    def _receive(self, size: int) -> bytes:
        connection = self._connection
        assert connection.sock is not None
        while True:
            remaining = self._remaining_seconds()
            if not connection.limit_seconds <= remaining + _SLACK_SECONDS:
                connection.set_limit(remaining)
            try:
                return connection.sock.recv(size)
            except (BlockingIOError, TimeoutError):
                # Only the shorter limit of an earlier call is over; it is of no use here.
                connection.set_limit(self._remaining_seconds())

    def _remaining_seconds(self) -> float:
        remaining = self._deadline - monotonic()
        if remaining <= 0:
            raise TimeoutError
        return remaining

    def _read(self, data: bytes) -> Answer:
        reader = self._reader = Reader(self._receive, self._max_body)
        head = reader.read(data)
        self._reader = None
        body = bytes(reader.body)
        if not head.keeps:
            self._connection.discard()
        elif head.length >= 0:
            self._remember(head.raw, head.status, head.length)
        return Answer(head.status, body, head.raw)

    def _remember(self, raw: bytes, status: int, length: int) -> None:
        # Heads with a field of their own in each answer would fill it for nothing.
        if len(self._known) >= _KNOWN_HEADS:
            self._known.clear()
        self._known[raw] = (status, length)

    def _follow(
        self, method: str, target: str, body: bytes | None, read_timeout: float, answer: Answer
    ) -> Answer:
        first, origin = target, origin_of_target(self._endpoint)
        for _ in range(MAX_REDIRECTS):
            target = redirected_target(self._endpoint, method, target, answer)
            answer = self._exchange(method_bytes(method), origin + target.encode("ascii"), body, read_timeout)
            if not is_redirect(answer.status):
                return answer
        raise too_many_redirects(self._endpoint, method, first, target)

    def _failure(self, error: BaseException, method: str, path: str) -> TransportError:
        """The error to raise; the connection is thrown away."""
        connection, reader = self._connection, self._reader
        connection.discard()
        self._reader = None
        if connection.interrupted:
            connection.interrupted = False
            error = Interrupted()
        name = call_name(method, path, self._endpoint)
        if not self._sent:
            return not_sent(name, self._endpoint, error)
        if reader is None:
            return ambiguous(name, error, None, b"")
        return ambiguous(name, error, reader.status, bytes(reader.body))
