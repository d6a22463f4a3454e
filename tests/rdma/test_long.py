"""Tests that ten thousand messages of up to 4 MB per case arrive intact and nothing hangs.

It runs in the guest, with RDMA_LONG=1. Each case appends a line to build/rdma/share/long.jsonl when
it ends, also after a failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

if os.environ.get("RDMA_GUEST") != "1":
    pytest.skip("only in the guest of `python -m tests.rdma.guest`", allow_module_level=True)
if os.environ.get("RDMA_LONG") != "1":
    pytest.skip("takes minutes a case: set RDMA_LONG=1 to run it", allow_module_level=True)

from tests.rdma.conftest import Netem, dropped_packets
from tests.rdma.transfer import exchange

MESSAGES = int(os.environ.get("RDMA_MESSAGES", "10000"))
MOST_BYTES = 4 << 20
RESULTS = Path(os.environ["RDMA_GUEST_SHARE"]) / "long.jsonl"
# Far longer than any run takes. A hang ends sooner: an end fails after 300 s without a message.
PATIENCE_S = 600 + MESSAGES

MIXED = "delay 2ms 1ms reorder 25% 50% duplicate 2% loss 0.5%"
CASES = {
    "uc_1": "loss 1%",
    "ud_1": "loss 1%",
    "rc_1": "loss 1%",
    "uc_5": "loss 5%",
    "uc_0": "",
    "ud_5": "loss 5%",
    "ud_0": "",
    "rc_0": "",
    "uc_mixed": MIXED,
    "ud_mixed": MIXED,
    "uc_direct": "loss 1%",
    "rc_direct": "loss 1%",
}


def note(line: dict[str, Any]) -> None:
    with RESULTS.open("a") as results:
        results.write(json.dumps(line) + "\n")
    print(json.dumps(line))


@pytest.mark.parametrize("case", CASES)
def test_long(netem: Netem, case: str) -> None:
    mode, network = case.split("_")[0], CASES[case]
    if network:
        netem(*network.split())
    begun_s = time.monotonic()
    placement = "direct" if case.endswith("direct") else "slots"
    line: dict[str, Any] = {"mode": mode, "placement": placement, "network": network}
    line["messages"] = MESSAGES
    try:
        found = exchange(
            mode, MESSAGES, MOST_BYTES, timeout_s=PATIENCE_S, WEFT_RDMA=f"placement={placement}"
        )
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        note(line | {"seconds": time.monotonic() - begun_s, "hung": 1, "error": str(error)[:200]})
        raise
    dropped = {end: dropped_packets(end) for end in ("vb", "va")} if network else {}
    # Where netem duplicates packets, use netem's count: the receiver cannot tell them from resends.
    lost = dropped["vb"] if network == MIXED else found.lost
    engine = found.sender["engine"]
    note(
        line
        | {"bytes": found.receiver["bytes"], "seconds": round(found.receiver["seconds"], 1)}
        | {"mb_per_s": round(found.mbytes_per_s, 2), "segments": found.sent}
        | {"resent": found.resent, "lost": lost, "netem_dropped": dropped}
        | {"duplicates": found.duplicates, "send_errors": engine["host_drops"]}
        | {"paths_broken": engine["paths_broken"], "corrupt": found.wrong, "hung": 0}
    )
    assert found.wrong == 0
    if mode != "rc":  # with RC, the device resends
        assert found.resent <= found.resends_allowed(lost)
