"""A random path for each flowlet, that is, for the data that a flow sends between two pauses.

Source: Vanini et al., "Let It Flow: Resilient Asymmetric Load Balancing with Flowlet Switching",
NSDI 2017, section 3: flowlets are long on free paths; on congested paths acknowledgments pause,
which ends the flowlet. RTT and ECN are not used.

The record of a peer has 32 slots; the hash of a flow selects its slot.
"""

from __future__ import annotations

from typing import Any

from congestion.api import TIMEOUT, path_policy, record
from congestion.paths.oblivious import barred, drawn
from congestion.promises import Promises

PLACES = 32

Flow = record(
    path=(0,) * PLACES,  # index of the flowlet's path, plus one; 0: choose a random path
    used_ns=(0,) * PLACES,  # when a flow of this slot last sent a burst
)

Params = record(
    burst_bytes=65_536,
    gap_ns=100_000,  # pause that ends a flowlet; section 4.2: 100 to 500 us work well
)


def pick(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    place = event.flow % PLACES
    chosen = flow.path[place] - 1
    over = chosen < 0 or chosen >= len(paths)
    over = over or event.now_ns - flow.used_ns[place] >= params.gap_ns
    if over or barred(paths, event, chosen) != 0:
        moved = drawn(paths, event)
        if over or paths[chosen].usable == 0:  # retransmissions do not move the flow
            flow.path[place] = moved + 1
        chosen = moved
    flow.used_ns[place] = event.now_ns
    result.path = chosen
    result.burst_bytes = params.burst_bytes


def on_feedback(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    index = min(max(event.path, 0), len(paths) - 1)
    place = event.flow % PLACES
    if event.kind == TIMEOUT and flow.path[place] == index + 1:
        flow.path[place] = 0
    result.path = index
    result.burst_bytes = params.burst_bytes


POLICY = path_policy(
    "flowlet",
    flow=Flow,
    params=Params,
    pick=pick,
    on_feedback=on_feedback,
    presets={"host": {}, "paper": {}, "fabric": {"burst_bytes": 4_096}},
    promises=Promises(
        source="Vanini et al., NSDI 2017, section 3",
        signals=("timeout", "chance"),
        state_bytes_max=536,
    ),
)
