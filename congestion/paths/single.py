"""One path for each flow, by its hash, as ECMP assigns a connection to a route.

Source: RFC 2992, "Analysis of an Equal-Cost Multi-Path Algorithm". RTT, ECN and loss are not used.

While its path is dead, a flow uses the next path in order; segments that were lost on its path are
resent there, too. Several flows may share a path by chance. This policy is the baseline for the
others.
"""

from __future__ import annotations

from typing import Any

from congestion.api import path_policy, record
from congestion.paths.oblivious import barred
from congestion.promises import Promises

Params = record(burst_bytes=65_536)


def pick(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    home = event.flow % len(paths)
    chosen = home
    least = 2
    for step in range(len(paths)):
        index = (home + step) % len(paths)
        bar = barred(paths, event, index)
        if bar < least:
            least = bar
            chosen = index
        if least == 0:
            break
    result.path = chosen
    result.burst_bytes = params.burst_bytes


def on_feedback(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    result.path = event.path
    result.burst_bytes = params.burst_bytes


POLICY = path_policy(
    "single",
    params=Params,
    pick=pick,
    on_feedback=on_feedback,
    presets={"host": {}, "paper": {}, "fabric": {"burst_bytes": 4_096}},
    promises=Promises(source="RFC 2992", state_bytes_max=24),
)
