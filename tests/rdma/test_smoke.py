"""Decides in a minute that queue pairs carry messages: transports, loss, mending, old packets.

Both ends live in one process: starting another takes longer here than what it would do. Runs in the
guest only (tests/rdma/README.md).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

if os.environ.get("RDMA_GUEST") != "1":
    pytest.skip("only in the guest of `python -m tests.rdma.guest`", allow_module_level=True)

from tests.rdma.conftest import Netem
from tests.rdma.transfer import Contents, sizes
from transport import Endpoint, rdma
from transport.connection import Connection

PATIENCE_S = 60.0
ROCE_PORT = 4791
ETHERNET_BYTES, IP_BYTES = 14, 20
MESSAGES, MOST_BYTES = 60, 64 << 10

Ends = tuple[Endpoint, Connection, Endpoint, Connection]


@contextmanager
def ends(mode: str, **knobs: str | float) -> Iterator[Ends]:
    """A receiver on rxea, a sender on rxeb."""
    common: dict[str, str | float] = {"datapath": "verbs", "rdma_mode": mode, "engines": 1}
    common |= {"rdma_slots": 512} | knobs
    with (
        Endpoint(rdma_devices="rxea", **common) as here,
        Endpoint(rdma_devices="rxeb", **common) as there,
        here.listen() as listener,
        there.connect(listener.handle) as sending,
        listener.accept(timeout_s=PATIENCE_S) as receiving,
    ):
        yield here, receiving, there, sending


def carry(receiving: Connection, sending: Connection, seed: int = 1) -> int:
    """How many of the messages were not what was sent."""
    contents, wrong = Contents(), 0
    expected = sizes(MESSAGES, MOST_BYTES, seed)
    memory = [np.zeros(MOST_BYTES, np.uint8) for _ in expected]
    receives = [receiving.irecv_into(buffer.data) for buffer in memory]
    sends = [sending.isend(contents.of(i, size).data) for i, size in enumerate(expected)]
    for number, handle in enumerate(receives):
        got = handle.wait(timeout_s=PATIENCE_S)
        same = np.array_equal(memory[number][:got], contents.of(number, expected[number]))
        wrong += got != expected[number] or not same
    for handle in sends:
        handle.wait(timeout_s=PATIENCE_S)
    return wrong


@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_smoke__messages_arrive_whole(mode: str) -> None:
    with ends(mode) as (_, receiving, _, sending):
        assert carry(receiving, sending) == 0
        # Some sixty bursts over eight paths: one path may see none.
        assert sum(path.bytes_sent > 0 for path in sending.counters().paths) >= 6


@pytest.mark.parametrize("mode", ["uc", "ud"])
def test_smoke__loss_is_repaired(netem: Netem, mode: str) -> None:
    netem("loss", "10%")  # of some 120 segments: none lost is one run in 300,000
    with ends(mode) as (_, receiving, _, sending):
        assert carry(receiving, sending) == 0
        assert sending.counters().segments_resent > 0


@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_smoke__queue_pairs_in_error_are_mended(mode: str) -> None:
    with ends(mode, fault_qp_error=0.1) as (_, receiving, there, sending):
        # How many bursts a message takes depends on the host's speed: until some were hit.
        for seed in range(1, 30):
            assert carry(receiving, sending, seed) == 0
            counters = there.counters()
            if counters.paths_broken > 3 and counters.paths_mended > 0:
                return
        pytest.fail(f"{counters.paths_broken} broken, {counters.paths_mended} mended")


class Replayer:
    """What crosses the veth pair, to be sent once more: RoCE v2 data and all."""

    def __init__(self) -> None:
        any_kind = socket.htons(0x0003)
        self.tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, any_kind)
        self.tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self.tap.bind(("va", 0))
        self.tap.setblocking(False)

    def captured(self) -> list[bytes]:
        """RoCE frames that came to rxea so far."""
        frames: list[bytes] = []
        while True:
            try:
                frame, where = self.tap.recvfrom(65_536)
            except BlockingIOError:
                return frames
            udp = ETHERNET_BYTES + IP_BYTES
            is_roce = frame[udp + 2 : udp + 4] == ROCE_PORT.to_bytes(2, "big")
            if where[2] != socket.PACKET_OUTGOING and is_roce:
                frames.append(frame)

    def replay(self, frames: list[bytes]) -> None:
        """From the other end, so that rxea takes them in."""
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as out:
            out.bind(("vb", 0))
            for frame in frames:
                out.send(frame)


@pytest.mark.parametrize("mode", ["uc", "ud"])
def test_smoke__old_packets_change_no_buffer(mode: str) -> None:
    """P-1: whole messages are replayed after their buffers were given back and used anew."""
    with ExitStack() as resources, ends(mode) as (_, receiving, _, sending):
        replayer = Replayer()
        resources.callback(replayer.tap.close)
        payload = np.full(64 << 10, 0x11, np.uint8)
        buffer = np.zeros(64 << 10, np.uint8)
        for _ in range(4):
            receive = receiving.irecv_into(buffer.data)
            sending.send(payload.data)
            assert receive.wait(timeout_s=PATIENCE_S) == len(payload)
        old = replayer.captured()
        assert len(old) > 40
        buffer[:] = 0x5A  # it is its owner's again
        replayer.replay(old)
        # The same buffer receives while old packets for it are still coming.
        receive = receiving.irecv_into(buffer.data)
        replayer.replay(old)
        assert (buffer == 0x5A).all()
        sending.send(np.full(64 << 10, 0x22, np.uint8).data)
        replayer.replay(old)
        assert receive.wait(timeout_s=PATIENCE_S) == len(buffer)
        assert (buffer == 0x22).all()
        assert carry(receiving, sending) == 0
        assert receiving.counters().segments_duplicate > 0
        assert (buffer == 0x22).all()


def test_smoke__a_peer_that_is_gone_is_an_error() -> None:
    from transport.errors import WeftError

    with ends("uc", peer_silence_ns=2_000_000_000) as (_, receiving, there, sending):
        handle = receiving.irecv_into(bytearray(100))
        there.close()
        with pytest.raises(WeftError):
            handle.wait(timeout_s=PATIENCE_S)
        assert sending is not None


def test_smoke__doctor_names_devices_gids_and_modes() -> None:
    from transport.cli.doctor import check_verbs

    found = check_verbs()
    for word in ("rxea:1", "rxeb:1", "192.0.2.1 RoCE v2", "192.0.2.2 RoCE v2", "UC RC UD"):
        assert word in found.found
    assert [port.name for port in rdma.ports()] == ["rxea:1", "rxeb:1"]
