"""Decides a constant credit: every sender may be a fixed number of bytes ahead of what has arrived.

Never touches demand, load or marks. No source: the receive window of any sliding-window protocol.
"""

from __future__ import annotations

from typing import Any

from congestion.api import credit_policy, record

Params = record(window_bytes=4 << 20)


def grant(flow: Any, port: Any, params: Any, event: Any, result: Any) -> None:
    result.granted_bytes = max(event.received_bytes + params.window_bytes, event.granted_bytes)
    result.next_tick_ns = -1


POLICY = credit_policy("fixed", params=Params, on_start=grant, on_demand=grant, on_tick=grant)
