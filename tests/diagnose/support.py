"""Small simulated training jobs with faults, and their traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transport.sim.run import run
from transport.sim.scenario import from_tables
from transport.sim.trace import write_trace

RANKS = 32
STEPS = 7


def tables(*faults: dict[str, Any], **top: Any) -> dict[str, Any]:
    """A job of 32 ranks on four leaves: tensor parallel in groups of 8, data parallel across."""
    across = {"group_ranks": 8, "across": True, "stream": "data"}
    operations = [
        {"name": "forward", "compute_ns": 300_000},
        {"name": "activations", "collective": "all_reduce_ring", "size_bytes": 500_000,
         "group_ranks": 8},
        {"name": "backward", "compute_ns": 400_000, "after": "activations"},
        {"name": "gradients", "collective": "all_reduce_ring", "size_bytes": 1_000_000, **across},
        {"name": "optimizer", "compute_ns": 50_000, "after": "gradients"},
    ]  # fmt: skip
    return {
        "limit_ns": 100_000_000,
        "network": {"hosts": RANKS, "hosts_per_leaf": 8, "spines": 4, "queue_bytes": "1 MB"},
        "hosts": {"paths": 8, "segment_bytes": 16_448},
        "policies": {"window": "nscc:rtt_ns_min=0,hold_ns=0",
                     "path": "power_of_two:burst_bytes=16384"},
        "workload": [
            {"name": "training", "pattern": "steps", "repeats": STEPS, "launch_ns": 2_000,
             "noise": 0.02, "operations": operations}
        ],
        "faults": list(faults),
    } | top  # fmt: skip


def traced(folder: Path, *faults: dict[str, Any], **top: Any) -> Path:
    """Simulates the job with the faults, and writes its trace into the folder."""
    result = run(from_tables(tables(*faults, **top), file="job"), trace_ns=200_000)
    write_trace(result, folder)
    return folder
