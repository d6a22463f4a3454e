"""Asks the RAS service of a real NCCL about jobs with faults, and checks the verdicts.

Usage: python -m tests.device.ras_states JSON [ANSWERS [STATE...]]. ANSWERS: a folder for what RAS
answered. STATE: only these of healthy, skips (a rank does not call), stopped and killed. Needs
PyTorch with NCCL 2.28 or later, and DuckDB. CHECK_GPUS: how many GPUs there are, by default two;
four ranks share them. Ends with 1 if a verdict is wrong.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.diagnose import of_finding
from bench.lib.common import document
from bench.nccl import driver, free_port
from transport.cli.output import write_json
from transport.diagnose import Settings
from transport.diagnose.sources import diagnosed
from transport.host import nccl_ras
from transport.trace.beside import statuses_of

GPUS = int(os.environ.get("CHECK_GPUS", "2"))
RANKS = 4
FAULT_AT = 300  # steps before a fault
UNRESPONSIVE_S = 8.0  # RAS takes 5 s to call a process unresponsive
APART_S = 8.0
# State -> the rank with the fault, and the verdict.
STATES = {
    "healthy": (-1, "not judged"),
    "skips": (1, "non_communication_hang"),
    "stopped": (2, "non_communication_hang"),
    "killed": (3, "crash"),
}
# PyTorch must not end ranks that wait.
PATIENT = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "3600",
}


def start(state: str, port: int, stack: ExitStack) -> list[subprocess.Popen[str]]:
    """Starts the ranks and waits until the fault begins. port: where RAS is to listen."""
    base = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "WEFT_"))}
    base |= PATIENT | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(RANKS),
        "NCCL_RAS_ADDR": f"localhost:{port}",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_DEBUG": "WARN",
        # Ranks that share a GPU have to be of different hosts.
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "FAULT": state,
        "FAULT_RANK": str(STATES[state][0]),
        "FAULT_AT": str(FAULT_AT),
    }
    processes = []
    for rank in range(RANKS):
        mine = {"RANK": str(rank), "CHECK_GPU": str(rank % GPUS), "NCCL_HOSTID": f"host{rank}"}
        one = subprocess.Popen(
            [sys.executable, "-m", "tests.device.ras_rank"],
            env=base | mine,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(one.wait)
        stack.callback(one.kill)
        processes.append(one)
    for word in ("RUNNING", "FAULTY"):
        for rank, one in enumerate(processes):
            assert one.stdout is not None
            # NCCL's warnings go to the same place; the end of the output gives "".
            said = next((line for line in one.stdout if line.strip() == word), "")
            if not said:
                raise RuntimeError(f"{state}: rank {rank} ended before it was {word}")
    return processes


def answers_of(state: str) -> list[str]:
    """What RAS answers, two times, of a job in this state."""
    port = free_port()
    with ExitStack() as stack:
        processes = start(state, port, stack)
        if state in ("stopped", "killed"):
            number = signal.SIGSTOP if state == "stopped" else signal.SIGKILL
            os.kill(processes[STATES[state][0]].pid, number)
        time.sleep(UNRESPONSIVE_S)
        first = nccl_ras.ask("localhost", port)
        time.sleep(APART_S)
        return [first, nccl_ras.ask("localhost", port)]


def judged(state: str, texts: list[str]) -> dict[str, Any]:
    source = statuses_of(texts, state)
    with source.store:
        found = diagnosed([source], Settings())
    certain = [one for one in found.findings if one.certain]
    said = of_finding(certain[0]) if certain else (str(found.answer.value), "", -1)
    rank, wanted = STATES[state]
    return {
        "state": state,
        "rank": rank,
        "verdict": wanted,
        "said": " ".join(map(str, said)),
        "right": said[0] == wanted and said[2] == rank,
        "nccl": source.statuses[-1].version,
        "evidence": [one.evidence for one in found.findings],
        "notes": list(found.notes),
    }


def main() -> None:
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for state in sys.argv[3:] or STATES:
        try:
            texts = answers_of(state)
            if folder is not None:
                (folder / f"ras-{state}.json").write_text("".join(texts))
            rows.append(judged(state, texts))
        except Exception as error:  # one failed state must not cost the others
            rows.append({"state": state, "right": False, "said": f"failed: {error!r}"[:900]})
        print(state, rows[-1]["said"], flush=True)
    write_json(document("ras_states", rows, driver=driver(), gpus=GPUS, ranks=RANKS), sys.argv[1])
    right = sum(bool(row["right"]) for row in rows)
    print(right, "of", len(rows), "verdicts are right")
    sys.exit(0 if right == len(rows) else 1)


if __name__ == "__main__":
    main()
