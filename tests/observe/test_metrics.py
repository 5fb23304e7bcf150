"""What is scraped, by one server for all workers of a process."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from worker_tools import eventually

from kiwi_worker import Context, Worker
from kiwi_worker.errors import SettingsError
from kiwi_worker.testing import KiwiServer, MisbehavingServer, Status

pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families

NewWorker = Callable[..., Worker]


def scrape(port: int) -> dict[tuple[str, str], float]:
    """The samples, by name and worker; those of a method have its name after theirs."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (
            sample.name + ("." + sample.labels["method"] if "method" in sample.labels else ""),
            worker,
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        for worker in [sample.labels["worker_id"]]
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_the_numbers_of_a_worker(server: KiwiServer, new_worker: NewWorker) -> None:
    worker, go = new_worker(metrics_port=0, concurrency=1, time_limit=30), threading.Event()

    @worker.method
    def talk(ctx: Context) -> None:
        ctx.feedback("hello")

    @worker.method(time_limit=0.05)
    def slow() -> None:
        go.wait()

    with worker:
        port = worker.ports["metrics_port"]
        server.fault("respond", Status(503))
        for method in ["hello", "talk", "unknown"]:
            server.assert_answered_once(server.enqueue(method))
        server.enqueue_raw(b'{"nonsense": 1}')
        server.refuse_locks("locked")
        server.enqueue("hello", request_id="locked", lock_required=True)
        eventually(lambda: scrape(port)[("kiwi_worker_refused_claims_total", "worker-1")] == 1)
        server.assert_answered_once(server.enqueue("slow"), "failed")
        seen = scrape(port)
        assert seen[("kiwi_worker_lost_slots", "worker-1")] == 1
        go.set()
        eventually(lambda: scrape(port)[("kiwi_worker_late_ends_total", "worker-1")] == 1)
        eventually(lambda: scrape(port)[("kiwi_worker_feedback_sent_total", "worker-1")] == 1)
        seen = scrape(port)
    expected = {
        "received_total": 6,
        "answered_total": 4,
        "answer_retries_total": 1,
        "malformed_total": 1,
        "refused_claims_total": 1,
        "timed_out_total": 1,
        "late_ends_total": 1,
        "cut_drains_total": 0,
        "duplicates_total": 0,
        "feedback_dropped_total": 0,
        "thread_restarts_total": 0,
        "lost_slots": 0,
        "running": 0,
        "waiting": 0,
        "outbox": 0,
        "live": 1,
        "ready": 1,
        "healthy": 1,
        "handler_seconds_count.hello": 1,
        "handler_seconds_count.talk": 1,
        "handler_seconds_count.slow": 1,
    }
    assert {name: seen[(f"kiwi_worker_{name}", "worker-1")] for name in expected} == expected
    assert seen[("kiwi_worker_handler_seconds_sum.slow", "worker-1")] >= 0.05
    assert ("kiwi_worker_probe_packets_total", "worker-1") in seen
    assert ("kiwi_worker_journal_bytes", "worker-1") not in seen


def test_report_74_two_workers_on_one_metrics_port_restart_and_load_leave_no_dead_series(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    port, stop, failures = free_port(), threading.Event(), list[BaseException]()
    one = new_worker(metrics_port=port)
    two = new_worker(metrics_port=port)

    def keep_scraping() -> None:
        while not stop.is_set():
            try:
                scrape(port)
            except BaseException as error:
                failures.append(error)
                return

    def ids() -> set[str]:
        return {worker for _, worker in scrape(port)}

    with one:
        scrapers = [threading.Thread(target=keep_scraping) for _ in range(3)]
        for scraper in scrapers:
            scraper.start()
        try:
            for _ in range(3):
                with two:
                    requests = [
                        server.enqueue("hello", worker_id=name) for name in ["worker-1", "worker-2"] * 100
                    ]
                    for request_id in requests:
                        server.assert_answered_once(request_id, "success")
                    eventually(lambda: ids() == {"worker-1", "worker-2"})
                    eventually(lambda: scrape(port)[("kiwi_worker_answered_total", "worker-2")] == 100)
                assert ids() == {"worker-1"}
            eventually(lambda: scrape(port)[("kiwi_worker_answered_total", "worker-1")] == 300)
        finally:
            stop.set()
            for scraper in scrapers:
                scraper.join()
    assert failures == []


def test_a_metrics_port_of_somebody_else_refuses_the_start(new_worker: NewWorker) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        worker = new_worker(metrics_port=taken.getsockname()[1])
        with pytest.raises(SettingsError, match=r"metrics_port: port \d+ cannot be had"):
            worker.start()


def test_metrics_without_the_library_are_refused_by_name(
    new_worker: NewWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kiwi_worker.worker.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'kiwi-worker\[metrics\]'"):
        new_worker(metrics_port=0).check()


def test_an_orbit_worker_has_metrics_too() -> None:
    from kiwi_worker.orbit import OrbitWorker

    with MisbehavingServer.orbit() as runtime:
        worker = OrbitWorker(server=runtime.url, worker_id="orbit-1", metrics_port=0, poll_wait=1)

        @worker.task("greet", version="1.0.0")
        def greet(input: Any) -> dict[str, str]:
            return {}

        with worker:
            runtime.wait_for_result(runtime.enqueue_task("greet"))
            port = worker.ports["metrics_port"]
            eventually(lambda: scrape(port)[("kiwi_worker_answered_total", "orbit-1")] == 1)
            assert scrape(port)[("kiwi_worker_handler_seconds_count.greet 1.0.0", "orbit-1")] == 1
