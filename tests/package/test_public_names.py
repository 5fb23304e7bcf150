"""What people import: these names stay."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

NAMES = {
    "kiwi_worker": [
        *("Context", "KiwiWorkerError", "MethodError", "MethodFailed"),
        *("Registry", "Worker", "__version__", "run"),
    ],
    "kiwi_worker.orbit": [
        *("AsyncClient", "Client", "OrbitWorker", "TaskContext", "TaskError", "TaskRegistry"),
    ],
    "kiwi_worker.client": [
        *("AsyncClient", "CallError", "Client", "ClientSettings"),
        *("Feedback", "MethodInfo", "Outcome", "WorkerInfo"),
    ],
    "kiwi_worker.errors": [
        *("Ambiguous", "AuthenticationError", "CallError", "DefinitionError", "DeliberateError"),
        *("ForgottenError", "HookError", "InvalidParameters", "JournalError", "KiwiWorkerError"),
        *("MethodError", "MethodFailed", "NotSent", "ProbePortError", "ProtocolError", "RegistrationError"),
        *("SettingsError", "StartError", "TokenUnavailable", "TransportError"),
        *("UnencodableResult", "UnreachableError"),
    ],
}
"""Changing a line here changes what users' code may say: write it into the changelog."""

UNWANTED = ("requests", "urllib3", "click", "starlette", "asyncio", "grpc", "ssl", "msgspec", "logging")


@pytest.mark.parametrize("module_name", NAMES)
def test_the_public_names_are_these(module_name: str) -> None:
    module = import_module(module_name)
    assert list(module.__all__) == sorted(module.__all__)
    assert list(module.__all__) == NAMES[module_name]
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("module_name", ["kiwi_worker", "kiwi_worker.orbit"])
def test_a_name_that_is_not_there_is_an_attribute_error(module_name: str) -> None:
    module = import_module(module_name)
    with pytest.raises(AttributeError, match="Wroker"):
        module.Wroker  # noqa: B018
    assert set(module.__all__) <= set(dir(module))


def test_importing_the_package_loads_no_library() -> None:
    code = f"import sys, kiwi_worker; print([name for name in {UNWANTED} if name in sys.modules])"
    assert _printed(code) == "[]\n"


def test_making_a_worker_loads_no_http_library_and_no_event_loop() -> None:
    code = (
        "import sys\nfrom kiwi_worker import Worker\nworker = Worker()\n"
        "@worker.method\ndef hello(name: str) -> str: return name\n"
        "unwanted = ('requests', 'urllib3', 'click', 'starlette', 'asyncio', 'grpc')\n"
        "print([name for name in unwanted if name in sys.modules])"
    )
    assert _printed(code) == "[]\n"


def test_importing_configures_no_logging_and_starts_no_thread() -> None:
    code = (
        "import logging, threading, kiwi_worker.worker, kiwi_worker.client, kiwi_worker.orbit\n"
        "loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]\n"
        "own = [one for one in loggers if one.name.startswith(('root', 'kiwi_worker'))]\n"
        "print([one for one in own if one.handlers or (one.level and one.name != 'root')])\n"
        "print(threading.active_count())"
    )
    assert _printed(code) == "[]\n1\n"


def _printed(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
