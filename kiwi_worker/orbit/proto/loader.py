"""Compiling a `worker.proto` and finding the protocol's messages in it (ORBIT page, "gRPC binding")."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiwi_worker.errors import SettingsError

ASSUMED = "assumed"
"""Instead of a path: the file of this package, numbered in the order of the page's tables."""

SERVICE = "WorkerService"

# rpc -> the fields its request and its answer must have, by the page's tables
_RPCS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "RegisterWorker": (
        frozenset({"worker_id", "runtime", "contracts", "sdk"}),
        frozenset(
            {"accepted", "worker_session_id", "heartbeat_interval_ms", "session_timeout_ms", "warnings"}
        ),
    ),
    "PollTask": (
        frozenset({"worker_session_id", "wait_ms"}),
        frozenset(
            {
                "token",
                "execution_id",
                "workflow",
                "workflow_version",
                "step_id",
                "task_name",
                "contract_version",
                "input",
                "idempotency_key",
                "attempt",
                "redelivery",
                "deadline_ms",
                "timeout_ms",
            }
        ),
    ),
    "Heartbeat": (frozenset({"worker_session_id"}), frozenset({"accepted", "cancel"})),
    "CompleteTask": (frozenset({"token", "output"}), frozenset({"accepted", "reason"})),
    "FailTask": (
        frozenset({"token", "error_code", "error_message", "retryable", "details"}),
        frozenset({"accepted", "reason"}),
    ),
    "UnregisterWorker": (frozenset({"worker_session_id"}), frozenset({"accepted"})),
}
_CONTRACT = frozenset({"task_name", "contract_version"})


@dataclass(frozen=True)
class Rpc:
    """One call of the service.

    Attributes:
        path: what goes over the wire, such as `/orbit.worker.v1.WorkerService/PollTask`.
        request, response: the message classes.
    """

    path: str
    request: Any
    response: Any


@dataclass(frozen=True)
class OrbitProto:
    """The six calls of a `worker.proto`, and the message of one announced contract."""

    source: str
    register: Rpc
    poll: Rpc
    heartbeat: Rpc
    complete: Rpc
    fail: Rpc
    unregister: Rpc
    contract: Any

    def rpcs(self) -> Iterator[Rpc]:
        """All six calls."""
        yield from (self.register, self.poll, self.heartbeat, self.complete, self.fail, self.unregister)


def load_proto(source: str | os.PathLike[str]) -> OrbitProto:
    """Compile a `worker.proto` into message classes of their own pool.

    Nothing is registered globally, so two files of the same package can be loaded side by side, and nothing
    is written but to a temporary folder.

    Args:
        source: the path of the runtime's own file, or `assumed`.

    Raises:
        SettingsError: if the extra is missing, or the file cannot be read, is no proto3, or lacks something
            that the page describes.
    """
    modules = _Modules.load()
    path = Path(__file__).with_name("worker.proto") if source == ASSUMED else Path(source)
    if not path.is_file():
        raise SettingsError("proto", f"there is no file {path}")
    pool = modules.pool_of(_descriptors(modules, path))
    return _found(modules, pool, str(source))


class _Modules:
    """The parts of grpcio-tools and protobuf that are used, loaded late."""

    def __init__(self, protoc: Any, descriptor_pb2: Any, pools: Any, factory: Any) -> None:
        self.protoc, self._descriptor_pb2, self._pools, self._factory = protoc, descriptor_pb2, pools, factory

    @classmethod
    def load(cls) -> _Modules:
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
            from grpc_tools import protoc
        except ImportError as error:
            text = f"gRPC needs the extra `orbit-grpc`: pip install 'kiwi-worker[orbit-grpc]' ({error})"
            raise SettingsError("proto", text) from None
        return cls(protoc, descriptor_pb2, descriptor_pool, message_factory)

    def pool_of(self, content: bytes) -> tuple[Any, list[str]]:
        files = self._descriptor_pb2.FileDescriptorSet.FromString(content).file
        pool = self._pools.DescriptorPool()
        for file in files:
            pool.AddSerializedFile(file.SerializeToString())
        services = [
            f"{file.package}.{each.name}".lstrip(".")
            for file in files
            for each in file.service
            if each.name == SERVICE
        ]
        return pool, services

    def message(self, descriptor: Any) -> Any:
        return self._factory.GetMessageClass(descriptor)


def _descriptors(modules: _Modules, path: Path) -> bytes:
    root, name = _import_root(path.resolve())
    bundled = Path(modules.protoc.__file__).with_name("_proto")
    with tempfile.TemporaryDirectory(prefix="orbit-proto-") as folder:
        target = Path(folder, "worker.bin")
        arguments = [
            "protoc",
            f"-I{root}",
            f"-I{bundled}",
            "--include_imports",
            f"--descriptor_set_out={target}",
        ]
        if modules.protoc.main([*arguments, name]) != 0:
            raise SettingsError("proto", f"{path} does not compile; protoc said why on standard error")
        return target.read_bytes()


def _import_root(path: Path) -> tuple[Path, str]:
    # a file in its package's folders may import its neighbours by their full names
    parts = path.parts
    if parts[-4:-1] == ("orbit", "worker", "v1"):
        return path.parents[3], "/".join(parts[-4:])
    return path.parent, path.name


def _found(modules: _Modules, loaded: tuple[Any, list[str]], source: str) -> OrbitProto:
    pool, services = loaded
    if len(services) != 1:
        raise SettingsError("proto", f"{source} must declare one service {SERVICE}, not {len(services)}")
    service = pool.FindServiceByName(services[0])
    rpcs = {name: _rpc(modules, service, name, source) for name in _RPCS}
    contracts = rpcs["RegisterWorker"].request.DESCRIPTOR.fields_by_name["contracts"].message_type
    if contracts is None:
        raise SettingsError("proto", f"{source}: `contracts` must be a repeated message")
    _check_fields(contracts, _CONTRACT, source)
    return OrbitProto(
        source=source,
        register=rpcs["RegisterWorker"],
        poll=rpcs["PollTask"],
        heartbeat=rpcs["Heartbeat"],
        complete=rpcs["CompleteTask"],
        fail=rpcs["FailTask"],
        unregister=rpcs["UnregisterWorker"],
        contract=modules.message(contracts),
    )


def _rpc(modules: _Modules, service: Any, name: str, source: str) -> Rpc:
    method = service.methods_by_name.get(name)
    if method is None:
        raise SettingsError("proto", f"{source}: {SERVICE} has no rpc {name}")
    asked, answered = _RPCS[name]
    _check_fields(method.input_type, asked, source)
    _check_fields(method.output_type, answered, source)
    path = f"/{service.full_name}/{name}"
    return Rpc(path, modules.message(method.input_type), modules.message(method.output_type))


def _check_fields(message: Any, names: frozenset[str], source: str) -> None:
    missing = sorted(names - set(message.fields_by_name))
    if missing:
        text = f"{source}: message {message.name} lacks {', '.join(missing)}, which the page describes"
        raise SettingsError("proto", text)
