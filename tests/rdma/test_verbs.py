"""Decides that the transport keeps its word over real queue pairs: whole messages whatever is lost.

Runs in the guest only (tests/rdma/README.md). RDMA_LONG=1 makes it the long part: 10^4 messages of
up to 4 MB in each case.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

if os.environ.get("RDMA_GUEST") != "1":
    pytest.skip("only in the guest of `python -m tests.rdma.guest`", allow_module_level=True)

from tests.rdma.conftest import Netem
from tests.rdma.transfer import exchange

ROOT = Path(__file__).resolve().parents[2]
LONG = os.environ.get("RDMA_LONG") == "1"
MESSAGES = 10_000 if LONG else 120
MOST_BYTES = 4 << 20 if LONG else 128 << 10
PATIENCE_S = 3_000 if LONG else 120


@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_verbs__messages_arrive_whole(mode: str) -> None:
    found = exchange(mode, MESSAGES, MOST_BYTES, timeout_s=PATIENCE_S)
    assert found.wrong == 0
    used = [path for path in found.sender["paths"] if path["bytes_sent"] > 0]
    assert len(used) >= 14  # some hundred bursts: a path or two may see none
    print(f"{mode}: {found.mbytes_per_s:.1f} MB/s, {found.resent} resent")


@pytest.mark.parametrize("mode", ["uc", "ud"])
@pytest.mark.parametrize("loss", ["1%", "5%"])
def test_verbs__loss_is_repaired(netem: Netem, mode: str, loss: str) -> None:
    netem("loss", loss)
    found = exchange(mode, MESSAGES, MOST_BYTES, timeout_s=PATIENCE_S)
    assert found.wrong == 0
    assert found.resent > 0
    print(f"{mode} {loss}: {found.mbytes_per_s:.1f} MB/s, {found.resent} resent")


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
def test_verbs__a_queue_pair_in_error_is_mended(mode: str) -> None:
    found = exchange(mode, MESSAGES, MOST_BYTES, timeout_s=PATIENCE_S, WEFT_FAULT_QP_ERROR="0.1")
    assert found.wrong == 0
    engine = found.sender["engine"]
    assert engine["paths_broken"] > 0
    assert engine["paths_mended"] > 0
    print(f"{mode}: {engine['paths_broken']} broken, {engine['paths_mended']} mended")


def test_verbs__long_segments_are_cut_by_the_nic() -> None:
    found = exchange("uc", MESSAGES, MOST_BYTES, timeout_s=PATIENCE_S, WEFT_SEGMENT_BYTES="32768")
    assert found.wrong == 0


@pytest.mark.parametrize("version", ["8", "12"])
def test_plugin__over_queue_pairs(version: str) -> None:
    tree = ROOT / "build" / "release"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_")}
    clean |= {"WEFT_DATAPATH": "verbs", "WEFT_RDMA_DEVICES": "rxea", "WEFT_ENGINES": "1"}
    words = [tree / "weft_plugin_host", tree / "libnccl-net-weft.so", version, "2", "transfer"]
    subprocess.run([*map(str, words)], env=clean, check=True, timeout=PATIENCE_S)


def refusal(**knobs: str) -> str:
    """What opening an endpoint says."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_")}
    program = "from transport import Endpoint; Endpoint().close()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=clean | {"WEFT_DATAPATH": "verbs"} | knobs,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"WEFT_RDMA_DEVICES": "mlx5_9"}, ["mlx5_9", "there is rxea:1, rxeb:1"]),
        ({"WEFT_RDMA_DEVICES": "rxea:1@77"}, ["rxea:1 has no GID 77"]),
        ({"WEFT_RDMA_DEVICES": "rxea:x"}, ["device:port@gid"]),
        ({"WEFT_RDMA_DEVICES": "rxea", "WEFT_FAMILY": "ipv6"}, ["no address"]),
    ],
)
def test_refusals__say_what_to_do(knobs: dict[str, str], words: list[str]) -> None:
    said = refusal(**knobs)
    for word in words:
        assert word in said
