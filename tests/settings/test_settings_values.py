"""What text and objects each kind of setting takes, and what the errors say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from settings_samples import CLASSES

from kiwi_worker.errors import SettingsError
from kiwi_worker.settings import KiwiSettings, OrbitSettings, settings_of
from kiwi_worker.settings.kinds import Flag

FLAGS = [(cls, setting) for cls in CLASSES for setting in settings_of(cls) if isinstance(setting.kind, Flag)]


def kiwi(**environ: str) -> KiwiSettings:
    return KiwiSettings.load(environ={f"KIWI_{key}": value for key, value in environ.items()})


@pytest.mark.parametrize(("cls", "setting"), FLAGS, ids=[f"{cls.__name__}.{s.key}" for cls, s in FLAGS])
class TestReport68FalseIsNotTrue:
    @pytest.mark.parametrize("text", ["true", "1", "yes", "on", "True", "YES", "oN", " on "])
    def test_true(self, cls: Any, setting: Any, text: str) -> None:
        assert getattr(cls.load(environ={setting.environment[0]: text}), setting.key) is True

    @pytest.mark.parametrize("text", ["false", "0", "no", "off", "False", "NO", "oFF", "\tno\n"])
    def test_false(self, cls: Any, setting: Any, text: str) -> None:
        assert getattr(cls.load(environ={setting.environment[0]: text}), setting.key) is False
        assert getattr(cls.load({setting.key: text}, environ={}), setting.key) is False

    @pytest.mark.parametrize("text", ["", " ", "junk", "2", "-1", "none", "y", "tru", "falsee", "10s"])
    def test_empty_and_junk_are_errors_that_name_the_variable(
        self, cls: Any, setting: Any, text: str
    ) -> None:
        with pytest.raises(
            SettingsError, match=f"^{setting.environment[0]}: .* is neither true .* nor false"
        ):
            cls.load(environ={setting.environment[0]: text})

    @pytest.mark.parametrize("value", [0, 1, [], 1.0, b"true"])
    def test_other_objects_are_errors(self, cls: Any, setting: Any, value: Any) -> None:
        with pytest.raises(SettingsError, match=f"^{setting.key}: .* is neither true nor false"):
            cls.load({setting.key: value}, environ={})


class TestWholeNumbers:
    @pytest.mark.parametrize(
        ("text", "value"), [(" 10 ", 10), ("10", 10), ("+10", 10), ("007", 7), ("1\n", 1)]
    )
    def test_read(self, text: str, value: int) -> None:
        assert kiwi(CONCURRENCY=text).concurrency == value
        assert KiwiSettings.load({"concurrency": text}, environ={}).concurrency == value

    @pytest.mark.parametrize("text", ["10s", "1.0", "1_0", "0x10", "ten", "1e3", "١٠", "- 1", "9" * 5000])
    def test_refused(self, text: str) -> None:
        with pytest.raises(
            SettingsError, match=r"^KIWI_CONCURRENCY: .* is no whole number; it is the number of"
        ):
            kiwi(CONCURRENCY=text)

    @pytest.mark.parametrize("value", [True, 1.0, None.__class__, [1], b"1"])
    def test_objects_of_another_type_are_refused(self, value: Any) -> None:
        with pytest.raises(SettingsError, match=r"^concurrency: .* is no whole number"):
            KiwiSettings.load({"concurrency": value}, environ={})

    def test_zero_slots_are_refused_with_what_the_setting_is(self) -> None:
        with pytest.raises(SettingsError) as caught:
            KiwiSettings.load({"concurrency": 0}, environ={})
        assert str(caught.value) == (
            "concurrency: 0 is below 1; it is the number of requests handled at once (slots, one thread each)"
        )
        assert (caught.value.key, caught.value.exit_status) == ("concurrency", 78)

    def test_an_empty_variable_is_one_that_is_not_set(self) -> None:
        assert kiwi(CONCURRENCY="", WAIT=" ", SERVICE_ID="", TAGS="", RUN_MODE="").concurrency == 8


class TestSeconds:
    @pytest.mark.parametrize(
        ("text", "value"), [("10", 10), (" 0.5 ", 0.5), (".5", 0.5), ("1e1", 10), ("5.", 5)]
    )
    def test_read(self, text: str, value: float) -> None:
        assert kiwi(GRACE_PERIOD=text).grace_period == value

    @pytest.mark.parametrize("text", ["10s", "1m", "nan", "inf", "-inf", "1_0", "10 20", "ten"])
    def test_refused_with_the_hint_that_seconds_are_plain_numbers(self, text: str) -> None:
        with pytest.raises(
            SettingsError, match=r"^KIWI_GRACE_PERIOD: .*seconds are plain numbers, like 10 or 0.5"
        ):
            kiwi(GRACE_PERIOD=text)

    @pytest.mark.parametrize("value", [float("nan"), True, "1s", None.__class__])
    def test_objects_refused(self, value: Any) -> None:
        with pytest.raises(SettingsError, match=r"^grace_period: "):
            KiwiSettings.load({"grace_period": value}, environ={})

    @pytest.mark.parametrize("value", [float("inf"), 1e300, 10**30, "1e999"])
    def test_too_long_for_a_socket_is_refused(self, value: Any) -> None:
        with pytest.raises(SettingsError, match=r"^wait: .* is above 2000000"):
            KiwiSettings.load({"wait": value}, environ={})

    def test_grace_period_zero_is_allowed_and_less_is_not(self) -> None:
        assert kiwi(GRACE_PERIOD="0").grace_period == 0
        with pytest.raises(SettingsError, match="KIWI_GRACE_PERIOD: -1 is below 0; it is the time given to"):
            kiwi(GRACE_PERIOD="-1")

    def test_a_heartbeat_delay_of_zero_is_refused(self) -> None:
        with pytest.raises(SettingsError, match=r"heartbeat_delay: 0 is below 0\.01"):
            KiwiSettings(heartbeat_delay=0)


class TestLists:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("python, node", ("python", "node")),
            ("python", ("python",)),
            ("python,,node,", ("python", "node")),
            ('["python", "a,b"]', ("python", "a,b")),
            (" [] ", ()),
        ],
    )
    def test_in_the_environment_are_json_or_comma_separated(self, text: str, value: tuple[str, ...]) -> None:
        assert kiwi(SUPPORTED_EXECUTORS=text).supported_executors == value

    @pytest.mark.parametrize("text", ["[python]", '["a"', '["a", 1]', '[["a"]]', "[" * 100_000])
    def test_junk_is_refused(self, text: str) -> None:
        with pytest.raises(SettingsError, match=r"^KIWI_SUPPORTED_EXECUTORS: "):
            kiwi(SUPPORTED_EXECUTORS=text)

    @pytest.mark.parametrize("value", [["a", "b"], ("a", "b"), "a,b", iter(["a", "b"])])
    def test_as_keywords(self, value: Any) -> None:
        assert KiwiSettings(supported_executors=value).supported_executors == ("a", "b")

    @pytest.mark.parametrize("value", [5, {"a": 1}, b"a,b", [1], [None]])
    def test_other_objects_are_refused(self, value: Any) -> None:
        with pytest.raises(SettingsError, match=r"^supported_executors: "):
            KiwiSettings(supported_executors=value)


class TestTags:
    def test_are_a_json_object_of_texts(self) -> None:
        assert kiwi(TAGS='{"os": "linux"}').tags == {"os": "linux"}

    @pytest.mark.parametrize("text", ["os=linux", "[]", '{"os": 1}', '{"os": null}', '"x"', "{", "null"])
    def test_anything_else_is_refused(self, text: str) -> None:
        with pytest.raises(SettingsError, match=r"^KIWI_TAGS: "):
            kiwi(TAGS=text)


class TestWords:
    @pytest.mark.parametrize("text", ["eager", "Eager", "EAGER", " eager "])
    def test_in_any_case(self, text: str) -> None:
        assert kiwi(RUN_MODE=text).run_mode == "eager"

    def test_the_error_names_them(self) -> None:
        with pytest.raises(SettingsError, match=r"^KIWI_RUN_MODE: 'connected' is none of lazy, eager; it is"):
            kiwi(RUN_MODE="connected")


class TestPorts:
    @pytest.mark.parametrize("text", ["0", "1", "65535"])
    def test_within_bounds(self, text: str) -> None:
        assert kiwi(WAKEUP_PROBE_SERVICE_PORT=text).wakeup_probe_service_port == int(text)

    @pytest.mark.parametrize("text", ["-1", "65536", "http"])
    def test_out_of_bounds(self, text: str) -> None:
        with pytest.raises(SettingsError, match=r"^KIWI_WAKEUP_PROBE_SERVICE_PORT: "):
            kiwi(WAKEUP_PROBE_SERVICE_PORT=text)

    def test_no_worker_can_be_reached_on_an_advertised_port_of_zero(self) -> None:
        with pytest.raises(SettingsError, match=r"^KIWI_ADVERTISED_PORT: 0 is below 1"):
            kiwi(ADVERTISED_PORT="0")


class TestAddresses:
    @pytest.mark.parametrize(
        ("text", "value"), [("10.0.0.1", "10.0.0.1"), ("[::1]", "::1"), ("FE80::1", "fe80::1")]
    )
    def test_ip(self, text: str, value: str) -> None:
        assert kiwi(ADVERTISED_IP=text).advertised_ip == value

    @pytest.mark.parametrize("text", ["localhost", "10.0.0", "10.0.0.1:80", "10.0.0.256"])
    def test_no_ip(self, text: str) -> None:
        with pytest.raises(SettingsError, match=r"^KIWI_ADVERTISED_IP: .* is no IP address"):
            kiwi(ADVERTISED_IP=text)

    def test_bind_may_be_a_name(self) -> None:
        assert kiwi(WAKEUP_PROBE_BIND="localhost").wakeup_probe_bind == "localhost"
        assert kiwi(WAKEUP_PROBE_BIND="[::]").wakeup_probe_bind == "::"

    def test_senders_are_addresses_or_networks(self) -> None:
        assert kiwi(PROBE_ALLOW="10.0.0.0/8,::1").probe_allow == ("10.0.0.0/8", "::1")
        with pytest.raises(
            SettingsError, match=r"^KIWI_PROBE_ALLOW: 'middleware' is no IP address and no network"
        ):
            kiwi(PROBE_ALLOW="10.0.0.1,middleware")

    @pytest.mark.parametrize(
        "url",
        ["http://h", "https://h:1/p/q/", "http://h/@x", "http://[::1]:80", "http://ä.example"],
    )
    def test_url(self, url: str) -> None:
        assert kiwi(MIDDLEWARE_URL=url).middleware_url == url

    @pytest.mark.parametrize(
        "url",
        [
            "localhost:8420",
            "h",
            "ftp://h",
            "http://",
            "http:///path",
            "http://h:port",
            "http://h:70000",
            "http://h:0",
            "http://h/?q=1",
            "http://h/#f",
            "http://h /x",
            "http://[::1",
            "http://h\\x",
        ],
    )
    def test_no_url(self, url: str) -> None:
        with pytest.raises(SettingsError, match=r"^KIWI_MIDDLEWARE_URL: is no address"):
            kiwi(MIDDLEWARE_URL=url)

    @pytest.mark.parametrize("url", ["http://u:p@h", "http://u@h/x"])
    def test_a_url_with_a_user_only_for_a_proxy(self, url: str) -> None:
        assert kiwi(PROXY=url).proxy == url
        with pytest.raises(SettingsError, match=r"^KIWI_MIDDLEWARE_URL: must not hold a user name"):
            kiwi(MIDDLEWARE_URL=url)

    def test_the_scheme_is_in_small_letters(self) -> None:
        assert kiwi(MIDDLEWARE_URL="HTTP://h").middleware_url == "http://h"

    def test_servers_are_several_of_one_scheme(self) -> None:
        two = OrbitSettings(server="grpcs://a:1, GRPCS://b:2", proto="assumed")  # type: ignore[arg-type]
        assert two.server == ("grpcs://a:1", "grpcs://b:2")
        assert two.scheme == "grpcs"
        for servers in ("http://a:1,https://b:2", "grpc://a:1,http://a:1"):
            with pytest.raises(
                SettingsError, match=r"^ORBIT_SERVER: mixes .* all servers need the same scheme"
            ):
                OrbitSettings.load(environ={"ORBIT_SERVER": servers})
        with pytest.raises(SettingsError, match=r"^server: is empty"):
            OrbitSettings(server=())


class TestText:
    @pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\x00b", "a\x7fb"])
    def test_with_control_characters_is_refused(self, text: str) -> None:
        with pytest.raises(
            SettingsError, match=r"^worker_id: holds a line break or another control character"
        ):
            KiwiSettings(worker_id=text)

    def test_that_is_empty_is_refused_as_a_keyword(self) -> None:
        with pytest.raises(SettingsError, match=r"^worker_id: is empty; it is the name"):
            KiwiSettings.load({"worker_id": " "}, environ={})

    def test_that_cannot_be_sent_is_refused(self) -> None:
        with pytest.raises(SettingsError, match=r"^KIWI_SERVICE_ID: is not UTF-8 text"):
            kiwi(SERVICE_ID="caf\udce9")

    def test_has_its_surrounding_white_space_taken_off(self) -> None:
        assert kiwi(SERVICE_ID=" svc \n").service_id == "svc"

    def test_a_path_may_be_an_object_and_begin_with_the_home_folder(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", "/home/someone")
        assert KiwiSettings.load({"ca_file": Path("/x/ca.pem")}, environ={}).ca_file == "/x/ca.pem"
        assert kiwi(CA_FILE="~/ca.pem").ca_file == "/home/someone/ca.pem"
        assert kiwi(CA_FILE="/x/caf\udce9.pem").ca_file == "/x/caf\udce9.pem"

    def test_a_long_bad_value_is_shortened_in_the_error(self) -> None:
        with pytest.raises(SettingsError) as caught:
            kiwi(RUN_MODE="x" * 1000)
        assert len(str(caught.value)) < 200
