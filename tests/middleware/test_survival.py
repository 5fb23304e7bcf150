"""What was accepted survives a `kill -9` of the middleware; what can be written at all is written."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiwi_worker.client import Client
from kiwi_worker.errors import CallError, KiwiWorkerError
from kiwi_worker.middleware.stores.directory import Directory
from kiwi_worker.testing.middleware import MiddlewareProcess, running_middleware

from .conftest import Workers
from .plain_worker import until


@pytest.fixture
def own() -> Iterator[MiddlewareProcess]:
    """A middleware that a test may kill."""
    with running_middleware() as middleware:
        yield middleware


def restart(middleware: MiddlewareProcess, *workers: object) -> None:
    middleware.kill()
    middleware.start()
    for worker in workers:
        worker.close()  # type: ignore[attr-defined]


def test_accepted_calls_survive(own: MiddlewareProcess, workers: Workers) -> None:
    ids = [own.client.start("m", [n]) for n in range(100)]
    restart(own)
    worker = workers(own)
    worker.register("m")
    assert [m["request_id"] for m in worker.drain()] == ids


def test_what_is_written_again_and_again_survives(own: MiddlewareProcess, workers: Workers) -> None:
    ids = []
    for round_number in range(4):
        ids += [own.client.start("m", [round_number, n]) for n in range(20)]
        restart(own)
    worker = workers(own)
    worker.register("m")
    assert [m["request_id"] for m in worker.drain()] == ids


def test_drained_calls_stay_with_their_worker(own: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(own)
    worker.register("m")
    held = own.client.start("m")
    worker.drain_some()
    queued = own.client.start("m")
    restart(own, worker)
    assert worker.beat() is True
    assert [m["request_id"] for m in worker.drain()] == [queued]
    assert worker.respond(held, result=1) == 200
    assert own.client.fetch(held).result == 1


def test_lazy_worker_is_woken_for_what_survived(own: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(own)
    udp = worker.register_lazy("m")
    own.client.start("m")
    udp.recvfrom(65536)
    own.kill()
    own.start()
    packets = {udp.recvfrom(65536)[0] for _ in range(2)}
    assert packets
    for connection in worker.connections:
        connection.close()
    assert len(worker.drain()) == 1


def test_lock_survives(own: MiddlewareProcess, workers: Workers) -> None:
    owner, other = workers(own, "w1"), workers(own, "w2")
    owner.register("m")
    other.register("m")
    locked, free = own.client.start("m", lock=True), own.client.start("m", lock=True)
    owner.drain_some()
    assert owner.lock(locked) == 204
    restart(own, owner, other)
    assert other.lock(locked) == 409
    assert owner.lock(locked) == 204
    assert [m["request_id"] for m in other.drain()] == [free]
    assert owner.lock(free) == 204
    assert other.lock(free) == 409


def test_answers_survive(own: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(own)
    worker.register("m")
    ids = [own.client.start("m", idempotency_key=str(n)) for n in range(20)]
    worker.drain_some()
    for n, request_id in enumerate(ids):
        assert worker.respond(request_id, result=n) == 200
    restart(own, worker)
    assert [own.client.fetch(request_id).result for request_id in ids] == list(range(20))
    assert worker.respond(ids[0], result="again") == 409
    assert own.client.start("m", idempotency_key="3") == ids[3]
    assert worker.drain() == []


def test_kept_feedback_survives(own: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(own)
    worker.register("m")
    request_id = own.client.start("m")
    worker.drain_some()
    assert worker.feedback(request_id, "kept", pr=True) == 200
    restart(own, worker)
    worker.respond(request_id)
    assert [item.content for item in list(own.client.follow(request_id))[:-1]] == ["kept"]


def test_shutdown_notice_survives(own: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(own)
    worker.register("m")
    assert worker.leave() == 204
    restart(own, worker)
    own.client.start("m")
    assert worker.drain() == []


def test_time_to_live_goes_on_over_a_restart(own: MiddlewareProcess) -> None:
    request_id = own.client.start("m", time_to_live=0.5)
    restart(own)
    assert own.client.wait(request_id).reason == "expired"


def test_nothing_accepted_is_lost_under_load(own: MiddlewareProcess, workers: Workers) -> None:
    """Callers at full speed while it is killed: whoever got a request id gets an answer."""
    accepted: list[str] = []
    stop = threading.Event()

    def load() -> None:
        client = Client(own.url, service_id=own.service_id, client_secret=own.client_secret, retry_limit=0)
        with client:
            while not stop.is_set():
                try:
                    accepted.append(client.start("m"))
                except KiwiWorkerError:
                    stop.wait(0.01)

    callers = [threading.Thread(target=load, name=f"caller-{n}") for n in range(4)]
    for caller in callers:
        caller.start()
    for _ in range(3):
        size = len(accepted)
        until(lambda size=size: len(accepted) > size + 200)
        restart(own)
    stop.set()
    for caller in callers:
        caller.join()
    worker = workers(own)
    worker.register("m")
    drained = {m["request_id"] for m in worker.drain()}
    assert set(accepted) <= drained


def test_orderly_stop_leaves_one_file(own: MiddlewareProcess) -> None:
    own.client.start("m")
    assert own.stop() == 0
    assert sorted(path.name for path in Path(own.db).parent.iterdir()) == [
        "middleware.db",
        "middleware.db.lock",
    ]


def test_files_are_for_their_owner_only(own: MiddlewareProcess) -> None:
    own.client.start("m")
    files = list(Path(own.db).parent.iterdir())
    assert len(files) > 1
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_two_middlewares_on_one_file_are_refused(own: MiddlewareProcess) -> None:
    second = MiddlewareProcess(db=own.db, service_id="second")
    with pytest.raises(RuntimeError, match="another middleware runs on"):
        second.start()
    second.close()


def test_damaged_spool_is_refused_with_its_name(own: MiddlewareProcess) -> None:
    own.client.start("m")
    own.kill()
    spool = Path(own.db + "-spool-1000")
    spool.write_bytes(b"0123456789abcdef" * 10)
    with pytest.raises(RuntimeError, match=r"spool-1000 is damaged"):
        own.start()
    spool.unlink()
    own.start()


def test_spool_that_was_cut_off_is_read_up_to_there(own: MiddlewareProcess, workers: Workers) -> None:
    from kiwi_worker.middleware.stores.batch import OTHER
    from kiwi_worker.middleware.stores.spool import encode_step

    own.kill()
    setting = ("INSERT INTO application_settings VALUES (?,?,?)", (own.service_id, "spooled", "yes"))
    record = encode_step(OTHER, setting)
    Path(own.db + "-spool-1000").write_bytes(record + record[:-3])
    own.start()
    assert workers(own).register("m")["spooled"] == "yes"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file system of its own")
def test_full_disk_refuses_and_recovers(tmp_path: Path, workers: Workers) -> None:
    import subprocess

    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("cannot mount a small file system here")
    try:
        with running_middleware(db=folder / "m.db") as middleware:
            client = middleware.new_client(retry_limit=0)
            kept = client.start("m")
            filler = folder / "filler"
            fill(filler)
            until(lambda: refuses(client))
            filler.unlink()

            def accepts() -> bool:
                try:
                    return bool(client.start("m", ["later"]))
                except CallError:
                    return False

            until(accepts)
            worker = workers(middleware)
            worker.register("m")
            messages = worker.drain()
            assert messages[0]["request_id"] == kept
            assert messages[-1]["params"] == ["later"]
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write until there is no room."""
    try:
        with path.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
    except OSError:
        pass


def refuses(client: Client) -> bool:
    """Whether a call of some size is not accepted."""
    try:
        client.start("m", ["x" * 5000])
    except KiwiWorkerError:
        return True
    return False


def test_database_of_another_version_is_refused(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "m.db"
    with Directory(str(path)):
        pass
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(KiwiWorkerError, match="another version"):
        Directory(str(path))
    with pytest.raises(KiwiWorkerError, match="cannot use"):
        Directory(str(tmp_path))
