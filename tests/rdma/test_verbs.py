"""Tests that messages arrive intact over Soft-RoCE queue pairs, also with loss and faults.

test_long.py is the long version. Runs in the guest only (tests/rdma/README.md).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

if os.environ.get("RDMA_GUEST") != "1":
    pytest.skip("only in the guest of `python -m tests.rdma.guest`", allow_module_level=True)

from tests.environment import clean_environment
from tests.rdma.conftest import Netem, dropped_packets
from tests.rdma.transfer import exchange

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = 120
MOST_BYTES = 128 << 10
# The messages have about 2,000 segments, of which 20 are lost at 1 %: enough for stable results.
LOSSY_MESSAGES, LOSSY_MOST_BYTES = 240, 512 << 10
PATIENCE_S = 120


@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_verbs__messages_arrive_whole(mode: str) -> None:
    found = exchange(mode, MESSAGES, MOST_BYTES, timeout_s=PATIENCE_S)
    assert found.wrong == 0
    used = [path for path in found.sender["paths"] if path["bytes_sent"] > 0]
    assert len(used) >= 14  # about 100 bursts may miss one or two of 16 paths
    print(f"{mode}: {found.mbytes_per_s:.1f} MB/s, {found.resent} resent")


@pytest.mark.parametrize("mode", ["uc", "ud"])
@pytest.mark.parametrize("loss", ["1%", "5%"])
def test_verbs__loss_is_repaired(netem: Netem, mode: str, loss: str) -> None:
    netem("loss", loss)
    found = exchange(mode, LOSSY_MESSAGES, LOSSY_MOST_BYTES, timeout_s=PATIENCE_S)
    dropped = dropped_packets("vb")
    print(
        f"{mode} {loss}: {found.mbytes_per_s:.1f} MB/s, of {found.sent} segments {found.resent}"
        f" resent, {found.lost} lost; netem dropped {dropped}"
    )
    assert found.wrong == 0
    # netem's count includes probes. If the host dropped packets, too, found.lost would be larger.
    assert 0 < found.lost <= dropped
    assert found.lost <= found.resent <= found.resends_allowed(found.lost)


def test_verbs__rc_under_loss_is_the_nic_s_business(netem: Netem) -> None:
    netem("loss", "1%")
    found = exchange("rc", MESSAGES, MOST_BYTES, timeout_s=PATIENCE_S)
    assert found.wrong == 0
    print(f"rc 1%: {found.mbytes_per_s:.1f} MB/s")


@pytest.mark.parametrize("mode", ["uc", "ud"])
def test_verbs__delay_reordering_and_duplicates_change_nothing(netem: Netem, mode: str) -> None:
    netem(*["delay", "2ms", "1ms", "reorder", "25%", "50%", "duplicate", "2%", "loss", "0.5%"])
    found = exchange(mode, MESSAGES, MOST_BYTES, timeout_s=PATIENCE_S)
    assert found.wrong == 0
    duplicates = found.receiver["connection"]["segments_duplicate"]
    assert duplicates > 0
    print(f"{mode}: {found.resent} resent, {duplicates} came twice")


@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_verbs__a_queue_pair_in_error_is_reestablished(mode: str) -> None:
    found = exchange(mode, MESSAGES, MOST_BYTES, timeout_s=PATIENCE_S, WEFT_FAULT="qp_error=0.1")
    assert found.wrong == 0
    engine = found.sender["engine"]
    assert engine["paths_broken"] > 0
    assert engine["paths_reestablished"] > 0
    print(f"{mode}: {engine['paths_reestablished']} of {engine['paths_broken']} re-established")


def test_verbs__long_segments_are_cut_by_the_nic() -> None:
    found = exchange("uc", MESSAGES, MOST_BYTES, timeout_s=PATIENCE_S, WEFT_SEGMENT_BYTES="32768")
    assert found.wrong == 0


@pytest.mark.parametrize("mode", ["uc", "rc"])
def test_verbs__direct__late_writes_change_nothing(netem: Netem, mode: str) -> None:
    network = ["delay", "2ms", "1ms", "reorder", "25%", "50%", "duplicate", "2%", "loss", "1%"]
    netem(*(network if mode == "uc" else ["loss", "1%"]))
    found = exchange(mode, MESSAGES, MOST_BYTES, timeout_s=PATIENCE_S, WEFT_RDMA="placement=direct")
    assert found.wrong == 0
    engine = found.sender["engine"]
    assert engine["payload_written_bytes"] > 0
    assert engine["payload_copied_bytes"] == 0
    print(f"{mode} direct: {found.mbytes_per_s:.1f} MB/s, {found.resent} resent")


@pytest.mark.parametrize("placement", ["slots", "direct"])
@pytest.mark.parametrize("version", ["8", "12"])
def test_plugin__over_queue_pairs(version: str, placement: str) -> None:
    tree = ROOT / "build" / "release"
    clean = clean_environment()
    clean |= {"WEFT_DATAPATH": "verbs", "WEFT_RDMA_DEVICES": "rxea", "WEFT_ENGINES": "1"}
    clean |= {"WEFT_RDMA": f"placement={placement}"}
    words = [tree / "weft_plugin_host", tree / "libnccl-net-weft.so", version, "2", "transfer"]
    # The limit is long, because 160 MB in each direction take minutes on a busy host.
    subprocess.run([*map(str, words)], env=clean, check=True, timeout=5 * PATIENCE_S)
