"""Constant credit: a sender may send a fixed number of bytes beyond those received.

Requests, load and marks are not used. There is no paper: it is the receive window of any
sliding-window protocol.
"""

from __future__ import annotations

from typing import Any

from congestion.api import credit_policy, record
from congestion.promises import Promises

Params = record(window_bytes=4 << 20)


def grant(flow: Any, port: Any, params: Any, event: Any, result: Any) -> None:
    received_bytes = min(max(event.received_bytes, 0), 1 << 60)
    result.granted_bytes = max(received_bytes + params.window_bytes, event.granted_bytes)
    result.next_tick_ns = -1


POLICY = credit_policy(
    "fixed",
    params=Params,
    on_start=grant,
    on_demand=grant,
    on_tick=grant,
    promises=Promises(
        source="sliding window",
        signals=("credit",),
        state_bytes_max=0,
        intrinsic={"standing_queue": "the credit of a sender is constant, however many there are"},
    ),
)
