"""A constant window, which replaces a window policy that failed.

No signal is used. There is no paper: any sliding-window protocol bounds the bytes in flight.
"""

from __future__ import annotations

from typing import Any

from congestion.api import record, window_policy
from congestion.promises import Promises

Params = record(window_bytes=4 << 20)


def hold(flow: Any, params: Any, event: Any, result: Any) -> None:
    most = max(float(event.window_bytes_max), 2.0 * max(float(event.segment_bytes), 1.0))
    result.window_bytes = min(float(params.window_bytes), most)
    result.pacing_bytes_per_s = 0.0


POLICY = window_policy(
    "fixed",
    params=Params,
    on_start=hold,
    on_ack=hold,
    on_loss=hold,
    on_timeout=hold,
    promises=Promises(
        source="sliding window",
        state_bytes_max=0,
        growth_segments=(0.0, 0.0),
        intrinsic=dict.fromkeys(
            (
                *("loss_response", "timeout_response", "congestion_response"),
                *("fairness", "newcomer_share", "standing_queue"),
            ),
            "the window is constant: it ignores all signals",
        ),
    ),
)
