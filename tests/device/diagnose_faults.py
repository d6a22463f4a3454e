"""Diagnoses real training with faults: PyTorch DDP, FSDP, a pipeline and GPT-2 over weft.

Usage: python -m tests.device.diagnose_faults JSON [TRACES [CASE...]]. TRACES: a folder for archives
of traces whose verdict was wrong. CASE: only these, as ddp-absent, or a whole job, as gpt2-ddp.
Needs DuckDB, the GPT-2 jobs transformers. CHECK_GPUS: how many GPUs there are, by default two.
CHECK_RANKS: how many ranks, by default as many, but four at least. Ends with 1 if a verdict is
wrong.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.diagnose import of_finding
from bench.lib.common import document
from bench.nccl import driver, free_port, weft
from transport.cli.output import write_json
from transport.diagnose import Settings, diagnose, settled_ns
from transport.trace import open_store

GPUS = int(os.environ.get("CHECK_GPUS", "2"))
RANKS = int(os.environ.get("CHECK_RANKS", max(4, GPUS)))
HEALTHY = 60  # iterations before a fault
FAULTY_S = 4.0  # at least; longer where iterations are long
ARCHIVES_MAX = 6
UNEXPLAINED = "slower but unexplained"
VERDICTS = {
    "healthy": "healthy",
    "straggler": "non_communication_slow",
    "late calls": "non_communication_slow",
    "periodic": "non_communication_slow",
    "late in one collective": "non_communication_slow",
    "all late": UNEXPLAINED,
    "absent": "non_communication_hang",
    "stopped": "non_communication_hang",
    "killed": "crash",
    "wrong call": "mismatch",
}
# Which jobs a fault is made in; a fault that is not named here: in all jobs but GPT-2.
GPT2 = ("gpt2-ddp", "gpt2-fsdp")
JOBS = ("ddp", "fsdp", "pipeline", *GPT2)
ONLY_IN = {
    "wrong call": ("ddp",),
    "periodic": GPT2,
    "late in one collective": GPT2,
    "all late": GPT2,
} | dict.fromkeys(("healthy", "straggler", "stopped", "killed"), JOBS)


@dataclass(frozen=True)
class Case:
    job: str
    fault: str
    rank: int

    @property
    def name(self) -> str:
        return f"{self.job}-{self.fault}-{self.rank}".replace(" ", "_")


def cases() -> list[Case]:
    made = []
    for at, job in enumerate(JOBS):
        faults = [one for one in VERDICTS if job in ONLY_IN.get(one, JOBS[:3])]
        made += [Case(job, fault, (at + turn) % RANKS) for turn, fault in enumerate(faults)]
    return made


Ranks = list[subprocess.Popen[str]]


def start(case: Case, folder: Path, stack: ExitStack) -> tuple[Ranks, float]:
    """Starts the ranks and waits until the fault begins; also: how many seconds to trace it for."""
    base = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "WEFT_"))}
    base |= weft() | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(RANKS),
        "WEFT_TRACE": str(folder),
        "NCCL_SOCKET_IFNAME": "lo",
        "FAULT": case.fault,
        "FAULT_RANK": "all" if case.fault == "all late" else str(case.rank),
        "FAULT_AT": str(HEALTHY),
    }
    processes = []
    for rank in range(RANKS):
        mine = {"RANK": str(rank), "CHECK_GPU": str(rank % GPUS), "NCCL_HOSTID": f"host{rank}"}
        one = subprocess.Popen(
            [sys.executable, "-m", "tests.device.diagnose_rank", case.job, "180"],
            env=base | mine,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.callback(one.wait)
        stack.callback(one.kill)
        processes.append(one)
    for one in processes:
        assert one.stdout is not None
        if one.stdout.readline().strip() != "RUNNING":
            raise RuntimeError(f"{case.name}: a rank failed: {one.communicate()[1][-800:]}")
    began = time.monotonic()
    faulty = processes[case.rank]
    assert faulty.stdout is not None
    if faulty.stdout.readline().strip() != "FAULTY":
        raise RuntimeError(f"{case.name}: the rank ended: {faulty.communicate()[1][-800:]}")
    return processes, max(FAULTY_S, time.monotonic() - began)


def traced(case: Case, folder: Path) -> dict[str, Any]:
    """Diagnoses the job with its fault while it runs; leaves its trace in the folder."""
    with ExitStack() as stack:
        live = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processes, faulty_s = start(case, live, stack)
        if case.fault in ("stopped", "killed"):
            number = signal.SIGSTOP if case.fault == "stopped" else signal.SIGKILL
            os.kill(processes[case.rank].pid, number)
        time.sleep(faulty_s)
        shutil.copytree(live, folder, dirs_exist_ok=True)
        return judged(case, live)


def judged(case: Case, folder: Path) -> dict[str, Any]:
    now_ns = settled_ns(folder)
    with open_store(folder, until_ns=now_ns) as store:
        found = diagnose(store, Settings(now_ns=now_ns))
        rows = store.rows("SELECT count(*) FROM operations")
    certain = [one for one in found.findings if one.certain]
    said = of_finding(certain[0]) if certain else (str(found.answer.value), "", -1)
    wanted = VERDICTS[case.fault]
    right = said[0] == wanted and (not certain or said[2] == case.rank)
    return {
        "job": case.job,
        "fault": case.fault,
        "rank": case.rank,
        "verdict": wanted,
        "said": " ".join(map(str, said)),
        "right": right,
        "iterations": found.iterations,
        "iteration_ns": found.iteration_ns,
        "operations": rows[0][0],
        "evidence": [one.evidence for one in found.findings[:3]],
    }


def main() -> None:
    archives = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    rows, kept = [], 0
    for case in cases():
        if sys.argv[3:] and not {case.job, case.name.rpartition("-")[0]} & set(sys.argv[3:]):
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            try:
                rows.append(traced(case, folder))
            except Exception as error:  # one failed case must not cost the others
                rows.append(
                    {
                        "job": case.job,
                        "fault": case.fault,
                        "right": False,
                        "said": f"failed: {error!r}"[:900],
                    }
                )
            if archives is not None and not rows[-1]["right"] and kept < ARCHIVES_MAX:
                kept += 1
                with tarfile.open(archives / f"{case.name}.tar.gz", "w:gz") as archive:
                    archive.add(folder, arcname=case.name)
        print(case.name, rows[-1]["said"], flush=True)
    facts = {"driver": driver(), "gpus": GPUS, "ranks": RANKS, "local": weft()["WEFT_LOCAL"]}
    write_json(document("diagnose_faults", rows, **facts), sys.argv[1])
    right = sum(bool(row["right"]) for row in rows)
    print(right, "of", len(rows), "verdicts are right")
    sys.exit(0 if right == len(rows) else 1)


if __name__ == "__main__":
    main()
