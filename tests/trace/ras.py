"""Statuses as NCCL's RAS gives them (NCCL 2.28.9), made by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
GREETING = "SERVER PROTOCOL 2\nOK\nOK\n"
HOST = "10.0.0.1"


def rank(
    number: int, process: int, counts: Mapping[str, int], *, error: int = 0, init: int = 0
) -> dict[str, Any]:
    """A rank that answers. process: the n-th process of the job, which has GPU n."""
    return {
        "rank": number,
        "host": HOST,
        "pid": 500 + process,
        "cuda_dev": process,
        "nvml_dev": process,
        "status": {
            "init_state": init,
            "async_error": error,
            "finalize_called": False,
            "destroy_flag": False,
            "abort_flag": False,
        },
        "collective_counts": {name: counts.get(name, 0) for name in FUNCTIONS},
    }


def missing(number: int, process: int, **status: bool) -> dict[str, Any]:
    """A rank without data; its process does not answer, unless `status` says so."""
    return {
        "rank": number,
        "host": HOST,
        "pid": 500 + process,
        "cuda_dev": process,
        "nvml_dev": process,
        "status": {"unresponsive": True, "considered_dead": False} | status,
    }


def comm(
    number: int, ranks: Sequence[dict[str, Any]], gone: Sequence[dict[str, Any]] = (), **more: Any
) -> dict[str, Any]:
    return {
        "hash": f"0x{number:x}",
        "secondary_hash": f"0x{number + 1:x}:0x{number + 2:x}",
        "size": len(ranks) + len(gone),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(gone),
        "ranks": list(ranks),
        "missing_ranks": list(gone),
    } | more


def status(comms: Iterable[dict[str, Any]], at: str = "12:00:00") -> dict[str, Any]:
    """A status at a time of day."""
    each = list(comms)
    return {
        "nccl_version": "2.28.9",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": f"2026-03-02 {at}",
        "communicators_count": len(each),
        "communicators": each,
        "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
    }


def text(value: dict[str, Any]) -> str:
    """A status as NCCL 2.28.9 writes it: without a comma in missing ranks."""
    lines = json.dumps(value, indent=2).splitlines()
    inside = False
    for at, line in enumerate(lines):
        inside = (inside or '"missing_ranks": [' in line) and line.strip() not in ("]", "],")
        if inside and '"nvml_dev"' in line:
            lines[at] = line.removesuffix(",")
    return GREETING + "\n".join(lines) + "\n"


def all_reduces(counts: Sequence[int | None], at: str = "12:00:00", **more: Any) -> str:
    """A job with one communicator. counts: of AllReduce by rank; None: its process is missing."""
    ranks = [rank(n, n, {"AllReduce": one}) for n, one in enumerate(counts) if one is not None]
    gone = [missing(n, n, **more) for n, one in enumerate(counts) if one is None]
    return text(status([comm(0xABC0, ranks, gone)], at))
