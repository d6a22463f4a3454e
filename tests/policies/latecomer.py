"""LEDBAT (RFC 6817): a flow keeps a fixed queueing delay over the least round trip it has seen.

A latecomer takes the queue of the flow before it for an empty one, and starves it (section 4.4).
"""

from __future__ import annotations

from typing import Any

from congestion.api import record, window_policy
from congestion.promises import Promises

Flow = record(window_bytes=float, cut_ns=int)
Params = record(target_ns=100_000.0)


def answer(flow: Any, event: Any, result: Any) -> None:
    least = 2.0 * event.segment_bytes
    flow.window_bytes = min(max(flow.window_bytes, least), max(event.window_bytes_max, least))
    result.window_bytes = flow.window_bytes


def on_start(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.window_bytes = max(event.hint_window_bytes, 10.0 * event.segment_bytes)
    answer(flow, event, result)


def on_ack(flow: Any, params: Any, event: Any, result: Any) -> None:
    off = (params.target_ns - (event.rtt_ns - event.rtt_min_ns)) / params.target_ns
    if event.app_limited == 0 and event.rtt_ns > 0:
        step = max(off, -4.0) * event.segment_bytes * event.acked_bytes
        flow.window_bytes += step / flow.window_bytes
    answer(flow, event, result)


def on_loss(flow: Any, params: Any, event: Any, result: Any) -> None:
    if event.now_ns - flow.cut_ns > event.srtt_ns:
        flow.window_bytes *= 0.5
        flow.cut_ns = event.now_ns
    answer(flow, event, result)


POLICY = window_policy(
    "latecomer",
    flow=Flow,
    params=Params,
    on_start=on_start,
    on_ack=on_ack,
    on_loss=on_loss,
    on_timeout=on_loss,
    promises=Promises(
        source="RFC 6817, section 2.4",
        signals=("rtt", "loss", "timeout"),
        without=("newcomer_share",),
    ),
)
