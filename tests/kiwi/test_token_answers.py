"""What the answers of a token endpoint mean: lifetimes, refresh tokens, claims, nonsense, secrets."""

from __future__ import annotations

import base64
import logging
import time
import traceback
from typing import Any

import pytest
from token_endpoint import (
    KEY,
    SECRET,
    Clock,
    Make,
    TokenEndpoint,
    eventually,
    given,
    jwt_for,
    opaque,
    raw,
)

from kiwi_worker.errors import (
    AuthenticationError,
    KiwiWorkerError,
    ProtocolError,
    SettingsError,
    TokenUnavailable,
)
from kiwi_worker.kiwi.tokens import TokenManager, TokenVerifier


class TestLifetime:
    def used_for(self, manager: TokenManager, endpoint: TokenEndpoint, clock: Clock) -> float:
        """How long the first token is given out, when every attempt to renew it fails."""
        first = manager.authorization()
        endpoint.reply_with(raw(b"", 503))
        begun = clock.now
        while True:
            try:
                assert manager.authorization() is first
            except TokenUnavailable:
                return clock.now - begun
            clock.now += 1

    def test_expires_in_counts_first(self, endpoint: TokenEndpoint, make: Make, clock: Clock) -> None:
        endpoint.reply_with(given(access_token=jwt_for(), expires_in=90))
        assert self.used_for(make(), endpoint, clock) == 90

    def test_a_number_of_seconds_may_be_a_string(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock
    ) -> None:
        endpoint.reply_with(opaque("t", expires_in="90"))
        assert self.used_for(make(), endpoint, clock) == 90

    def test_without_it_exp_minus_the_date_of_the_answer(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock
    ) -> None:
        endpoint.date = 1_000_000
        endpoint.reply_with(given(access_token=jwt_for(iat=5, exp=1_000_070)))
        assert self.used_for(make(), endpoint, clock) == 70

    def test_without_a_date_exp_minus_iat(self, endpoint: TokenEndpoint, make: Make, clock: Clock) -> None:
        endpoint.reply_with(given(access_token=jwt_for(iat=1_000_000, exp=1_000_080), headers={"Date": ""}))
        assert self.used_for(make(), endpoint, clock) == 80

    @pytest.mark.parametrize("wrong_by", [-600, 600, -(10**8)])
    def test_a_wrong_wall_clock_does_no_harm(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock, wrong_by: int
    ) -> None:
        now = int(time.time()) + wrong_by
        endpoint.date = now
        endpoint.reply_with(given(access_token=jwt_for(iat=now, nbf=now, exp=now + 60)))
        manager = make()
        assert self.used_for(manager, endpoint, clock) == 60

    def test_a_token_that_begins_in_the_future_is_used_at_once(
        self, endpoint: TokenEndpoint, make: Make
    ) -> None:
        soon = int(time.time()) + 30
        token = jwt_for(iat=soon, nbf=soon)
        endpoint.reply_with(given(access_token=token))
        assert make().authorization() == f"Bearer {token}"
        assert make(verify=TokenVerifier(key=KEY)).authorization() == f"Bearer {token}"

    def test_a_short_lived_token_is_renewed_at_half_of_its_lifetime(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock
    ) -> None:
        endpoint.reply_with(opaque("one", expires_in=60), opaque("two", expires_in=60))
        manager = make()
        manager.authorization()
        clock.now += 29
        manager.authorization()
        assert len(endpoint.forms) == 1
        clock.now += 2
        manager.authorization()
        eventually(lambda: len(endpoint.forms) == 2)

    def test_sixty_second_tokens_over_five_minutes_are_never_used_after_their_end(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock
    ) -> None:
        given_out: dict[str, float] = {}

        def reply(_: dict[str, str]) -> Any:
            name = f"token-{len(given_out)}"
            given_out[f"Bearer {name}"] = clock.now
            return opaque(name, expires_in=60)

        endpoint.reply_with(reply)
        manager = make()
        for _ in range(300):
            clock.now += 1
            assert clock.now - given_out[manager.authorization()] < 60
        assert 5 <= len(given_out) <= 11

    def test_the_time_of_a_token_counts_from_when_it_was_asked_for(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock
    ) -> None:
        def reply(_: dict[str, str]) -> Any:
            clock.now += 40  # it is on its way for so long
            return opaque("slow", expires_in=60)

        endpoint.reply_with(reply)
        manager = make(margin=10)
        manager.authorization()
        clock.now += 9
        manager.authorization()
        assert len(endpoint.forms) == 1
        clock.now += 1
        manager.authorization()
        eventually(lambda: len(endpoint.forms) == 2)

    def test_an_opaque_token_without_expires_in_is_used_until_it_is_refused(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock
    ) -> None:
        endpoint.reply_with(opaque("one"), opaque("two"))
        manager = make()
        manager.authorization()
        clock.now += 10**9
        assert manager.authorization() == "Bearer one"

    @pytest.mark.parametrize("members", [{"expires_in": 0}, {"expires_in": -5}])
    def test_a_token_that_is_over_already_is_an_error_and_no_loop(
        self, endpoint: TokenEndpoint, make: Make, members: dict[str, Any]
    ) -> None:
        endpoint.reply_with(opaque("t", **members))
        manager = make()
        for _ in range(5):
            with pytest.raises(ProtocolError, match=r"is over already"):
                manager.authorization()
        assert len(endpoint.forms) == 1


class TestRefreshToken:
    def test_the_refresh_token_grant(self, endpoint: TokenEndpoint, make: Make, clock: Clock) -> None:
        token = jwt_for(service_id="from-the-token")
        endpoint.reply_with(
            given(access_token=token, expires_in=100, refresh_token="r/1+"),
            opaque("two", expires_in=100, refresh_token="r2"),
            opaque("three", expires_in=100),
        )
        manager = make()
        for _ in range(3):
            manager.authorization()
            clock.now += 101
        assert endpoint.forms[1] == {
            "grant_type": "refresh_token",
            "refresh_token": "r/1+",
            "service_id": "from-the-token",
            "worker_id": "worker-1",
        }
        assert endpoint.forms[2]["refresh_token"] == "r2"

    def test_it_is_kept_when_the_answer_brings_no_new_one(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock
    ) -> None:
        endpoint.reply_with(opaque("one", expires_in=100, refresh_token="r1"), opaque("more", expires_in=100))
        manager = make()
        for _ in range(3):
            manager.authorization()
            clock.now += 101
        assert [form.get("refresh_token") for form in endpoint.forms] == [None, "r1", "r1"]

    def test_a_dead_one_is_not_tried_again(self, endpoint: TokenEndpoint, make: Make, clock: Clock) -> None:
        endpoint.reply_with(opaque("one", expires_in=100, refresh_token="r1"), raw(b"", 401))
        manager = make()
        manager.authorization()
        clock.now += 101
        for _ in range(3):
            with pytest.raises(AuthenticationError):
                manager.authorization()
            clock.now += 61
        assert [form["grant_type"] for form in endpoint.forms[1:]] == [
            "refresh_token",
            *["client_credentials"] * 3,
        ]

    def test_it_is_kept_over_an_outage(self, endpoint: TokenEndpoint, make: Make, clock: Clock) -> None:
        endpoint.reply_with(
            opaque("one", expires_in=100, refresh_token="r1"), raw(b"", 503), opaque("two", expires_in=100)
        )
        manager = make()
        manager.authorization()
        clock.now += 101
        with pytest.raises(TokenUnavailable):
            manager.authorization()
        clock.now += 61
        assert manager.authorization() == "Bearer two"
        assert [form["grant_type"] for form in endpoint.forms[1:]] == ["refresh_token"] * 2

    def test_the_secret_is_read_again_before_each_request_that_needs_it(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock
    ) -> None:
        secrets = iter(["first", "second"])
        endpoint.reply_with(opaque("t", expires_in=100))
        manager = make(secret=lambda: next(secrets))
        manager.authorization()
        clock.now += 101
        manager.authorization()
        assert [form["auth_secret"] for form in endpoint.forms] == ["first", "second"]


class TestAnswers:
    @pytest.mark.parametrize(
        ("body", "said"),
        [
            (b"<html><body>Login</body></html>", "31 bytes that are no JSON"),
            (b"", "0 bytes that are no JSON"),
            (b"[]", "JSON of another kind"),
            (b"null", "JSON of another kind"),
            (b"7", "JSON of another kind"),
            (b"{}", "without access_token"),
            (b'{"access_token": null}', "without access_token"),
            (b'{"access_token": 7}', "no string but int"),
            (b'{"access_token": ""}', "empty or holds characters"),
            (b'""', "empty or holds characters"),
            (b'{"access_token": "a\\r\\nX-Injected: 1"}', "empty or holds characters"),
            (b'{"access_token": "t", "expires_in": "soon"}', "expires_in that is no number"),
            (b'{"access_token": "t", "expires_in": true}', "expires_in that is no number"),
            (b'{"access_token": "t", "expires_in": {}}', "expires_in that is no number"),
            (b'{"access_token": "t", "expires_in": "nan"}', "expires_in that is no number"),
            (b"[" * 100_000, "100000 bytes that are no JSON"),
            (b"\xff\xfe", "2 bytes that are no JSON"),
        ],
    )
    def test_a_malformed_answer_is_an_error_that_names_what_was_expected(
        self, endpoint: TokenEndpoint, make: Make, body: bytes, said: str
    ) -> None:
        endpoint.reply_with(raw(body))
        with pytest.raises(ProtocolError, match="JSON object that holds access_token") as caught:
            make().authorization()
        assert said in str(caught.value)

    def test_a_byte_order_mark_is_passed_over(self, endpoint: TokenEndpoint, make: Make) -> None:
        endpoint.reply_with(raw(b'\xef\xbb\xbf{"access_token": "t"}'))
        assert make().authorization() == "Bearer t"

    def test_404_asks_whether_the_address_is_right(self, endpoint: TokenEndpoint, make: Make) -> None:
        endpoint.reply_with(raw(b"", 404))
        with pytest.raises(ProtocolError, match=r"status 404.*check middleware_url"):
            make().authorization()

    def test_the_service_id_of_the_token_wins_with_one_warning(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        endpoint.reply_with(lambda _: given(access_token=jwt_for(service_id="other"), expires_in=100))
        manager = make()
        assert manager.service_id == "svc"
        manager.authorization()
        clock.now += 101
        manager.authorization()
        assert manager.service_id == "other"
        assert [record.action for record in caplog.records] == ["service_id_differs"]  # type: ignore[attr-defined]
        assert "'other'" in caplog.text
        assert "'svc'" in caplog.text

    def test_an_opaque_token_works_with_the_configured_service_id(
        self, endpoint: TokenEndpoint, make: Make
    ) -> None:
        endpoint.reply_with(opaque("not.a.jwt"))
        manager = make()
        assert manager.authorization() == "Bearer not.a.jwt"
        assert manager.service_id == "svc"

    def test_a_service_id_that_nobody_tells_is_an_error_that_names_the_setting(
        self, endpoint: TokenEndpoint, make: Make
    ) -> None:
        endpoint.reply_with(opaque("t"))
        manager = make(service_id=None)
        for _ in range(2):
            with pytest.raises(SettingsError, match="service_id: the token does not tell it"):
                manager.authorization()
        assert "service_id" not in endpoint.forms[0]

    def test_a_secret_file_that_is_gone_is_an_error_that_passes_when_it_is_back(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock, tmp_path: Any
    ) -> None:
        endpoint.reply_with(opaque("t"))
        file = tmp_path / "secret"
        manager = make(secret=lambda: file.read_text(encoding="utf-8"))
        with pytest.raises(SettingsError, match=r"auth_secret_file: .*FileNotFoundError"):
            manager.authorization()
        file.write_bytes(b"\xff\xfe not text")
        clock.now += 2
        with pytest.raises(SettingsError, match=r"auth_secret_file: .*UnicodeDecodeError"):
            manager.authorization()
        file.write_text(SECRET, encoding="utf-8")
        clock.now += 61
        assert manager.authorization() == "Bearer t"
        assert endpoint.forms[0]["auth_secret"] == SECRET


class TestSecrets:
    def test_neither_secret_nor_token_is_in_any_log_repr_or_traceback(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        marked, token, refresh = "marked-secret+/=", jwt_for("worker-2"), "marked-refresh-token"
        seen: list[str] = []
        replies = [
            opaque("marked-token", expires_in=100, refresh_token=refresh),
            raw(b"", 401),
            raw(b"marked-token <html>"),
            raw(b"marked-token", 500),
            raw(b"marked-token", 403),
            given(access_token=token),
            given(access_token="marked-token\u00e9"),
        ]
        endpoint.reply_with(*replies)
        manager = make(secret=lambda: marked)
        for _ in replies:
            try:
                manager.refused(manager.authorization())
            except KiwiWorkerError as error:
                seen += ["".join(traceback.format_exception(error)), repr(error), repr(vars(error))]
            clock.now += 301
            grants = vars(manager)["_grants"]
            seen += [
                repr(manager),
                repr(vars(manager)),
                repr(grants),
                repr(vars(grants)),
                repr(manager.last_error),
            ]
        seen += [repr(record.__dict__) + record.getMessage() for record in caplog.records]
        everything = "\n".join(seen)
        assert len(endpoint.forms) >= len(replies)
        for text in (marked, "marked-token", refresh, token):
            assert text not in everything
            assert base64.b64encode(text.encode()).decode() not in everything
