"""Tests messages between two processes over queue pairs of softverbs, with packet faults.

They need no device, privileges or virtual machine. tests/rdma has the same tests over Soft-RoCE.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.softverbs.transfer import LIBRARY, PATIENCE_S, ROOT, contents, exchange, start, under
from transport import Connection, Endpoint, WeftError
from transport.endpoint.connection import Request
from transport.errors import ConnectionLostError, TimedOutError

MESSAGES, MOST_BYTES = 120, 200_001
ODD = {"REORDER": "0.02", "LATE": "0.02", "LATE_NS_MAX": "10000000", "STALL": "0.02"}
WEATHERS = [
    {},
    ODD,
    ODD | {"LOSS": "0.01", "DUPLICATE": "0.01"},
    ODD | {"LOSS": "0.05", "DUPLICATE": "0.05"},
]


@pytest.mark.parametrize(
    ("mode", "placement"),
    [("uc", "slots"), ("uc", "direct"), ("rc", "slots"), ("rc", "direct"), ("ud", "slots")],
)
def test_softverbs__every_byte_arrives_and_none_comes_late(mode: str, placement: str) -> None:
    plans = [(MESSAGES, MOST_BYTES, seed) for seed in range(len(WEATHERS))]
    knobs = {"WEFT_RDMA": f"mode={mode},placement={placement}"}
    for weather, (received, sent) in zip(WEATHERS, exchange(plans, WEATHERS, **knobs), strict=True):
        assert (received["wrong"], received["touched"]) == (0, 0), weather
        both = {
            name: sent["provider"][name] + received["provider"][name] for name in sent["provider"]
        }
        assert both["sent"] > 0
        for variable, count in [("LOSS", "lost"), ("LATE", "late"), ("DUPLICATE", "duplicated")]:
            assert (both[count] > 0) == (variable in weather), (weather, both)
        written = sent["engine"]["payload_written_bytes"]
        assert (written > 0) == (placement == "direct")
        if mode != "rc" and "LOSS" in weather:
            assert sent["connection"]["segments_resent"] > 0


# The NIC sends from GPU memory, and messages are received through pinned memory; the CPU must not
# access GPU memory.
@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_softverbs__memory_of_a_gpu(mode: str, pytestconfig: pytest.Config) -> None:
    fake = Path(pytestconfig.getoption("--build-tree")).resolve() / "libweft_fake_cuda.so"
    knobs = {"WEFT_RDMA": f"mode={mode}", "TRANSFER_ARRAYS": "fake", "FAKE_CUDA": str(fake)}
    plans = [(40, MOST_BYTES, 8)] * 2
    for received, sent in exchange(plans, [{}, WEATHERS[-1]], **knobs):
        assert (received["wrong"], received["touched"]) == (0, 0)
        assert sent["engine"]["memory_by_dmabuf"] > 0
        # Only the sender's last message is copied, as it is in host memory. Resends copy it again.
        copied = sent["engine"]["payload_copied_bytes"]
        assert copied % len(b"yes") == 0
        assert copied < 100
    # For payload checksums the CPU must read the payload, so that registered memory is staged, too.
    knobs |= {"WEFT_PAYLOAD_CRC": "on"}
    [(received, sent)] = exchange(plans[:1], [ODD], **knobs)
    assert (received["wrong"], received["touched"]) == (0, 0)
    assert sent["engine"]["payload_copied_bytes"] > MOST_BYTES


@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_softverbs__queue_pairs_that_fail_are_reestablished(mode: str) -> None:
    knobs = {"WEFT_RDMA": f"mode={mode},placement=direct", "WEFT_FAULT": "qp_error=0.02"}
    [(received, sent)] = exchange([(60, MOST_BYTES, 5)], [ODD], **knobs)
    assert (received["wrong"], received["touched"]) == (0, 0)
    assert sent["engine"]["paths_reestablished"] > 0


def test_softverbs__paths_lie_on_both_of_two_ports() -> None:
    weather = {"DEVICES": "2", "MTU_BYTES": "1024"}
    [(received, _)] = exchange([(20, 50_001, 6)], [weather], WEFT_RDMA_DEVICES="soft0+soft1")
    assert (received["wrong"], received["touched"]) == (0, 0)


@pytest.mark.parametrize("mode", ["uc", "rc"])
def test_softverbs__many_packets_a_segment(mode: str) -> None:
    weather = {"MTU_BYTES": "512", "LOSS": "0.01"}
    knobs = {"WEFT_SEGMENT_BYTES": "4096", "WEFT_RDMA": f"mode={mode}"}
    [(received, _)] = exchange([(80, 50_001, 7)], [weather], **knobs)
    assert (received["wrong"], received["touched"]) == (0, 0)


# With an MTU of 1,500 a RoCE packet holds 1,024 bytes, fewer than an advert of many receives has.
@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_softverbs__control_packets_longer_than_a_datagram(mode: str) -> None:
    knobs = {"datapath": "verbs", "rdma_library": str(LIBRARY), "rdma": f"mode={mode}"}
    with (
        under({"MTU_BYTES": "1024"}),
        Endpoint(**knobs, engines=1, log_level="error") as here,
        Endpoint(**knobs, engines=1, log_level="error") as there,
        here.listen(open=True) as listener,
        there.connect(listener.handle) as sending,
        listener.accept(timeout_s=PATIENCE_S) as receiving,
    ):
        memory = [bytearray(20_001) for _ in range(100)]
        receives = [receiving.irecv_into(buffer) for buffer in memory]
        sends = [sending.isend(contents(i, 20_001)) for i in range(len(memory))]
        for number, handle in enumerate(receives):
            assert handle.wait(timeout_s=PATIENCE_S) == 20_001
            assert memory[number] == contents(number, 20_001)
        for handle in sends:
            handle.wait(timeout_s=PATIENCE_S)


def take_all(connection: Connection, handles: list[Request]) -> None:
    """Waits for more messages than the peer sent before it died, so a wait must raise an error."""
    for handle in handles:
        handle.wait(timeout_s=PATIENCE_S)
    for _ in range(20):
        connection.recv(MOST_BYTES, timeout_s=PATIENCE_S)


@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_softverbs__a_peer_that_is_killed_is_an_error(mode: str) -> None:
    words = ["[[2000, 200001, 1]]", "[{}]"]
    knobs = {"datapath": "verbs", "rdma_library": str(LIBRARY), "rdma": f"mode={mode}"}
    with (
        Endpoint(
            **knobs, engines=1, paths=4, peer_timeout={"silence": "2s"}, log_level="error"
        ) as here,
        here.listen(open=True) as listener,
        start("sender", words, {"WEFT_RDMA": f"mode={mode}"}) as peer,
    ):
        try:
            assert peer.stdin is not None
            peer.stdin.write(f"{listener.port}\n")
            peer.stdin.flush()
            with listener.accept(timeout_s=PATIENCE_S) as connection:
                memory = [bytearray(MOST_BYTES) for _ in range(20)]
                handles = [connection.irecv_into(buffer) for buffer in memory]
                handles[3].wait(timeout_s=PATIENCE_S)
                peer.kill()
                with pytest.raises(ConnectionLostError) as caught:
                    take_all(connection, handles)
                assert not isinstance(caught.value, TimedOutError)
        finally:
            peer.kill()


def test_softverbs__says_that_it_is_no_nic() -> None:
    with Endpoint(datapath="verbs", rdma_library=str(LIBRARY), log_level="error") as endpoint:
        assert "verbs UC over softverbs, no NIC" in endpoint.summary()


@pytest.mark.parametrize(
    ("knobs", "variables", "words"),
    [
        ({"rdma_library": "no_such_file.so"}, {}, ["WEFT_RDMA_LIBRARY=no_such", "like libibverbs"]),
        ({"rdma_library": "libc.so.6"}, {}, ["WEFT_RDMA_LIBRARY=libc.so.6", "lacks"]),
        ({}, {"SOFTVERBS_LOSS": "much"}, ["SOFTVERBS_LOSS=much", "0..0.9"]),
        ({}, {"SOFTVERBS_LOS": "0.1"}, ["SOFTVERBS_LOS is not a variable", "SOFTVERBS_LOSS"]),
        ({"rdma_devices": "soft1"}, {}, ["'soft1'", "soft0:1"]),
        (
            {"rdma": "mode=ud"},
            {"SOFTVERBS_MTU_BYTES": "256"},
            ["UD needs packets of 512 bytes", "soft0", "have 256", "WEFT_RDMA=mtu"],
        ),
    ],
)
def test_softverbs__what_is_set_wrongly_is_named(
    knobs: dict[str, str], variables: dict[str, str], words: list[str]
) -> None:
    settings = {"datapath": "verbs", "rdma_library": str(LIBRARY)} | knobs
    done = subprocess.run(
        [sys.executable, "-c", f"import transport; transport.Endpoint(**{settings})"],
        cwd=ROOT,
        env=dict(os.environ) | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert all(word in last for word in words), done.stderr
    assert WeftError.__name__ != last.partition(":")[0]
