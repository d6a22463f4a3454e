"""Round robin that skips paths with penalties: a few rounds after marks, many after a timeout.

Source: the bitmap load balancer of Ultra Ethernet's simulator (uet-htsim). The states of a silent
path are those of OCP Multipath Reliable Connection 1.0: the path counts as bad until feedback
arrives, and is probed by one burst at a time. RTT is not used.
"""

from __future__ import annotations

from typing import Any

from congestion.api import NACK, TIMEOUT, path_policy, record
from congestion.paths.oblivious import barred
from congestion.paths.reps import verdict
from congestion.paths.round_robin import STEPS, advanced
from congestion.promises import Promises

Flow = record(turn=int, mask=int, width=int)  # like Flow of round_robin.py

Path = record(
    penalty=int,  # how many more times this path is skipped in its turn
    silent=int,  # 1: the path timed out and gave no feedback since
    heard_bytes=float,  # bytes acknowledged on this path since the last penalty update
    marked=int,  # 1: some of heard_bytes were ECN-marked
)

Params = record(
    burst_bytes=65_536,
    ecn_penalty=1,
    nack_penalty=4,
    penalty_max=15,  # penalty of a timeout; fits in four bits
)


def visited(flow: Any, paths: Any, params: Any, event: Any) -> Any:
    """The next path in turn without a penalty; if all have one, the path with the least."""
    for _ in range(STEPS):
        index = advanced(flow, paths, event)
        if index < len(paths) and barred(paths, event, index) == 0:
            path = paths[index]
            if path.penalty <= 0:
                if path.silent != 0:
                    path.penalty = params.penalty_max  # this burst is a probe; then skip the path
                return index
            path.penalty -= 1
    best = 0
    best_rank = 1 << 62
    for index in range(len(paths)):
        rank = barred(paths, event, index) * 256 + paths[index].penalty
        if rank < best_rank:
            best = index
            best_rank = rank
    return best


def weigh(path: Any, params: Any, event: Any) -> Any:
    """Updates the penalty; returns how many bursts were delivered, negative if ECN-marked."""
    if event.kind == TIMEOUT:
        path.silent = 1
        path.penalty = params.penalty_max
        return 0
    if event.kind == NACK:
        path.penalty = min(path.penalty + params.nack_penalty, params.penalty_max)
        return 0
    if path.silent != 0:
        path.silent = 0
        path.penalty = 0
    bursts = verdict(path, params, event)
    if bursts < 0:
        path.penalty = min(path.penalty - bursts * params.ecn_penalty, params.penalty_max)
    return bursts


def pick(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    result.path = visited(flow, paths, params, event)
    result.burst_bytes = params.burst_bytes


def on_feedback(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    index = min(max(event.path, 0), len(paths) - 1)
    weigh(paths[index], params, event)
    result.path = index
    result.burst_bytes = params.burst_bytes


POLICY = path_policy(
    "bitmap",
    flow=Flow,
    path=Path,
    params=Params,
    pick=pick,
    on_feedback=on_feedback,
    presets={"host": {}, "paper": {"burst_bytes": 4_096}, "fabric": {"burst_bytes": 4_096}},
    promises=Promises(
        source="uet-htsim, bitmap; OCP MRC 1.0, path states",
        signals=("ecn", "loss", "timeout", "chance"),
        state_bytes_max=80,
        spreads=True,
        dead_path_picks=64,
        heals_picks=512,
    ),
)
