"""Whatever the token endpoint and the registration are answered with, only what is declared is raised."""

from __future__ import annotations

import base64
import contextlib
import math
from typing import Any, cast

from any_answers import bodies
from hypothesis import given, settings
from hypothesis import strategies as st

from kiwi_worker.errors import AuthenticationError, ProtocolError, TokenUnavailable
from kiwi_worker.kiwi.grants import Grants
from kiwi_worker.kiwi.registration import register
from kiwi_worker.transport import Answer

HEAD = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=")
DATES = st.sampled_from(["", "Thu, 01 Jan 1970 00:00:00 GMT", "Mon, 99 Foo 99999 99:99:99", "0", "\xff"])


class Answers:
    """In place of whoever carries a call."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def call(self, *_: Any, **__: Any) -> Answer:
        return self.answer


def jwt_of(claims: bytes) -> bytes:
    content = base64.urlsafe_b64encode(claims).rstrip(b"=")
    return b'{"access_token":"%b.%b.c2lnbmF0dXJl"}' % (HEAD, content)


@settings(deadline=None, max_examples=300)
@given(
    status=st.sampled_from([200, 200, 200, 204, 302, 400, 404, 503]),
    body=bodies("access_token", "token", "expires_in", "refresh_token")
    | bodies("sub", "role", "service_id", "iat", "exp", "nbf").map(jwt_of),
    date=DATES,
)
def test_any_answer_is_a_token_that_can_be_sent_or_an_error_that_is_declared(
    status: int, body: bytes, date: str
) -> None:
    answer = Answer(status, body, f"HTTP/1.1 {status} X\r\nDate: {date}".encode("latin-1"))
    grants = Grants(cast(Any, Answers(answer)), service_id="svc", worker_id="worker-1", secret=lambda: "s")
    with contextlib.suppress(AuthenticationError, ProtocolError, TokenUnavailable):
        token = grants.client_credentials()
        assert token.authorization.isascii()
        assert token.authorization.isprintable()
        assert token.lifetime_seconds > 0
        assert not math.isnan(token.lifetime_seconds)


@settings(deadline=None, max_examples=200)
@given(body=bodies("heartbeat_delay", "x"))
def test_any_answer_to_a_registration_is_application_settings_or_no_json(body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        found = register(cast(Any, Answers(Answer(200, body))), b"{}")
        assert all(isinstance(value, str) for value in found.values())
