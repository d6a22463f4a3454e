"""Decides the window from delay: a target queueing delay, additive increase, proportional decrease.

Never touches the path choice. Source: Kumar et al., "Swift: Delay is Simple and Effective for
Congestion Control in the Datacenter", SIGCOMM 2020, section 3; flow scaling with the constants
of its section 3.5.

Three departures, for hosts whose RTT carries scheduling noise. The delay compared with the target
is the least seen in the last round trip (a standing queue shows in every sample, a late wake-up in
few). It is taken over the path's own least RTT, so that paths of unequal length share one target.
And losses below a tolerated share of the window are taken for corruption, not congestion.
"""

from __future__ import annotations

import math
from typing import Any

from congestion.api import record, window_policy

NO_SAMPLE_NS = 1 << 62

Flow = record(
    window_bytes=float,
    scaling_alpha=float,
    scaling_beta=float,
    round_end_ns=int,
    round_queue_ns=int,  # least queueing delay of the round in progress
    last_queue_ns=int,  # and of the one before
    round_lost_bytes=int,
    last_cut_ns=int,
    timeouts=int,  # without an acknowledgment between them
)

Params = record(
    target_queue_ns=50_000,  # at least this much queueing is allowed: wake-ups cost as much
    target_multiple=2.0,  # and at least this multiple of the least RTT
    scaling_multiple=4.0,  # what flow scaling adds at most, in target queues
    scaling_segments_min=4.0,
    scaling_segments_max=256.0,
    increase_segments=4.0,  # per round trip
    decrease_gain=0.8,
    decrease_max=0.5,
    loss_tolerance=0.02,  # share of a window that may be lost in a round trip
    timeout_limit=3,
    window_segments_min=16,
    start_divisor=4.0,  # of window_bytes_max
    pacing_gain=1.2,
    pacing_segments_max=64,  # wider windows are not paced: bursts are then a small part of them
)


def answer(flow: Any, params: Any, event: Any, result: Any) -> None:
    least = float(params.window_segments_min * event.segment_bytes)
    most = max(float(event.window_bytes_max), least)
    flow.window_bytes = min(max(flow.window_bytes, least), most)
    result.window_bytes = flow.window_bytes
    result.pacing_bytes_per_s = 0.0
    if event.srtt_ns > 0 and flow.window_bytes < params.pacing_segments_max * event.segment_bytes:
        result.pacing_bytes_per_s = params.pacing_gain * flow.window_bytes * 1e9 / event.srtt_ns


def cut(flow: Any, event: Any, factor: float) -> None:
    """Shrink the window, at most once per round trip."""
    if event.now_ns - flow.last_cut_ns >= max(event.srtt_ns, event.rtt_min_ns):
        flow.window_bytes *= factor
        flow.last_cut_ns = event.now_ns


def observe(flow: Any, event: Any) -> Any:
    """The least queueing delay of this round trip and the last one."""
    if event.now_ns >= flow.round_end_ns:
        flow.last_queue_ns = flow.round_queue_ns
        flow.round_queue_ns = NO_SAMPLE_NS
        flow.round_lost_bytes = 0
        flow.round_end_ns = event.now_ns + max(event.srtt_ns, event.rtt_min_ns)
    if event.rtt_ns > 0:
        flow.round_queue_ns = min(flow.round_queue_ns, max(event.rtt_ns - event.rtt_min_ns, 0))
    return min(flow.round_queue_ns, flow.last_queue_ns)


def on_start(flow: Any, params: Any, event: Any, result: Any) -> None:
    low = 1.0 / math.sqrt(params.scaling_segments_min)
    high = 1.0 / math.sqrt(params.scaling_segments_max)
    flow.scaling_alpha = params.scaling_multiple / (low - high)
    flow.scaling_beta = flow.scaling_alpha * high
    flow.round_queue_ns = NO_SAMPLE_NS
    flow.last_queue_ns = NO_SAMPLE_NS
    flow.window_bytes = event.hint_window_bytes
    if flow.window_bytes <= 0.0:
        flow.window_bytes = event.window_bytes_max / params.start_divisor
    answer(flow, params, event, result)


def on_ack(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts = 0
    queue_ns = observe(flow, event)
    base_ns = max(params.target_multiple * event.rtt_min_ns, float(params.target_queue_ns))
    segments = max(flow.window_bytes / event.segment_bytes, 1.0)
    scaling = flow.scaling_alpha / math.sqrt(segments) - flow.scaling_beta
    target_ns = base_ns * (1.0 + min(max(scaling, 0.0), params.scaling_multiple))
    if queue_ns == NO_SAMPLE_NS or queue_ns <= target_ns:
        if event.ecn_segments == 0 and event.app_limited == 0:
            flow.window_bytes += params.increase_segments * event.acked_bytes / segments
    else:
        excess = (queue_ns - target_ns) / (queue_ns + event.rtt_min_ns)
        cut(flow, event, 1.0 - min(params.decrease_gain * excess, params.decrease_max))
    answer(flow, params, event, result)


def on_loss(flow: Any, params: Any, event: Any, result: Any) -> None:
    observe(flow, event)
    flow.round_lost_bytes += event.lost_bytes
    tolerated = max(params.loss_tolerance * flow.window_bytes, 2.0 * event.segment_bytes)
    if flow.round_lost_bytes > tolerated:
        cut(flow, event, 1.0 - params.decrease_max)
    answer(flow, params, event, result)


def on_timeout(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts += 1
    if flow.timeouts >= params.timeout_limit:
        flow.window_bytes = 0.0  # answer lifts it to the least window
    elif flow.timeouts > 1:  # on_loss has weighed the bytes: one timeout says no more than they do
        cut(flow, event, 1.0 - params.decrease_max)
    answer(flow, params, event, result)


POLICY = window_policy(
    "swift",
    flow=Flow,
    params=Params,
    on_start=on_start,
    on_ack=on_ack,
    on_loss=on_loss,
    on_timeout=on_timeout,
)
