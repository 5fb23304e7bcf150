"""The worker's token: fetched when first needed, renewed before it is over, never used after.

Protocol page, "Authentication". All threads of a worker share one manager, and one request at a time is made
for all of them.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable

from kiwi_worker.errors import AuthenticationError, KiwiWorkerError, SettingsError, TokenUnavailable
from kiwi_worker.kiwi.claims import Claims, TokenVerifier
from kiwi_worker.kiwi.grants import Grants, Token
from kiwi_worker.transport import Backoff, SeldomClient

__all__ = ["TokenManager", "TokenVerifier"]

_log = logging.getLogger("kiwi_worker.kiwi")

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_LONGEST_PAUSE_AFTER_REFUSALS_SECONDS = 10.0
_SHORT_LIFE_SECONDS = 10.0
_REFUSALS_BEFORE_A_PAUSE = 2
_GIVEN_OUT_AND_REFUSED = (
    "the middleware refuses the tokens that it gives out: check its clock, and that no other worker uses "
    "this worker_id"
)


class _Held:
    """The token in use and its times on the monotonic clock."""

    __slots__ = ("asked_at", "authorization", "expires_at", "refresh_at", "token")

    def __init__(self, token: Token | None, asked_at: float, margin: float) -> None:
        lifetime = 0.0 if token is None else token.lifetime_seconds
        self.token = token
        self.authorization = "" if token is None else token.authorization
        self.asked_at = asked_at
        self.expires_at = asked_at + lifetime
        self.refresh_at = asked_at + (lifetime - min(margin, lifetime / 2))


class _Flight:
    """One request for a token, and what it brought to everyone who waits for it."""

    __slots__ = ("_authorization", "_error", "_landed")

    def __init__(self) -> None:
        self._landed = threading.Event()
        self._authorization = ""
        self._error: KiwiWorkerError | None = None

    def bring(self, authorization: str = "", error: KiwiWorkerError | None = None) -> None:
        self._authorization, self._error = authorization, error
        self._landed.set()

    def result(self) -> str:
        """What it brought, once it has landed. Each caller raises an error of its own."""
        self._landed.wait()
        if self._error is not None:
            raise _twin(self._error)
        return self._authorization


class TokenManager:
    """Gives every thread of a worker the current token.

    A token is renewed `margin` seconds before it is over, or at half of its lifetime when that is under twice
    the margin; the renewal goes on in a thread of its own, so that nobody who holds a valid token waits. Only
    without a valid token do callers wait, for one request that is made for all of them. After a failure there
    is a pause that grows up to a minute, in which callers get the same error at once and nothing is sent.

    Args:
        client: how to reach the middleware.
        service_id: the configured one; None when the token is to tell it.
        worker_id: this worker.
        secret: gives the secret; called before each request that needs it, so that a file is read again.
        margin: seconds.
        verify: reads and verifies a token; None = the claims are read and believed.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        client: SeldomClient,
        *,
        service_id: str | None,
        worker_id: str,
        secret: Callable[[], str],
        margin: float = 300.0,
        verify: Callable[[str], Claims] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grants = Grants(client, service_id=service_id, worker_id=worker_id, secret=secret, read=verify)
        self._service_id = service_id
        self._worker_id = worker_id
        self._margin = margin
        self._clock = clock
        self._lock = threading.Lock()
        self._held = self._nothing()
        self._renewable: Token | None = None
        self._flight: _Flight | None = None
        self._closed = False
        self._failure: KiwiWorkerError | None = None
        self._retry_at = -math.inf
        self._pauses = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, uniform=_upper_half)
        self._refusals = 0
        self._pauses_after_refusals = Backoff(
            _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_AFTER_REFUSALS_SECONDS, uniform=_upper_half
        )

    # -- what callers use

    def authorization(self) -> str:
        """The value of the `Authorization` header: the same object until the token changes.

        Raises:
            AuthenticationError: the credentials were refused, or the token is not this worker's. Fatal at the
                start; while running it says when the next attempt will be made.
            TokenUnavailable: there is no token for a reason that passes; the call it was for was not made.
            ProtocolError: the middleware's answer is not what the protocol page says.
            SettingsError: the secret cannot be read, or service_id is told by nobody.
        """
        held = self._held
        if self._clock() < held.refresh_at:
            return held.authorization
        return self._renewed()

    def refused(self, authorization: str) -> None:
        """Tell that a call with this header was answered with 401.

        When it is still the current one it is dropped, and the next `authorization` fetches, once for all. A
        middleware that refuses even what it has just given out is not asked again and again: from the second
        refusal in a row there is a pause before the next request.
        """
        with self._lock:
            held = self._held
            if held.token is None or held.authorization != authorization:
                return
            self._held = self._nothing()
            self._renewable = None
            in_a_row = self._count_refusal(held)
        level = logging.ERROR if in_a_row == _REFUSALS_BEFORE_A_PAUSE else logging.INFO
        _log.log(level, "the token was refused", extra=self._extra("token_refused"))

    def close(self) -> None:
        """Let nobody wait any longer and fetch no further token; a valid one may still be used."""
        with self._lock:
            self._closed = True
            flight, self._flight = self._flight, None
        if flight is not None:
            flight.bring(error=_closed())

    @property
    def service_id(self) -> str | None:
        """The service of the current token, else the configured one."""
        token = self._held.token
        return self._service_id if token is None else token.service_id

    @property
    def last_error(self) -> KiwiWorkerError | None:
        """Why there is no new token; None when the last attempt went well or none was made."""
        return self._failure

    @property
    def healthy(self) -> bool:
        """False while credentials are refused or missing, and while fetching fails and no token is valid."""
        failure = self._failure
        if failure is None:
            return True
        is_fatal = isinstance(failure, (AuthenticationError, SettingsError))
        return not is_fatal and self._clock() < self._held.expires_at

    # -- one request for all

    def _renewed(self) -> str:
        with self._lock:
            now = self._clock()
            held = self._held
            if now < held.refresh_at:
                return held.authorization
            is_valid = now < held.expires_at
            flight, is_ours = self._flight_at(now)
            error = None if flight else self._standing_error(now)
        if is_valid:
            if flight is not None and is_ours:
                self._fly_aside(flight)
            return held.authorization
        if flight is None:
            raise error or _closed()
        if is_ours:
            self._fly(flight)
        return flight.result()

    def _flight_at(self, now: float) -> tuple[_Flight | None, bool]:
        """The request that is under way or may be made now, and whether the caller is to make it."""
        if self._flight is not None:
            return self._flight, False
        if self._closed or (self._failure is not None and now < self._retry_at):
            return None, False
        self._flight = _Flight()
        return self._flight, True

    def _fly_aside(self, flight: _Flight) -> None:
        thread = threading.Thread(target=self._fly, args=(flight,), name="kiwi-token-refresh", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can be had: the token that is still valid is used until one can
            self._land_without(flight, TokenUnavailable("no thread could be started to fetch a token"))

    def _fly(self, flight: _Flight) -> None:
        # A token may have been given out at any time since it was asked for.
        asked_at = self._clock()
        try:
            token = self._fetched()
        except KiwiWorkerError as error:
            self._land_without(flight, error)
        except BaseException as error:
            broken_off = TokenUnavailable(f"fetching a token was broken off ({type(error).__name__})")
            self._land_without(flight, broken_off)
            raise
        else:
            self._land_with(flight, token, asked_at)

    def _fetched(self) -> Token:
        """By refresh token where there is one, by the service's secret otherwise.

        A refresh token that did not bring a token is not tried again, unless the reason was one that passes.
        """
        current, self._renewable = self._renewable, None
        if current is None:
            return self._grants.client_credentials()
        try:
            refreshed = self._grants.refresh(current)
        except TokenUnavailable:
            self._renewable = current
            raise
        return refreshed or self._grants.client_credentials()

    def _land_with(self, flight: _Flight, token: Token, asked_at: float) -> None:
        with self._lock:
            if flight is not self._flight:
                return
            self._flight = None
            self._held = _Held(token, asked_at, self._margin)
            self._renewable = token
            failure, self._failure = self._failure, None
            self._pauses.reset()
        self._log_success(token, failure)
        flight.bring(token.authorization)

    def _land_without(self, flight: _Flight, error: KiwiWorkerError) -> None:
        with self._lock:
            if flight is not self._flight:
                return
            self._flight = None
            before = self._failure
            self._fail(error, self._pauses.next())
            error = self._standing_error(self._clock()) or error
        self._log_failure(error, before)
        flight.bring(error=error)

    # -- failures

    def _fail(self, error: KiwiWorkerError, pause_seconds: float) -> None:
        self._failure = _twin(error)
        self._retry_at = self._clock() + max(pause_seconds, getattr(error, "retry_seconds", 0.0))

    def _standing_error(self, now: float) -> KiwiWorkerError | None:
        """An error of the caller's own, that says how long the pause will last."""
        if self._failure is None:
            return None
        error = _twin(self._failure)
        if isinstance(error, (AuthenticationError, TokenUnavailable)):
            error.retry_seconds = max(0.0, self._retry_at - now)
        return error

    def _count_refusal(self, held: _Held) -> int:
        lived_seconds = self._clock() - held.asked_at
        if lived_seconds >= _SHORT_LIFE_SECONDS:
            self._refusals = 0
            self._pauses_after_refusals.reset()
        self._refusals += 1
        if self._refusals >= _REFUSALS_BEFORE_A_PAUSE:
            error = AuthenticationError(_GIVEN_OUT_AND_REFUSED, status=401)
            self._fail(error, self._pauses_after_refusals.next())
        return self._refusals

    # -- words

    def _log_failure(self, error: KiwiWorkerError, before: KiwiWorkerError | None) -> None:
        """Once for each kind of failure; the same again is for those who look closely."""
        is_news = before is None or type(before) is not type(error)
        level = logging.DEBUG if not is_news else self._level(error)
        _log.log(level, "%s", error, extra=self._extra("token_fetch_failed"))

    def _level(self, error: KiwiWorkerError) -> int:
        return logging.WARNING if isinstance(error, TokenUnavailable) else logging.ERROR

    def _log_success(self, token: Token, failure: KiwiWorkerError | None) -> None:
        if failure is not None:
            _log.info("a token was fetched again", extra=self._extra("token_recovered"))
        seconds = token.lifetime_seconds
        _log.debug("got a token for %g s", seconds, extra=self._extra("token_fetched"))

    def _extra(self, action: str) -> dict[str, str]:
        return {"action": action, "worker_id": self._worker_id}

    def _nothing(self) -> _Held:
        return _Held(None, self._clock(), 0.0)


def _upper_half(_: float, ceiling: float) -> float:
    """Half of each wait is certain, so that the number of requests a minute is bounded."""
    return random.uniform(ceiling / 2, ceiling)


def _twin(error: KiwiWorkerError) -> KiwiWorkerError:
    """The same error without its past: an object raised again and again has an ever longer traceback."""
    twin = type(error).__new__(type(error))
    twin.args = error.args
    twin.__dict__.update(error.__dict__)
    return twin


def _closed() -> TokenUnavailable:
    return TokenUnavailable("no token is fetched any more: the worker is stopping")
