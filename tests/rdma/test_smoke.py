"""Tests queue pairs in a minute: transports, loss, re-established queue pairs, old packets.

Both ends run in one process, because starting a second takes longer than a test. Runs in the guest
only (tests/rdma/README.md).
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from typing import Any

import pytest

if os.environ.get("RDMA_GUEST") != "1":
    pytest.skip("only in the guest of `python -m tests.rdma.guest`", allow_module_level=True)

from tests.rdma.conftest import Netem
from tests.rdma.pair import PATIENCE_S, paired
from transport import Endpoint
from transport.errors import WeftError
from transport.host import rdma

ROCE_PORT = 4791
ETHERNET_BYTES, IP_BYTES = 14, 20


@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_smoke__messages_arrive_whole(mode: str) -> None:
    # Not the default path policy, which would stay on one path while there is no load.
    with paired(mode, path_policy="round_robin") as pair:
        assert pair.carry() == 0
        assert all(path.bytes_sent > 0 for path in pair.sending.counters().paths)


def test_smoke__long_segments_are_cut_by_the_nic() -> None:
    with paired("uc", segment_bytes=32_768) as pair:
        assert pair.carry() == 0
        assert pair.sending.counters().segments_sent < 80  # it would be 120 with segments of 4 KB


@pytest.mark.parametrize("mode", ["uc", "ud"])
def test_smoke__loss_is_repaired(netem: Netem, mode: str) -> None:
    netem("loss", "10%")  # loses at least one of 120 segments in all but 1 of 300,000 runs
    with paired(mode) as pair:
        assert pair.carry() == 0
        assert pair.sending.counters().segments_resent > 0


@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_smoke__queue_pairs_in_error_are_reestablished(mode: str) -> None:
    with paired(mode, fault={"qp_error": 0.1}) as pair:
        # Repeat until a fault has hit a burst; the number of bursts depends on the host's speed.
        for seed in range(1, 30):
            assert pair.carry(seed) == 0
            counters = pair.there.counters()
            if counters.paths_broken > 3 and counters.paths_reestablished > 0:
                return
        pytest.fail(
            f"{counters.paths_reestablished} of {counters.paths_broken} broken paths work again"
        )


@pytest.mark.parametrize("mode", ["uc", "rc"])
def test_smoke__direct__the_nic_writes_to_where_it_belongs(netem: Netem, mode: str) -> None:
    if mode == "uc":
        netem("loss", "5%")
    with paired(mode, rdma={"placement": "direct"}) as pair:
        assert pair.carry() == 0
        counters = pair.there.counters()
        assert counters.payload_written_bytes > 0
        assert counters.payload_copied_bytes == 0
        assert pair.here.counters().memory_refused == 0


class Replayer:
    """Captures RoCE v2 frames on the veth pair, to replay them later."""

    def __init__(self) -> None:
        any_kind = socket.htons(0x0003)
        self.tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, any_kind)
        self.tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self.tap.bind(("va", 0))
        self.tap.setblocking(False)

    def captured(self) -> list[bytes]:
        """The RoCE frames that rxea has received since the last call."""
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
        """Sends the frames from the other end to rxea."""
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as out:
            out.bind(("vb", 0))
            for frame in frames:
                out.send(frame)


@pytest.mark.parametrize(
    ("mode", "placement"), [("uc", "slots"), ("ud", "slots"), ("uc", "direct")]
)
def test_smoke__old_packets_change_no_buffer(mode: str, placement: str) -> None:
    """P-1: replayed packets of a finished message do not change its reused buffer."""
    with ExitStack() as resources, paired(mode, rdma={"placement": placement}) as pair:
        replayer = Replayer()
        resources.callback(replayer.tap.close)
        size_bytes = 64 << 10
        old_payload, new_payload, paint = (bytes([x]) * size_bytes for x in (0x11, 0x22, 0x5A))
        buffer = bytearray(size_bytes)
        memory = pair.here.register(buffer) if pair.direct else None
        for _ in range(4):
            receive = pair.receiving.irecv_into(buffer, memory=memory)
            pair.sending.send(old_payload)
            assert receive.wait(timeout_s=PATIENCE_S) == size_bytes
        old = replayer.captured()
        assert len(old) > 40
        buffer[:] = paint  # the caller owns the buffer again
        replayer.replay(old)
        # Receive into the same buffer while old packets for it still arrive.
        receive = pair.receiving.irecv_into(buffer, memory=memory)
        replayer.replay(old)
        assert buffer == paint
        pair.sending.send(new_payload)
        replayer.replay(old)
        assert receive.wait(timeout_s=PATIENCE_S) == size_bytes
        assert buffer == new_payload
        assert pair.carry() == 0
        assert pair.receiving.counters().segments_duplicate > 0
        assert buffer == new_payload
        written = pair.there.counters().payload_written_bytes
        assert (written > 0) == pair.direct


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("", ["rxea", "rxeb"]),
        ("rxe", ["rxea", "rxeb"]),
        ("=rxeb", ["rxeb"]),
        ("^rxea", ["rxeb"]),
        ("rxea:1,rxeb:2", ["rxea"]),
    ],
)
def test_smoke__nccls_list_of_devices_counts(
    monkeypatch: pytest.MonkeyPatch, listed: str, names: list[str]
) -> None:
    monkeypatch.setenv("NCCL_IB_HCA", listed)
    with Endpoint(datapath="verbs") as endpoint:
        assert [device.name for device in endpoint.devices] == names
    with Endpoint(datapath="verbs", rdma_devices="rxea") as endpoint:
        assert [device.name for device in endpoint.devices] == ["rxea"]


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("NCCL_IB_HCA", "mlx5", "NCCL_IB_HCA=mlx5 names no active RDMA port"),
        ("NCCL_IB_GID_INDEX", "99", "has no GID 99"),
        ("NCCL_IB_GID_INDEX", "one", "NCCL_IB_GID_INDEX=one is not a number from 0 to 255"),
        ("NCCL_IB_TC", "256", "NCCL_IB_TC=256 is not a number from 0 to 255"),
    ],
)
def test_smoke__a_wrong_variable_of_nccl_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(WeftError, match=said):
        Endpoint(datapath="verbs")


@pytest.mark.parametrize(
    ("knobs", "nccl", "traffic_class"),
    [({}, "104", 104), ({"dscp": 10}, "104", 40), ({"rdma": {"traffic_class": 8}}, "104", 8)],
)
def test_smoke__packets_have_the_traffic_class(
    monkeypatch: pytest.MonkeyPatch, knobs: dict[str, Any], nccl: str, traffic_class: int
) -> None:
    monkeypatch.setenv("NCCL_IB_TC", nccl)
    with ExitStack() as resources, paired("uc", **knobs) as pair:
        replayer = Replayer()
        resources.callback(replayer.tap.close)
        assert pair.carry() == 0
        classes = {frame[ETHERNET_BYTES + 1] for frame in replayer.captured()}
    assert classes == {traffic_class}


def test_smoke__a_peer_that_is_gone_is_an_error() -> None:
    with paired("uc", peer_timeout={"silence": "2s"}) as pair:
        handle = pair.receiving.irecv_into(bytearray(100))
        pair.there.close()
        with pytest.raises(WeftError):
            handle.wait(timeout_s=PATIENCE_S)


def test_smoke__doctor_names_devices_gids_and_modes() -> None:
    from transport.cli.doctor import check_verbs

    found = check_verbs()
    for word in ("rxea:1", "rxeb:1", "192.0.2.1 RoCE v2", "192.0.2.2 RoCE v2", "UC RC UD"):
        assert word in found.found
    assert [port.name for port in rdma.ports()] == ["rxea:1", "rxeb:1"]
