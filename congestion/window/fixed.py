"""Decides a window that never changes: what a flow falls back to when its own policy goes wrong.

Never touches a signal. No source: the bounded in-flight data of any sliding-window protocol.
"""

from __future__ import annotations

from typing import Any

from congestion.api import record, window_policy

Params = record(window_bytes=4 << 20)


def hold(flow: Any, params: Any, event: Any, result: Any) -> None:
    result.window_bytes = float(min(params.window_bytes, event.window_bytes_max))
    result.pacing_bytes_per_s = 0.0


POLICY = window_policy(
    "fixed", params=Params, on_start=hold, on_ack=hold, on_loss=hold, on_timeout=hold
)
