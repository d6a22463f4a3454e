"""Tests the guest itself, without weft: devices, packet loss, and UC after a loss.

Runs in the guest only (tests/rdma/README.md).
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

if os.environ.get("RDMA_GUEST") != "1":
    pytest.skip("only in the guest of `python -m tests.rdma.guest`", allow_module_level=True)

from tests.rdma.conftest import Netem, dropped_packets
from tests.waiting import PATIENCE_S

HERE = Path(__file__).resolve().parent
DEVICES = Path("/sys/class/infiniband")
SYSTEM_PYTHON = "/usr/bin/python3"
MTU_BYTES = 4096


def call(*words: object) -> str:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


@pytest.fixture
def netem() -> Iterator[Netem]:
    """Sets netem parameters for packets that leave rxea."""

    def impose(*words: str) -> None:
        call("tc", "qdisc", "replace", "dev", "va", "root", "netem", "limit", "10000", *words)

    yield impose
    subprocess.run(["tc", "qdisc", "del", "dev", "va", "root"], capture_output=True)


def arrived(messages: int, size_bytes: int) -> list[int]:
    words = call(SYSTEM_PYTHON, HERE / "uc_stream.py", messages, size_bytes).split()
    return [int(word) for word in words]


@pytest.mark.parametrize("device", ["rxea", "rxeb"])
def test_lab__device_is_up_and_speaks_roce_v2(device: str) -> None:
    port = DEVICES / device / "ports" / "1"
    assert port.joinpath("state").read_text().split() == ["4:", "ACTIVE"]
    assert port.joinpath("gid_attrs/types/1").read_text().strip() == "RoCE v2"


def test_lab__modules_for_shaping_are_there() -> None:
    try:
        call("tc", "qdisc", "replace", "dev", "vb", "root", "handle", "1:", "prio")
        call("tc", "qdisc", "add", "dev", "vb", "parent", "1:3", "netem", "delay", "1ms")
        match = ("match", "ip", "dport", "4791", "0xffff", "flowid", "1:3")
        call("tc", "filter", "add", "dev", "vb", "parent", "1:", "protocol", "ip", "u32", *match)
        tbf = ("tbf", "rate", "1gbit", "burst", "100kb", "latency", "10ms")
        call("tc", "qdisc", "replace", "dev", "vb", "parent", "1:1", *tbf)
    finally:
        call("tc", "qdisc", "del", "dev", "vb", "root")


def test_lab__no_loss_unless_asked_for(netem: Netem) -> None:
    netem("loss", "0%")
    assert arrived(300, 4 * MTU_BYTES) == list(range(300))


def test_lab__netem_drops_roce_packets(netem: Netem) -> None:
    netem("loss", "5%")
    numbers = arrived(600, MTU_BYTES)
    lost = 600 - len(numbers)
    assert numbers == sorted(set(numbers))
    assert lost == dropped_packets("va")
    assert 5 <= lost <= 80


def test_lab__uc_outlives_a_message_that_is_cut_short(netem: Netem) -> None:
    netem("loss", "2%")
    numbers = arrived(600, 4 * MTU_BYTES)
    lost = 600 - len(numbers)
    assert numbers == sorted(set(numbers))
    # A lost packet must not cause the loss of any message but its own.
    assert 10 <= lost <= dropped_packets("va")
    assert numbers[-1] >= 570
