"""Decides that nothing is damaged and nothing hangs in ten thousand messages of up to 4 MB a case.

Runs in the guest and only when RDMA_LONG=1 asks for it; never stops at the first bad case: each has
a line of its own in build/rdma/share/long.jsonl, written when it ends, however it ends.
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
    pytest.skip("minutes a case: RDMA_LONG=1 runs it", allow_module_level=True)

from tests.rdma.conftest import Netem, dropped_packets
from tests.rdma.transfer import exchange

MESSAGES = int(os.environ.get("RDMA_MESSAGES", "10000"))
MOST_BYTES = 4 << 20
RESULTS = Path(os.environ["RDMA_GUEST_SHARE"]) / "long.jsonl"
# Far slower than any run was. What hangs the ends notice: no message for 300 s is an error there.
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
            mode, MESSAGES, MOST_BYTES, timeout_s=PATIENCE_S, WEFT_RDMA_PLACEMENT=placement
        )
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        note(line | {"seconds": time.monotonic() - begun_s, "hung": 1, "error": str(error)[:200]})
        raise
    dropped = {end: dropped_packets(end) for end in ("vb", "va")} if network else {}
    # Of what netem doubles the receiver cannot say whose copy it was: there netem's own count.
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
    if mode != "rc":  # whose lost packets the device sends again: what we resend there is our haste
        assert found.resent <= found.resends_allowed(lost)
