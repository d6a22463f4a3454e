"""Plain round robin: each burst takes the next usable path.

RTT, ECN and loss are not used. There is no paper.
"""

from __future__ import annotations

from typing import Any

from congestion.api import path_policy, record
from congestion.promises import Promises

Flow = record(last_path=int)
Params = record(burst_bytes=65_536)


def pick(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    chosen = -1
    fallback = -1  # a usable path on which the segment to resend was lost before
    for step in range(len(paths)):
        index = (flow.last_path + 1 + step) % len(paths)
        if paths[index].usable != 0:
            if event.is_resend == 0 or index != event.avoid_path:
                chosen = index
                break
            fallback = index
    if chosen < 0:
        chosen = fallback
    if chosen < 0:  # no path is usable: pick the next; the core decides whether to send
        chosen = (flow.last_path + 1) % len(paths)
    flow.last_path = chosen
    result.path = chosen
    result.burst_bytes = params.burst_bytes


def on_feedback(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    result.path = flow.last_path
    result.burst_bytes = params.burst_bytes


POLICY = path_policy(
    "fixed",
    flow=Flow,
    params=Params,
    pick=pick,
    on_feedback=on_feedback,
    promises=Promises(
        source="round robin", state_bytes_max=32, spreads=True, dead_path_picks=64, heals_picks=64
    ),
)
