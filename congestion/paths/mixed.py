"""Reuses paths that delivered without marks; if there are none, chooses as bitmap does.

Source: the mixed load balancer of Ultra Ethernet's simulator (uet-htsim): a queue of paths that
came back unmarked, as in the first REPS, before a bitmap of penalties. RTT is not used.
"""

from __future__ import annotations

from typing import Any

from congestion.api import TIMEOUT, path_policy, record
from congestion.paths.bitmap import visited, weigh
from congestion.paths.oblivious import barred
from congestion.promises import Promises

Flow = record(
    queue=(0,) * 16,  # indices of paths that delivered without marks, plus one; 0: empty
    head=int,  # position in the queue where the next entry is written
    waiting=int,  # number of entries in the queue that were not picked yet, all before head
    turn=int,  # turn, mask and width have the same meaning as in round_robin.py
    mask=int,
    width=int,
)

Path = record(penalty=int, silent=int, heard_bytes=float, marked=int)  # like Path of bitmap.py

# Like Params of bitmap.py.
Params = record(burst_bytes=65_536, ecn_penalty=1, nack_penalty=4, penalty_max=15)


def recycled(flow: Any, paths: Any, event: Any) -> Any:
    """Takes the oldest usable path out of the queue; -1 if there is none."""
    for _ in range(len(flow.queue)):
        if flow.waiting <= 0:
            break
        index = flow.queue[(flow.head - flow.waiting) % len(flow.queue)] - 1
        flow.waiting -= 1
        there = 0 <= index < len(paths)
        if there and paths[index].silent == 0 and barred(paths, event, index) == 0:
            return index
    return -1


def pick(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    chosen = recycled(flow, paths, event)
    if chosen < 0:
        chosen = visited(flow, paths, params, event)
    result.path = chosen
    result.burst_bytes = params.burst_bytes


def on_feedback(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    index = min(max(event.path, 0), len(paths) - 1)
    was_silent = paths[index].silent
    bursts = weigh(paths[index], params, event)
    if was_silent != 0 and paths[index].silent == 0:
        # The path answers again, perhaps only to a probe. It gets a fair share of the queue's
        # entries, because while other paths are reused, only paths in the queue are chosen.
        bursts = max(bursts, len(flow.queue) // min(max(event.n_paths, 1), len(flow.queue)))
    for turn in range(len(flow.queue)):
        if turn < bursts:
            flow.queue[flow.head] = index + 1
            flow.head = (flow.head + 1) % len(flow.queue)
            flow.waiting = min(flow.waiting + 1, len(flow.queue))
        if event.kind == TIMEOUT and flow.queue[turn] == index + 1:
            flow.queue[turn] = 0
    result.path = index
    result.burst_bytes = params.burst_bytes


POLICY = path_policy(
    "mixed",
    flow=Flow,
    path=Path,
    params=Params,
    pick=pick,
    on_feedback=on_feedback,
    presets={"host": {}, "paper": {"burst_bytes": 4_096}, "fabric": {"burst_bytes": 4_096}},
    promises=Promises(
        source="uet-htsim, mixed",
        signals=("ecn", "loss", "timeout", "chance"),
        state_bytes_max=224,
        dead_path_picks=64,
        heals_picks=512,
    ),
)
