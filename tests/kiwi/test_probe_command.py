"""`kiwi-worker probe HOST:PORT`, against real sockets."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from inspect import signature

import pytest
from click.testing import CliRunner, Result

from kiwi_worker.cli.probe import probe
from kiwi_worker.errors import ProbePortError
from kiwi_worker.kiwi.probe import ProbeListener


@pytest.fixture
def port() -> Iterator[int]:
    listener = ProbeListener("127.0.0.1", 0, lambda: None)
    bound = listener.bind()
    thread = threading.Thread(target=listener.serve, name="probe")
    thread.start()
    yield bound
    listener.stop()
    thread.join()


def run(*arguments: str) -> Result:
    # Older versions of click mix the two streams unless told otherwise, newer ones cannot be told.
    separate = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    return CliRunner(**separate).invoke(probe, arguments)


@pytest.mark.parametrize("options", [[], ["--tcp"]])
def test_it_shows_the_ack_and_the_round_trip(port: int, options: list[str]) -> None:
    result = run(f"127.0.0.1:{port}", *options)
    assert result.exit_code == 0
    assert result.stdout.startswith("ACK:")
    assert f"127.0.0.1:{port} ({'TCP' if options else 'UDP'}) in " in result.stdout
    assert result.stderr == ""


def test_several_packets_end_in_a_summary(port: int) -> None:
    result = run(f"127.0.0.1:{port}", "--count", "3")
    lines = result.stdout.splitlines()
    assert len({line.split()[0] for line in lines[:3]}) == 3
    assert lines[3].startswith("3 sent, 3 acknowledged, round trip min ")


def test_json_is_for_programs(port: int) -> None:
    answer = json.loads(run(f"127.0.0.1:{port}", "--count", "2", "--json").stdout)
    assert (answer["port"], answer["transport"], answer["sent"], answer["acknowledged"]) == (
        port,
        "udp",
        2,
        2,
    )
    assert all(one["round_trip_ms"] > 0 and one["error"] is None for one in answer["probes"])


@pytest.mark.parametrize("options", [[], ["--tcp"]])
def test_nobody_there_is_one_line_that_says_what_to_do(options: list[str]) -> None:
    with socket.socket(type=socket.SOCK_STREAM if options else socket.SOCK_DGRAM) as held:
        held.bind(("127.0.0.1", 0))
        free = held.getsockname()[1]
    result = run(f"127.0.0.1:{free}", *options)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "nothing listens there: check the port" in result.stderr


def test_silence_is_one_line_that_says_what_to_check() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        result = run(f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.05", "--json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["acknowledged"] == 0
    assert "no ACK within 0.05 s: check the address, that a firewall" in answer["probes"][0]["error"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3, "it answered 'HTTP/1.1 400"),
        (b"", "it closed the connection"),
    ],
)
def test_another_service_on_that_port_is_told_apart(given: bytes, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(given)

        thread = threading.Thread(target=serve, name="another-service")
        thread.start()
        result = run(f"127.0.0.1:{server.getsockname()[1]}", "--tcp")
        thread.join()
    assert result.exit_code == 1
    assert said in result.stderr
    assert "is this a wake-up probe port?" in result.stderr


def test_an_unknown_host_is_one_line() -> None:
    result = run("no.such.host.invalid:55222")
    assert result.exit_code == 1
    assert "no.such.host.invalid is not known" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("target", ["127.0.0.1", ":55222", "host:port", "host:0", "host:65536", "host:٣", ""])
def test_a_target_that_is_none_is_a_usage_error(target: str) -> None:
    result = run(target)
    assert result.exit_code == 2
    assert "is not HOST:PORT, such as 127.0.0.1:55222" in result.stderr


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1"])
def test_a_timeout_that_is_none_is_a_usage_error(port: int, seconds: str) -> None:
    result = run(f"127.0.0.1:{port}", "--timeout", seconds)
    assert (result.exit_code, result.exception.__class__) == (2, SystemExit)


def test_an_ipv6_target_is_written_in_brackets() -> None:
    try:
        listener = ProbeListener("::1", 0, lambda: None)
        bound = listener.bind()
    except ProbePortError:
        pytest.skip("no IPv6 here")
    thread = threading.Thread(target=listener.serve, name="probe")
    thread.start()
    result = run(f"[::1]:{bound}")
    listener.stop()
    thread.join()
    assert result.exit_code == 0
    assert f"[::1]:{bound} (UDP)" in result.stdout
