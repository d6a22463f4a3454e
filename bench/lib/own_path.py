"""A path policy for simulations: each flow has a path of its own, as a queue pair of RoCE has.

The flows of a peer claim paths in the order of their first packets. A flow stays on its path, dead
or not. With more flows than paths, the rest share paths by hash. RTT, ECN and loss are not used.
"""

from __future__ import annotations

from typing import Any

from congestion.api import path_policy, record
from congestion.promises import Promises

Path = record(owner=int)  # the flow that has the path, plus one; 0: none
Params = record(burst_bytes=65_536)


def pick(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    chosen = -1
    free = -1
    for index in range(len(paths)):
        if paths[index].owner == event.flow + 1:
            chosen = index
        if paths[index].owner == 0 and free < 0:
            free = index
    if chosen < 0 and free >= 0:
        paths[free].owner = event.flow + 1
        chosen = free
    if chosen < 0:
        chosen = event.flow % len(paths)
    result.path = chosen
    result.burst_bytes = params.burst_bytes


def on_feedback(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    result.path = event.path
    result.burst_bytes = params.burst_bytes


POLICY = path_policy(
    "own_path",
    path=Path,
    params=Params,
    pick=pick,
    on_feedback=on_feedback,
    promises=Promises(source="queue pairs of RoCE", state_bytes_max=32),
)
