"""The middleware's half of the lazy-mode wake-up probe (the page's section of that name).

A worker with something in its inbox gets a packet over UDP, again and again with growing pauses, from the
third on over TCP as well, until it has ACKed or drained. After an ACK the drain is expected within a moment;
when it does not come, the worker is probed anew.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import uuid

from .records import encode
from .roster import WorkerEntry

__all__ = ["Prober", "pull_signal"]

logger = logging.getLogger("kiwi_worker.middleware.probe")

FIRST_PAUSE = 0.25
LONGEST_PAUSE = 5.0
UDP_ALONE = 2
"""Packets that go over UDP only, before TCP is tried beside it."""

DRAIN_SECONDS = 2.0
TCP_SECONDS = 2.0


def pull_signal(packet_id: str, request_id: str | None) -> bytes:
    """The packet of the page's example, in ASCII."""
    parameters = "null" if request_id is None else request_id
    message = {"MessageText": "pull_signal", "Parameters": parameters}
    return encode({"PacketId": packet_id, "Message": message})


class Prober:
    """Wakes lazy workers."""

    def __init__(self) -> None:
        self._probes: dict[WorkerEntry, _Probe] = {}
        self._by_packet: dict[bytes, _Probe] = {}
        self._transports: dict[int, asyncio.DatagramTransport] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Bind a UDP socket for each family that this machine has."""
        loop = asyncio.get_running_loop()
        for version, address in ((4, "0.0.0.0"), (6, "::")):
            try:
                transport, _ = await loop.create_datagram_endpoint(
                    lambda: _Acks(self), local_addr=(address, 0)
                )
            except OSError:
                continue
            self._transports[version] = transport

    async def close(self) -> None:
        """Stop probing."""
        for worker in list(self._probes):
            self.drained(worker)
        for task in self._tasks:
            task.cancel()
        for transport in self._transports.values():
            transport.close()

    def poke(self, worker: WorkerEntry, request_id: str) -> None:
        """This worker has something in its inbox. A probe that is under way serves for it as well."""
        if worker not in self._probes:
            self._probes[worker] = _Probe(self, worker, request_id)

    def drained(self, worker: WorkerEntry) -> None:
        """This worker drained, or is gone: nothing to wake it for."""
        probe = self._probes.pop(worker, None)
        if probe is not None:
            probe.end()

    def acked(self, answer: bytes) -> None:
        """What came back from a worker, over UDP or TCP."""
        probe = self._by_packet.get(answer.strip()[4:]) if answer.startswith(b"ACK:") else None
        if probe is not None:
            probe.acked()

    def track(self, probe: _Probe, packet_id: str) -> None:
        """An ACK with this packet id is for this probe."""
        self._by_packet[packet_id.encode()] = probe

    def untrack(self, packet_id: str) -> None:
        """Nothing is expected for this packet id any more."""
        self._by_packet.pop(packet_id.encode(), None)

    def send_udp(self, ip: str, port: int, packet: bytes) -> None:
        """One datagram; that it cannot be sent is like its being lost."""
        transport = self._transports.get(ipaddress.ip_address(ip).version)
        if transport is None:
            return
        try:
            transport.sendto(packet, (ip, port))
        except OSError as error:
            logger.debug("a probe could not be sent to %s: %s", ip, error, extra={"action": "probe_send"})

    def send_tcp(self, ip: str, port: int, packet: bytes) -> None:
        """The same packet over TCP, in a task of its own."""
        task = asyncio.ensure_future(self._over_tcp(ip, port, packet))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _over_tcp(self, ip: str, port: int, packet: bytes) -> None:
        try:
            self.acked(await asyncio.wait_for(_ask_tcp(ip, port, packet), TCP_SECONDS))
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
            logger.debug("a probe over TCP to %s failed: %s", ip, error, extra={"action": "probe_tcp"})


class _Probe:
    """The probing of one worker, from its first packet to its drain."""

    def __init__(self, prober: Prober, worker: WorkerEntry, request_id: str) -> None:
        self._prober = prober
        self._worker = worker
        self._request_id: str | None = request_id
        self._ip = worker.registration.ip or ""
        self._port = worker.registration.port or 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._packet_id = ""
        self._begin()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._prober.untrack(self._packet_id)

    def acked(self) -> None:
        self.end()
        self._request_id = None
        self._timer = self._loop.call_later(DRAIN_SECONDS, self._begin)

    def _begin(self) -> None:
        self._packet_id = str(uuid.uuid4())
        self._sent = 0
        self._pause = FIRST_PAUSE
        self._packet = pull_signal(self._packet_id, self._request_id)
        self._prober.track(self, self._packet_id)
        self._send()

    def _send(self) -> None:
        if not self._worker.inbox:
            self._prober.drained(self._worker)
            return
        self._prober.send_udp(self._ip, self._port, self._packet)
        self._sent += 1
        if self._sent > UDP_ALONE:
            self._prober.send_tcp(self._ip, self._port, self._packet)
        self._timer = self._loop.call_later(self._pause, self._send)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)


class _Acks(asyncio.DatagramProtocol):
    def __init__(self, prober: Prober) -> None:
        self._prober = prober

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._prober.acked(data)


async def _ask_tcp(ip: str, port: int, packet: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(ip, port)
    try:
        writer.write(packet)
        await writer.drain()
        return await reader.readexactly(len("ACK:") + 36)
    finally:
        writer.close()
