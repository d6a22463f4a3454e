"""A random usable path for each burst, all with equal probability.

Source: Dixit et al., "On the Impact of Packet Spraying in Data Center Networks", INFOCOM 2013,
section III. RTT, ECN and loss are not used.
"""

from __future__ import annotations

from typing import Any

from congestion.api import path_policy, record
from congestion.promises import Promises

Params = record(burst_bytes=65_536)


def barred(paths: Any, event: Any, index: int) -> int:
    """0: the path may be used; 1: the segment to resend was lost on it; 2: the path is dead."""
    if paths[index].usable == 0:
        return 2
    if event.is_resend != 0 and index == event.avoid_path:
        return 1
    return 0


def drawn(paths: Any, event: Any) -> int:
    """A random path of those with the lowest `barred` value; other policies use it as fallback."""
    least = 2
    count = 0
    for index in range(len(paths)):
        bar = barred(paths, event, index)
        if bar < least:
            least = bar
            count = 0
        if bar == least:
            count += 1
    turn = min(int(event.rand * count), count - 1)
    for index in range(len(paths)):
        if barred(paths, event, index) == least:
            if turn == 0:
                return index
            turn -= 1
    return 0


def pick(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    result.path = drawn(paths, event)
    result.burst_bytes = params.burst_bytes


def on_feedback(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    result.path = event.path
    result.burst_bytes = params.burst_bytes


POLICY = path_policy(
    "oblivious",
    params=Params,
    pick=pick,
    on_feedback=on_feedback,
    presets={"host": {}, "paper": {"burst_bytes": 4_096}, "fabric": {"burst_bytes": 4_096}},
    promises=Promises(
        source="Dixit et al., INFOCOM 2013, section III",
        signals=("chance",),
        state_bytes_max=24,
        spreads=True,
        dead_path_picks=64,
        heals_picks=64,
    ),
)
