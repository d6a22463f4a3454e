"""Random paths, with probabilities in proportion to weights that the control plane writes.

Source: Zhou et al., "WCMP: Weighted Cost Multipathing for Improved Fairness in Data Centers",
EuroSys 2014, section 3. RTT, ECN and loss are not used here; the control plane may use them.

A path of weight 0 is used only if no path that may be used has a positive weight.
"""

from __future__ import annotations

from typing import Any

from congestion.api import MAX_PATHS, path_policy, record
from congestion.paths.oblivious import barred, drawn
from congestion.promises import Promises

WEIGHT_MAX = 1e12  # keeps sums of weights finite

Params = record(
    burst_bytes=65_536,
    weight=(1.0,) * MAX_PATHS,
)


def weight_of(paths: Any, params: Any, event: Any, index: int) -> Any:
    if params.weight[index] > 0.0 and barred(paths, event, index) == 0:
        return min(params.weight[index], WEIGHT_MAX)
    return 0.0


def pick(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    total = 0.0
    for index in range(len(paths)):
        total += weight_of(paths, params, event, index)
    chosen = -1
    left = event.rand * total
    for index in range(len(paths)):
        weight = weight_of(paths, params, event, index)
        if weight > 0.0:
            chosen = index
            left -= weight
            if left < 0.0:
                break
    if chosen < 0:
        chosen = drawn(paths, event)
    result.path = chosen
    result.burst_bytes = params.burst_bytes


def on_feedback(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    result.path = event.path
    result.burst_bytes = params.burst_bytes


POLICY = path_policy(
    "weighted",
    params=Params,
    pick=pick,
    on_feedback=on_feedback,
    presets={"host": {}, "paper": {}, "fabric": {"burst_bytes": 4_096}},
    promises=Promises(
        source="Zhou et al., EuroSys 2014, section 3",
        signals=("weights", "chance"),
        state_bytes_max=24,
        spreads=True,
        dead_path_picks=64,
        heals_picks=64,
    ),
)
