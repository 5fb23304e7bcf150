"""A value for every setting that is not its default, and the values that go with it."""

from __future__ import annotations

from typing import Any

from kiwi_worker.settings import CommandSettings, KiwiSettings, OrbitSettings, Setting, settings_of

SAMPLES: dict[str, Any] = {
    "worker_id": "w-1",
    "concurrency": 3,
    "async_concurrency": 7,
    "reporters": 2,
    "processes": 2,
    "process_pool_size": 5,
    "process_recycle_calls": 1000,
    "process_recycle_memory": 512,
    "grace_period": 0,
    "time_limit": 1.5,
    "start_limit": 60,
    "report_limit": 2.5,
    "outbox_limit": 12,
    "max_result_bytes": 5000,
    "expose_errors": False,
    "journal": "/var/lib/kiwi/journal",
    "journal_sync": "interval",
    "journal_max_age": 3600,
    "journal_max_bytes": 100_000,
    "ca_file": "/etc/ca.pem",
    "client_cert": "/etc/cert.pem",
    "client_key": "/etc/key.pem",
    "proxy": "http://someone:pa55word@proxy:3128",
    "health_port": 9001,
    "health_file": "/run/kiwi/health",
    "metrics_port": 0,
    "middleware_url": "https://[::1]:8420/prefix",
    "service_id": "svc",
    "auth_secret": "a secret, with\nline end\n",
    "auth_secret_file": "/run/secrets/auth",
    "jwt_key": "-----BEGIN PUBLIC KEY-----\nMII\n-----END PUBLIC KEY-----\n",
    "jwks_url": "https://keys.example/jwks.json?v=1",
    "refresh_margin": 10,
    "run_mode": "eager",
    "wakeup_probe_service_port": 0,
    "wakeup_probe_bind": "::1",
    "probe_allow": ("10.0.0.0/8", "::1"),
    "probe_idle_limit": 1,
    "advertised_ip": "192.168.1.20",
    "advertised_port": 40_000,
    "wait": 12,
    "heartbeat_delay": 0.25,
    "safety_interval": 5,
    "when_forgotten": "stay",
    "on_ambiguous_lock": "run",
    "lock_attempts": 1,
    "max_drain_bytes": 4096,
    "feedback_limit": 5,
    "feedback_type": -3,
    "tags": {"os": "linux", "zone": "ä, b"},
    "version": "2.3.4",
    "supported_executors": ("python", "node"),
    "platform": "plan9",
    "interactive_desktop": True,
    "browser_runtime": True,
    "server": ("https://one:7233", "https://two:7233"),
    "token": "admin-token",
    "token_file": "/run/secrets/token",
    "runtime": "python3",
    "proto": "/etc/worker.proto",
    "poll_wait": 30,
    "log_level": "debug",
}

NEEDED: dict[str, dict[str, Any]] = {
    "journal": {"worker_id": "w-1"},
    "client_key": {"client_cert": "/etc/cert.pem"},
}
"""What a setting cannot be given without."""

CLASSES = (KiwiSettings, OrbitSettings, CommandSettings)
EVERY = [(cls, setting) for cls in CLASSES for setting in settings_of(cls)]
EVERY_ID = [f"{cls.__name__}.{setting.key}" for cls, setting in EVERY]


def shown(value: Any) -> Any:
    """The value itself, out of its Secret if it is in one."""
    return value.reveal() if hasattr(value, "reveal") else value


def as_variable(setting: Setting) -> str:
    """The sample as an environment variable or option would hold it."""
    return setting.kind.write(setting.kind.convert(SAMPLES[setting.key]))
