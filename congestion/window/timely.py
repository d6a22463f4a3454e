"""Decides a rate from the gradient of delay, patched so that it has one fixed point and not many.

Never touches marks. Source: Zhu et al., "ECN or Delay: Lessons Learnt from Analysis of DCQCN and
TIMELY", CoNEXT 2016, section 4.3, and Mittal et al., "TIMELY", SIGCOMM 2015, section 4.

Departures: thresholds are over the path's own least RTT, as paths may be of unequal length; beyond
the upper one the rate falls at most once per round trip; a gradient is taken between samples of one
path, over the round trips between them; a loss counts as an RTT beyond the upper threshold, as the
network may drop; and a window bounds what is in flight to the rate times the longest wait.
"""

from __future__ import annotations

from typing import Any

from congestion.api import record, window_policy
from congestion.promises import Promises

SLOTS = 16  # paths whose last samples are kept; of those that share one, the later stays

Flow = record(
    rate=float,  # bytes per second
    paths=(0,) * SLOTS,  # whose sample it is, plus one
    queues_ns=(0.0,) * SLOTS,  # the last sample
    sampled_ns=(0,) * SLOTS,
    difference_ns=float,  # smoothed, over a round trip
    update_ns=int,
    cut_ns=int,
    timeouts=int,  # without an acknowledgment between them
)

Params = record(
    link_bytes_per_s=12.5e9,  # where the OS does not say: 100 Gb/s
    low_ns=50_000.0,  # queueing below this is none; TIMELY, section 4.4
    high_ns=500_000.0,
    smoothing=0.875,  # alpha
    increase_share=0.001,  # delta, of the link: 10 Mb/s of 10 Gb/s
    gain=0.008,  # beta, patched
    gain_high=0.8,  # beta beyond the upper threshold
    start_share=0.5,  # TIMELY, section 4.2: link over flows and one
    least_share=0.001,
    timeout_limit=3,
)


def link(params: Any, event: Any) -> Any:
    if event.link_bytes_per_s > 0:
        return float(event.link_bytes_per_s)
    return params.link_bytes_per_s


def answer(flow: Any, params: Any, event: Any, result: Any) -> None:
    line = link(params, event)
    flow.rate = min(max(flow.rate, params.least_share * line), line)
    least = 2.0 * max(float(event.segment_bytes), 1.0)
    most = max(float(event.window_bytes_max), least)
    bound = flow.rate * (max(event.rtt_min_ns, 0) + params.high_ns) * 1e-9
    result.window_bytes = min(max(bound, least), most)
    result.pacing_bytes_per_s = flow.rate


def cut(flow: Any, event: Any, factor: float) -> None:
    """Shrink the rate, at most once per round trip."""
    if event.now_ns - flow.cut_ns >= max(event.srtt_ns, event.rtt_min_ns):
        flow.rate *= factor
        flow.cut_ns = event.now_ns


def note_difference(flow: Any, params: Any, event: Any, queue_ns: float, base_ns: float) -> None:
    """How a path's queue has grown; its first sample says nothing of that."""
    slot = event.path % SLOTS
    if flow.paths[slot] == event.path + 1:
        round_trips = max((event.now_ns - flow.sampled_ns[slot]) / base_ns, 1.0)
        difference_ns = (queue_ns - flow.queues_ns[slot]) / round_trips
        flow.difference_ns += params.smoothing * (difference_ns - flow.difference_ns)
    flow.paths[slot] = event.path + 1
    flow.queues_ns[slot] = queue_ns
    flow.sampled_ns[slot] = event.now_ns


def update(flow: Any, params: Any, event: Any) -> None:
    """Algorithm 2 of the analysis."""
    base_ns = max(float(event.rtt_min_ns), 1.0)
    queue_ns = max(float(event.rtt_ns) - base_ns, 0.0)
    note_difference(flow, params, event, queue_ns, base_ns)
    step = params.increase_share * link(params, event)
    if event.app_limited != 0:
        step = 0.0
    if queue_ns < params.low_ns:
        flow.rate += step
    elif queue_ns > params.high_ns:
        excess = (queue_ns - params.high_ns) / (queue_ns + base_ns)
        cut(flow, event, 1.0 - params.gain_high * excess)
    else:
        gradient = flow.difference_ns / base_ns
        weight = min(max(2.0 * gradient + 0.5, 0.0), 1.0)
        error = (queue_ns - params.low_ns) / (base_ns + params.low_ns)
        flow.rate *= 1.0 - min(params.gain * weight * error, 0.5)
        flow.rate += step * (1.0 - weight)


def on_start(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.rate = params.start_share * link(params, event)
    if event.hint_window_bytes > 0.0:  # another policy's window: a round trip's worth
        round_trip_ns = float(event.srtt_ns)
        if event.srtt_ns <= 0:
            round_trip_ns = max(event.rtt_min_ns, 0) + params.high_ns
        flow.rate = event.hint_window_bytes * 1e9 / max(round_trip_ns, 1.0)
    answer(flow, params, event, result)


def on_ack(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts = 0
    # Once per least round trip, as section 3.2 of the analysis has it.
    if event.rtt_ns > 0 and event.now_ns - flow.update_ns >= event.rtt_min_ns:
        update(flow, params, event)
        flow.update_ns = event.now_ns
    answer(flow, params, event, result)


def on_loss(flow: Any, params: Any, event: Any, result: Any) -> None:
    cut(flow, event, 0.5)
    answer(flow, params, event, result)


def on_timeout(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts += 1
    cut(flow, event, 0.5)
    if flow.timeouts >= params.timeout_limit:
        flow.rate = 0.0  # answer lifts it to the least rate
    answer(flow, params, event, result)


POLICY = window_policy(
    "timely",
    flow=Flow,
    params=Params,
    on_start=on_start,
    on_ack=on_ack,
    on_loss=on_loss,
    on_timeout=on_timeout,
    promises=Promises(
        source="Zhu et al., CoNEXT 2016, section 4.3",
        signals=("rtt", "loss", "timeout"),
        state_bytes_max=424,
        cut_on=("rtt", "loss"),
        cut_factor=(0.4, 0.999),
        convergence_rtts=40,
        utilization_min=0.7,
    ),
)
