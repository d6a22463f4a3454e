"""Small simulated training jobs with faults, and their traces; a ring of real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result

from tests.waiting import PATIENCE_S
from transport.cli import weft
from transport.diagnose.facts import Facts
from transport.sim.run import run
from transport.sim.scenario import from_tables
from transport.sim.trace import write_trace

RANKS = 32
STEPS = 7
NOW_NS = 1_700_000_000_000_000_000
MOMENTS = ("begin_ns", "arrival_ns", "end_ns", "first_ns", "time_ns")
LASTING = ("latency_ns", "busy_ns", "rtt_ns", "gpu_wait_ns")


def tables(*faults: dict[str, Any], **top: Any) -> dict[str, Any]:
    """A job of 32 ranks on four leaves: tensor parallel in groups of 8, data parallel across."""
    across = {"group_ranks": 8, "across": True, "stream": "data"}
    operations = [
        {"name": "forward", "compute_ns": 300_000},
        {
            "name": "activations",
            "collective": "all_reduce_ring",
            "size_bytes": 500_000,
            "group_ranks": 8,
        },
        {"name": "backward", "compute_ns": 400_000, "after": "activations"},
        {"name": "gradients", "collective": "all_reduce_ring", "size_bytes": 1_000_000, **across},
        {"name": "optimizer", "compute_ns": 50_000, "after": "gradients"},
    ]
    return {
        "limit_ns": 100_000_000,
        "network": {"hosts": RANKS, "hosts_per_leaf": 8, "spines": 4, "queue_bytes": "1 MB"},
        "hosts": {"paths": 8, "segment_bytes": 16_448},
        "policies": {
            "window": "nscc:rtt_ns_min=0,hold_ns=0",
            "path": "power_of_two:burst_bytes=16384",
        },
        "workload": [
            {
                "name": "training",
                "pattern": "steps",
                "repeats": STEPS,
                "launch_ns": 2_000,
                "noise": 0.02,
                "operations": operations,
            }
        ],
        "faults": list(faults),
    } | top


def traced(folder: Path, *faults: dict[str, Any], **top: Any) -> Path:
    """Simulates the job with the faults, and writes its trace into the folder."""
    result = run(from_tables(tables(*faults, **top), file="job"), trace_ns=200_000)
    write_trace(result, folder)
    return folder


def as_real(facts: Facts, times: int = 300) -> Facts:
    """The facts as if all took `times` as long, at times of day as those of real processes."""

    def moved(table: dict[str, Any]) -> dict[str, Any]:
        lasts = {name: table[name] * times for name in LASTING if name in table}
        at = {
            name: np.where(table[name] < 0, -1, table[name] * times + NOW_NS)
            for name in MOMENTS
            if name in table
        }
        return table | lasts | at

    processes = tuple(
        replace(one, first_ns=one.first_ns * times + NOW_NS, last_ns=one.last_ns * times + NOW_NS)
        for one in facts.processes
    )
    names = ("calls", "edges", "losses", "samples", "sent", "downs")
    tables: dict[str, Any] = {name: moved(getattr(facts, name)) for name in names}
    return replace(facts, processes=processes, end_ns=facts.end_ns * times + NOW_NS, **tables)


def invoked(*words: str | Path) -> Result:
    """The result of a command of weft."""
    return CliRunner().invoke(weft, [str(word) for word in words])


def found_by(*words: str | Path) -> dict[str, Any]:
    """The JSON of weft diagnose."""
    done = invoked("diagnose", *words, "--json", "-")
    assert done.output.startswith("{"), done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


RING = """
import os, sys, time
from transport import Endpoint
me = int(os.environ["RANK"])
with Endpoint(interfaces="lo") as endpoint, endpoint.listen() as listener:
    print(listener.handle.hex(), flush=True)
    after = endpoint.connect(bytes.fromhex(sys.stdin.readline().strip()))
    before = listener.accept(timeout_s=240)
    part, into = b"x" * 50_000, bytearray(50_000)
    for number in range(100_000):
        receive = before.irecv_into(into)
        send = after.isend(part)
        receive.wait(60)
        send.wait(60)
        time.sleep(0.002)  # rounds are long enough to be told apart
        if number == 200:
            print("running", flush=True)
"""


@contextmanager
def ring(folder: Path, ranks: int = 3) -> Iterator[list[subprocess.Popen[str]]]:
    """Real processes of a ring that runs, each of which writes its trace into the folder."""
    made = []
    for rank in range(ranks):
        env = {"WEFT_TRACE": str(folder), "RANK": str(rank), "WORLD_SIZE": str(ranks)}
        made.append(
            subprocess.Popen(
                [sys.executable, "-c", RING],
                env=os.environ | env,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
    try:
        handles = [one.stdout.readline() for one in made if one.stdout is not None]
        for rank, one in enumerate(made):
            assert one.stdin is not None
            one.stdin.write(handles[(rank + 1) % ranks])
            one.stdin.flush()
        for one in made:
            assert one.stdout is not None
            assert one.stdout.readline() == "running\n"
        yield made
    finally:
        for one in made:
            one.kill()
            one.communicate(timeout=PATIENCE_S)
