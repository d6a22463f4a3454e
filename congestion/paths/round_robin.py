"""Rounds that visit every usable path once, each in a new random order.

Source: Ultra Ethernet Specification 1.0, section 3.6, oblivious spraying: entropy values in turn,
with a new permutation in each round, so that senders do not stay in step. RTT, ECN and loss are not
used.
"""

from __future__ import annotations

from typing import Any

from congestion.api import path_policy, record
from congestion.paths.oblivious import barred, drawn
from congestion.promises import Promises

STEPS = 512  # two rounds over the maximum of 256 paths, so that every path is visited

Flow = record(
    turn=int,
    mask=int,  # determines the order of this round: turn ^ mask is the path's index
    width=int,  # the smallest power of two that is no less than the number of paths
)

Params = record(burst_bytes=65_536)


def advanced(flow: Any, paths: Any, event: Any) -> Any:
    """The next path index of the round; it may lie beyond the last path."""
    if flow.width == 0:
        flow.width = 1
        for _ in range(8):
            if flow.width < len(paths):
                flow.width *= 2
    flow.turn += 1
    if flow.turn >= flow.width:
        flow.turn = 0
        flow.mask = min(int(event.rand2 * flow.width), flow.width - 1)
    return flow.turn ^ flow.mask


def pick(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    chosen = -1
    for _ in range(STEPS):
        index = advanced(flow, paths, event)
        if index < len(paths) and barred(paths, event, index) == 0:
            chosen = index
            break
    if chosen < 0:
        chosen = drawn(paths, event)
    result.path = chosen
    result.burst_bytes = params.burst_bytes


def on_feedback(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    result.path = event.path
    result.burst_bytes = params.burst_bytes


POLICY = path_policy(
    "round_robin",
    flow=Flow,
    params=Params,
    pick=pick,
    on_feedback=on_feedback,
    presets={"host": {}, "paper": {"burst_bytes": 4_096}, "fabric": {"burst_bytes": 4_096}},
    promises=Promises(
        source="Ultra Ethernet Specification 1.0, section 3.6 (oblivious)",
        signals=("chance",),
        state_bytes_max=48,
        spreads=True,
        dead_path_picks=64,
        heals_picks=64,
    ),
)
