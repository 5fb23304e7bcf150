"""Secrets are seen by nobody who does not ask for them by `reveal`."""

from __future__ import annotations

import base64
import copy
import dataclasses
import logging
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kiwi_worker.errors import SettingsError
from kiwi_worker.settings import KiwiSettings, OrbitSettings, Secret, Settings, check_files, secret_reader
from kiwi_worker.settings.kinds import SecretText
from kiwi_worker.settings.secret import MaskedUrl

HUNTER = "hunter2-the-secret"

SECRETIVE: list[Callable[[], Settings]] = [
    lambda: KiwiSettings(auth_secret=Secret(HUNTER), jwt_key=Secret(HUNTER)),
    lambda: KiwiSettings.load({"auth_secret": HUNTER, "proxy": f"http://me:{HUNTER}@p:1"}, environ={}),
    lambda: KiwiSettings.load(environ={"KIWI_AUTH_SECRET": HUNTER, "KIWI_PROXY": f"https://{HUNTER}@m/x"}),
    lambda: OrbitSettings.load(environ={"ORBIT_TOKEN": HUNTER, "KIWI_PROXY": f"http://a:{HUNTER}@x:1"}),
]


def shows(text: str) -> bool:
    return HUNTER in text or base64.b64encode(HUNTER.encode()).decode() in text


@pytest.mark.parametrize("make", SECRETIVE)
class TestReport71SecretsAreNotShown:
    def test_by_repr_str_format_vars_and_asdict(self, make: Callable[[], Settings]) -> None:
        settings = make()
        views = [repr(settings), str(settings), f"{settings}", repr(vars(settings)), str(vars(settings))]
        views += [repr(dataclasses.asdict(settings)), repr(copy.deepcopy(settings)), repr(settings.origins)]
        assert not [view for view in views if shows(view)]
        assert "***" in repr(settings)

    def test_by_every_logger_at_debug(
        self, make: Callable[[], Settings], caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.DEBUG):
            logging.getLogger("test").info("%s %r", make(), vars(make()))
        assert not shows(caplog.text)


def test_a_secret_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="a secret is not pickled"):
        pickle.dumps(KiwiSettings(auth_secret=Secret(HUNTER)))
    assert b"w-1" in pickle.dumps(KiwiSettings(worker_id="w-1"))


def test_a_secret_masks_itself() -> None:
    secret = Secret(HUNTER)
    assert (repr(secret), str(secret), f"{secret:>5}") == ("Secret('***')", "***", "  ***")
    assert not hasattr(secret, "__dict__")
    assert secret.reveal() == HUNTER
    assert secret == Secret(HUNTER) != Secret("other")
    assert copy.copy(secret) is copy.deepcopy(secret) is secret


def test_an_address_hides_its_user_only_in_its_repr() -> None:
    url = MaskedUrl("http://me:pa55@host:1/path@x")
    assert repr(url) == "'http://***@host:1/path@x'"
    assert url == "http://me:pa55@host:1/path@x"
    assert repr(MaskedUrl("http://host/path@x")) == "'http://host/path@x'"


BAD: list[tuple[type[Settings], dict[str, Any]]] = [
    (KiwiSettings, {"auth_secret": HUNTER, "auth_secret_file": "/x"}),
    (KiwiSettings, {"auth_secret": HUNTER.encode()}),
    (KiwiSettings, {"auth_secret": {"s": HUNTER}}),
    (KiwiSettings, {"auth_secret": HUNTER + "\udcff"}),
    (KiwiSettings, {"auth_secret": HUNTER, "concurrency": 0}),
    (KiwiSettings, {"jwt_key": HUNTER, "jwks_url": "https://k/"}),
    (KiwiSettings, {"proxy": f"socks://me:{HUNTER}@p"}),
    (KiwiSettings, {"proxy": f"http://me:{HUNTER}@p:port"}),
    (KiwiSettings, {"middleware_url": f"http://{HUNTER}:p w@p/"}),
    (KiwiSettings, {"middleware_url": f"http://me:{HUNTER}@m/"}),
    (KiwiSettings, {"auth_secrt": HUNTER}),
    (OrbitSettings, {"token": f"{HUNTER} with space"}),
    (OrbitSettings, {"token": HUNTER + "\n"}),
    (OrbitSettings, {"token": HUNTER, "server": f"http://{HUNTER}@a:1,https://{HUNTER}@a:1"}),
    (OrbitSettings, {"server": [HUNTER]}),
    (OrbitSettings, {"server": {HUNTER: HUNTER}}),
]


@pytest.mark.parametrize(("cls", "keywords"), BAD)
def test_report_71_no_refusal_shows_a_secret(cls: type[Settings], keywords: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as caught:
        cls.load(keywords, environ={})
    told = "".join(traceback.format_exception(caught.value, chain=True)) + repr(caught.value.__context__)
    assert not shows(told)
    assert not shows(repr(vars(caught.value)))


def test_a_misfit_secret_is_empty_or_no_text() -> None:
    with pytest.raises(SettingsError, match=r"^auth_secret: is empty"):
        KiwiSettings.load({"auth_secret": ""}, environ={})
    with pytest.raises(SettingsError, match=r"^auth_secret: is no text but int"):
        KiwiSettings.load({"auth_secret": 5}, environ={})
    assert SecretText().convert(Secret("s")) == Secret("s")


class TestReader:
    def test_gives_the_secret(self) -> None:
        read = secret_reader(KiwiSettings.load({"auth_secret": HUNTER}, environ={}))
        assert read is not None
        assert read() == HUNTER

    def test_is_none_without_a_secret(self) -> None:
        assert secret_reader(KiwiSettings.load(environ={})) is None
        assert secret_reader(OrbitSettings.load(environ={})) is None

    def test_reads_the_file_each_time_and_strips_one_line_end(self, tmp_path: Path) -> None:
        file = tmp_path / "secret"
        read = secret_reader(KiwiSettings.load({"auth_secret_file": file}, environ={}))
        assert read is not None
        for content, secret in [
            ("one\n", "one"),
            ("two", "two"),
            ("x\n\n", "x\n"),
            ("y \r\n", "y "),
            ("ä", "ä"),
        ]:
            file.write_bytes(content.encode())
            assert read() == secret

    def test_keeps_a_secret_with_white_space_in_a_variable(self) -> None:
        read = secret_reader(KiwiSettings.load(environ={"KIWI_AUTH_SECRET": " a b "}))
        assert read is not None
        assert read() == " a b "

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (b"", "is empty"),
            (b"\n", "is empty"),
            (b"\xff" + HUNTER.encode(), "is not UTF-8 text"),
            (HUNTER.encode() * 10_000, "is too large to be a secret"),
        ],
    )
    def test_refuses_what_is_no_secret(self, tmp_path: Path, content: bytes, problem: str) -> None:
        file = tmp_path / "secret"
        file.write_bytes(content)
        read = secret_reader(KiwiSettings.load(environ={"KIWI_AUTH_SECRET_FILE": str(file)}))
        assert read is not None
        with pytest.raises(SettingsError) as caught:
            read()
        assert str(caught.value) == f"KIWI_AUTH_SECRET_FILE: {file} {problem}"
        assert not shows("".join(traceback.format_exception(caught.value)))
        assert caught.value.__context__ is None

    def test_refuses_a_file_that_is_not_there_and_a_folder(self, tmp_path: Path) -> None:
        for path, problem in [(tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")]:
            read = secret_reader(OrbitSettings.load({"token_file": path}, environ={}))
            assert read is not None
            with pytest.raises(SettingsError, match=f"^token_file: {path} cannot be read: {problem}"):
                read()

    def test_refuses_a_token_no_header_can_carry(self, tmp_path: Path) -> None:
        file = tmp_path / "token"
        file.write_text(f"{HUNTER}\r\nx: y\n")
        read = secret_reader(OrbitSettings.load({"token_file": file}, environ={}))
        assert read is not None
        with pytest.raises(SettingsError, match="token holds white space or a character") as caught:
            read()
        assert not shows(str(caught.value))

    def test_reads_standard_input_once_and_keeps_it(self) -> None:
        script = (
            f"import sys; sys.path[:] = {sys.path!r}\n"
            "from kiwi_worker.settings import KiwiSettings, secret_reader\n"
            "settings = KiwiSettings.load({'auth_secret_file': '-'}, environ={})\n"
            "one, two = secret_reader(settings), secret_reader(settings)\n"
            "print([one(), one(), two()])\n"
        )
        for given, shown in [("pipe d\n", "['pipe d', 'pipe d', 'pipe d']\n"), ("", "")]:
            done = subprocess.run(
                [sys.executable, "-c", script], input=given, capture_output=True, text=True, timeout=60
            )
            assert done.stdout == shown
            assert ("auth_secret_file: standard input is empty" in done.stderr) == (given == "")


class TestFiles:
    def test_are_looked_for_when_asked(self, tmp_path: Path) -> None:
        there = tmp_path / "ca.pem"
        there.write_text("x")
        check_files(KiwiSettings.load({"ca_file": there, "auth_secret_file": "-"}, environ={}))
        check_files(OrbitSettings.load({"proto": "assumed"}, environ={}))
        check_files(KiwiSettings.load({"health_file": tmp_path / "health"}, environ={}))

    @pytest.mark.parametrize("key", ["ca_file", "client_cert", "auth_secret_file"])
    def test_that_are_missing_are_refused_by_name(self, key: str, tmp_path: Path) -> None:
        settings = KiwiSettings.load({key: tmp_path / "none"}, environ={})
        with pytest.raises(
            SettingsError, match=f"^{key}: .*none cannot be read: No such file or directory; it is"
        ):
            check_files(settings)

    def test_that_cannot_be_written_are_refused_by_name(self, tmp_path: Path) -> None:
        settings = KiwiSettings.load({"health_file": tmp_path / "none" / "health"}, environ={})
        with pytest.raises(SettingsError, match=r"^health_file: .*none is no folder that can be written to"):
            check_files(settings)
