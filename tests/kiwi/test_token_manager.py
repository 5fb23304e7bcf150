"""The token manager, against a real token endpoint: one request for all, outages, refusals."""

from __future__ import annotations

import logging
import threading

import pytest
from token_endpoint import (
    LIMIT_SECONDS,
    SECRET,
    Clock,
    Make,
    TokenEndpoint,
    eventually,
    given,
    in_threads,
    jwt_for,
    opaque,
    raw,
)

from kiwi_worker.errors import (
    AuthenticationError,
    NotSent,
    TokenUnavailable,
)
from kiwi_worker.kiwi.tokens import TokenManager, TokenVerifier
from kiwi_worker.testing import MisbehavingServer
from kiwi_worker.transport import Endpoint, SeldomClient


class TestSentencesOfThePage:
    def test_the_token_is_asked_for_anonymously_and_form_encoded(
        self, endpoint: TokenEndpoint, make: Make
    ) -> None:
        endpoint.reply_with(given(access_token=jwt_for()))
        make().authorization()
        assert endpoint.paths == ["/worker/auth_token"]
        assert endpoint.authorizations == [None]
        assert endpoint.content_types == ["application/x-www-form-urlencoded"]
        assert endpoint.forms == [
            {
                "grant_type": "client_credentials",
                "service_id": "svc",
                "auth_secret": SECRET,
                "worker_id": "worker-1",
            }
        ]

    def test_the_secret_reaches_the_server_unchanged_encoded_once(
        self, endpoint: TokenEndpoint, make: Make
    ) -> None:
        endpoint.reply_with(opaque("t"))
        make().authorization()
        assert endpoint.forms[0]["auth_secret"] == "a+b/c=%41&é "
        assert b"auth_secret=a%2Bb%2Fc%3D%2541%26%C3%A9+&" in endpoint.bodies[0] + b"&"

    @pytest.mark.parametrize("name", ["access_token", "token"])
    def test_the_response_is_a_token_response(self, endpoint: TokenEndpoint, make: Make, name: str) -> None:
        token = jwt_for()
        endpoint.reply_with(given(**{name: token}))
        assert make().authorization() == f"Bearer {token}"

    def test_a_bare_json_string_is_a_token_too(self, endpoint: TokenEndpoint, make: Make) -> None:
        endpoint.reply_with(raw(b'"opaque-token"'))
        assert make().authorization() == "Bearer opaque-token"

    def test_the_jwt_carries_sub_role_and_service_id(self, endpoint: TokenEndpoint, make: Make) -> None:
        endpoint.reply_with(given(access_token=jwt_for(service_id="from-the-token")))
        manager = make(service_id=None)
        manager.authorization()
        assert manager.service_id == "from-the-token"

    def test_a_sub_that_is_another_worker_stops_with_an_error_that_says_so(
        self, endpoint: TokenEndpoint, make: Make
    ) -> None:
        endpoint.reply_with(given(access_token=jwt_for("worker-2")))
        with pytest.raises(AuthenticationError, match="sub is 'worker-2', not this worker's id 'worker-1'"):
            make().authorization()

    @pytest.mark.parametrize("role", ["client", "", ["worker"], 7])
    def test_a_role_other_than_worker_stops_with_an_error_that_says_so(
        self, endpoint: TokenEndpoint, make: Make, role: object
    ) -> None:
        endpoint.reply_with(given(access_token=jwt_for(role=role)))
        with pytest.raises(AuthenticationError, match=r"role is .*not 'worker'"):
            make().authorization()

    def test_a_401_means_a_bad_secret(self, endpoint: TokenEndpoint, make: Make) -> None:
        endpoint.reply_with(raw(b"", 401))
        with pytest.raises(AuthenticationError, match="check service_id and auth_secret") as caught:
            make().authorization()
        assert (caught.value.status, caught.value.exit_status) == (401, 77)

    def test_a_refusal_without_a_service_id_says_that_it_is_missing(
        self, endpoint: TokenEndpoint, make: Make
    ) -> None:
        endpoint.reply_with(raw(b"", 400))
        with pytest.raises(AuthenticationError, match="without a service_id: set it") as caught:
            make(service_id=None).authorization()
        assert "None" not in str(caught.value)

    @pytest.mark.parametrize("status", [400, 401])
    def test_a_401_means_a_dead_refresh_token_and_the_secret_is_used_once(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock, status: int
    ) -> None:
        endpoint.reply_with(
            opaque("one", expires_in=100, refresh_token="r1"), raw(b"", status), opaque("two")
        )
        manager = make()
        manager.authorization()
        clock.now += 101
        assert manager.authorization() == "Bearer two"
        assert [form["grant_type"] for form in endpoint.forms] == [
            "client_credentials",
            "refresh_token",
            "client_credentials",
        ]

    def test_it_refreshes_about_five_minutes_before_expiry(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock
    ) -> None:
        endpoint.reply_with(opaque("one", expires_in=3600), opaque("two", expires_in=3600))
        manager = make()
        manager.authorization()
        clock.now += 3299
        assert manager.authorization() == "Bearer one"
        assert len(endpoint.forms) == 1
        clock.now += 2
        assert manager.authorization() == "Bearer one"
        eventually(lambda: manager.authorization() == "Bearer two")
        assert len(endpoint.forms) == 2


class TestSingleFlight:
    def test_twenty_threads_at_the_refresh_moment_one_post_and_nobody_waits(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock
    ) -> None:
        endpoint.reply_with(opaque("one", expires_in=601), opaque("two", expires_in=601))
        manager = make()
        manager.authorization()
        clock.now += 302
        endpoint.open.clear()
        # The endpoint answers nobody by now: a thread that waited for it would not come back.
        assert in_threads(20, manager.authorization) == ["Bearer one"] * 20
        endpoint.open.set()
        eventually(lambda: manager.authorization() == "Bearer two")
        assert len(endpoint.forms) == 2

    def test_twenty_threads_without_a_token_one_post(self, endpoint: TokenEndpoint, make: Make) -> None:
        endpoint.reply_with(opaque("one", expires_in=601))
        results = in_threads(20, make().authorization)
        assert results == ["Bearer one"] * 20
        assert len({id(result) for result in results}) == 1
        assert len(endpoint.forms) == 1

    def test_at_expiry_all_wait_for_the_one_that_is_under_way(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock
    ) -> None:
        endpoint.reply_with(opaque("one", expires_in=601), opaque("two", expires_in=601))
        manager = make()
        manager.authorization()
        endpoint.open.clear()
        clock.now += 302
        assert manager.authorization() == "Bearer one"
        clock.now += 300
        results: list[object] = []
        waiting = threading.Thread(target=lambda: results.extend(in_threads(20, manager.authorization)))
        waiting.start()
        eventually(lambda: len(endpoint.forms) == 2)
        assert not results
        endpoint.open.set()
        waiting.join(LIMIT_SECONDS)
        assert results == ["Bearer two"] * 20
        assert len(endpoint.forms) == 2

    def test_a_failure_reaches_everyone_who_waits_as_an_error_of_their_own(
        self, endpoint: TokenEndpoint, make: Make
    ) -> None:
        endpoint.reply_with(raw(b"", 401))
        results = in_threads(20, make().authorization)
        assert {type(result) for result in results} == {AuthenticationError}
        assert len({id(result) for result in results}) == 20
        assert len(endpoint.forms) == 1

    def test_the_same_object_is_given_until_the_token_changes(
        self, endpoint: TokenEndpoint, make: Make
    ) -> None:
        endpoint.reply_with(given(access_token=jwt_for()))
        manager = make()
        assert manager.authorization() is manager.authorization()

    def test_an_interrupted_caller_leaves_nobody_waiting(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock
    ) -> None:
        interrupted = iter([True])

        def secret() -> str:
            if next(interrupted, False):
                raise KeyboardInterrupt
            return SECRET

        endpoint.reply_with(opaque("one"))
        manager = make(secret=secret)
        with pytest.raises(KeyboardInterrupt):
            manager.authorization()
        clock.now += 60
        assert manager.authorization() == "Bearer one"

    def test_close_lets_nobody_wait(self, endpoint: TokenEndpoint, make: Make) -> None:
        endpoint.reply_with(opaque("late"))
        endpoint.open.clear()
        manager = make()
        fetching = threading.Thread(target=in_threads, args=(1, manager.authorization))
        fetching.start()
        eventually(lambda: endpoint.forms)
        results: list[object] = []
        waiting = threading.Thread(target=lambda: results.extend(in_threads(3, manager.authorization)))
        waiting.start()
        manager.close()
        waiting.join(LIMIT_SECONDS)
        assert [type(result) for result in results] == [TokenUnavailable] * 3
        endpoint.open.set()
        fetching.join(LIMIT_SECONDS)
        with pytest.raises(TokenUnavailable, match="stopping"):
            manager.authorization()

    def test_without_a_thread_the_valid_token_is_used_on(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_more(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        endpoint.reply_with(opaque("one", expires_in=100), opaque("two", expires_in=100))
        manager = make()
        manager.authorization()
        clock.now += 51
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_more)
            assert manager.authorization() == "Bearer one"
        clock.now += 40
        eventually(lambda: manager.authorization() == "Bearer two")


class TestRefused:
    def test_after_a_401_on_a_call_the_next_token_is_fetched_once_for_all(
        self, endpoint: TokenEndpoint, make: Make
    ) -> None:
        endpoint.reply_with(opaque("one"), opaque("two"))
        manager = make()
        first = manager.authorization()
        in_threads(20, lambda: manager.refused(first))
        assert in_threads(20, manager.authorization) == ["Bearer two"] * 20
        assert len(endpoint.forms) == 2

    def test_a_401_for_an_older_token_drops_nothing(self, endpoint: TokenEndpoint, make: Make) -> None:
        endpoint.reply_with(opaque("one"), opaque("two"), opaque("three"))
        manager = make()
        first = manager.authorization()
        manager.refused(first)
        second = manager.authorization()
        manager.refused(first)
        assert manager.authorization() is second
        assert len(endpoint.forms) == 2

    def test_a_refused_token_is_not_renewed_by_its_refresh_token(
        self, endpoint: TokenEndpoint, make: Make
    ) -> None:
        endpoint.reply_with(opaque("one", refresh_token="r1"), opaque("two"))
        manager = make()
        manager.refused(manager.authorization())
        manager.authorization()
        assert [form["grant_type"] for form in endpoint.forms] == ["client_credentials"] * 2

    def test_a_middleware_that_refuses_what_it_gives_out_is_not_asked_again_and_again(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock
    ) -> None:
        number = iter(range(10_000))
        endpoint.reply_with(lambda _: opaque(f"token-{next(number)}"))
        manager = make()
        end = clock.now + 60
        while clock.now < end:
            try:
                manager.refused(manager.authorization())
            except AuthenticationError as error:
                assert error.status == 401  # noqa: PT017
                assert error.retry_seconds > 0  # noqa: PT017
                assert not manager.healthy
                clock.now += 0.1
        assert len(endpoint.forms) < 20

    def test_refusals_far_apart_cause_no_pause(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock
    ) -> None:
        number = iter(range(100))
        endpoint.reply_with(lambda _: opaque(f"token-{next(number)}"))
        manager = make()
        for _ in range(5):
            manager.refused(manager.authorization())
            manager.authorization()
            clock.now += 60
        assert manager.healthy


class TestOutages:
    def test_a_constant_401_is_asked_for_fewer_than_ten_times_a_minute(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        endpoint.reply_with(raw(b"", 401))
        manager = make()
        pauses = []
        end = clock.now + 60
        while clock.now < end:
            with pytest.raises(AuthenticationError) as caught:
                manager.authorization()
            pauses.append(caught.value.retry_seconds)
            clock.now += 0.25
        assert 4 < len(endpoint.forms) < 10
        assert max(pauses) <= 60
        assert not manager.healthy
        assert isinstance(manager.last_error, AuthenticationError)
        told = [record for record in caplog.records if record.levelno > logging.INFO]
        assert [(record.action, record.levelname) for record in told] == [("token_fetch_failed", "ERROR")]  # type: ignore[attr-defined]
        assert "check service_id and auth_secret" in told[0].getMessage()

    def test_pauses_stay_random_at_their_cap(self, endpoint: TokenEndpoint, make: Make, clock: Clock) -> None:
        endpoint.reply_with(raw(b"", 401))
        manager = make()
        pauses = []
        for _ in range(14):
            with pytest.raises(AuthenticationError) as caught:
                manager.authorization()
            pauses.append(caught.value.retry_seconds)
            clock.now += 61
        assert len(endpoint.forms) == 14
        assert all(30 <= pause <= 60 for pause in pauses[7:])
        assert len(set(pauses[7:])) > 1

    def test_it_recovers_by_itself_after_a_few_503(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "kiwi_worker")
        endpoint.reply_with(*[raw(b"", 503)] * 3, opaque("at-last"))
        manager = make()
        for _ in range(3):
            with pytest.raises(TokenUnavailable, match="status 503") as caught:
                manager.authorization()
            clock.now += caught.value.retry_seconds
        assert manager.authorization() == "Bearer at-last"
        assert manager.healthy
        assert manager.last_error is None
        told = [record.action for record in caplog.records]  # type: ignore[attr-defined]
        assert told == ["token_fetch_failed", "token_recovered"]

    def test_the_servers_own_retry_after_is_kept(self, endpoint: TokenEndpoint, make: Make) -> None:
        endpoint.reply_with(raw(b"", 429, **{"Retry-After": "200"}))
        with pytest.raises(TokenUnavailable) as caught:
            make().authorization()
        assert 199 < caught.value.retry_seconds <= 200

    def test_in_the_pause_callers_get_the_error_at_once_and_nothing_is_sent(
        self, endpoint: TokenEndpoint, make: Make
    ) -> None:
        endpoint.reply_with(raw(b"", 503))
        manager = make()
        results = [in_threads(5, manager.authorization) for _ in range(20)]
        assert {type(error) for errors in results for error in errors} == {TokenUnavailable}
        assert len(endpoint.forms) == 1

    def test_an_outage_while_the_token_is_valid_is_not_felt(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock
    ) -> None:
        endpoint.reply_with(opaque("one", expires_in=600), raw(b"", 503))
        manager = make()
        manager.authorization()
        clock.now += 301
        manager.authorization()
        eventually(lambda: manager.last_error is not None)
        assert manager.authorization() == "Bearer one"
        assert manager.healthy
        clock.now += 300
        assert not manager.healthy

    def test_refused_credentials_are_unhealthy_even_while_the_token_is_valid(
        self, endpoint: TokenEndpoint, make: Make, clock: Clock
    ) -> None:
        endpoint.reply_with(opaque("one", expires_in=600), raw(b"", 401))
        manager = make()
        manager.authorization()
        clock.now += 301
        assert manager.authorization() == "Bearer one"
        eventually(lambda: not manager.healthy)
        assert manager.authorization() == "Bearer one"

    def test_nobody_there_is_an_error_that_passes_and_means_that_nothing_was_sent(self, clock: Clock) -> None:
        endpoint = TokenEndpoint()
        client = SeldomClient(Endpoint(endpoint.url), user_agent="test")
        endpoint.close()
        manager = TokenManager(client, service_id="svc", worker_id="w", secret=lambda: SECRET, clock=clock)
        with pytest.raises(TokenUnavailable) as caught:
            manager.authorization()
        assert isinstance(caught.value, NotSent)
        client.close()


def test_a_real_middleware_gives_renews_and_refuses_tokens() -> None:
    with MisbehavingServer.kiwi(refresh_tokens=True) as server:
        client = SeldomClient(Endpoint(server.url), user_agent="test")
        manager = TokenManager(
            client,
            service_id=server.service_id,
            worker_id="worker-1",
            secret=lambda: server.auth_secret,
            verify=TokenVerifier(key=server.jwt_key),
        )
        first = manager.authorization()
        assert client.call("GET", "/worker/messages", authorization=first).status == 200
        server.expire_tokens()
        assert client.call("GET", "/worker/messages", authorization=first).status == 401
        manager.refused(first)
        second = manager.authorization()
        assert second != first
        assert client.call("GET", "/worker/messages", authorization=second).status == 200
        assert manager.service_id == server.service_id
        client.close()
