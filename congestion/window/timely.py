"""Patched TIMELY: a rate from the gradient of delay, with a single fixed point.

Sources: Zhu et al., "ECN or Delay: Lessons Learnt from Analysis of DCQCN and TIMELY", CoNEXT 2016,
section 4.3, and Mittal et al., "TIMELY", SIGCOMM 2015, section 4. Marks are not used.

The preset `paper` is algorithm 2 of the first paper: the thresholds are of the whole RTT, and each
completion of 16 KB updates the rate, once in the least RTT at most, also above the upper threshold.
Its departures: a loss halves the rate at most once in a round trip, because the network may drop
packets; the rate does not grow while there is nothing to send; gradients compare samples of one
path; and a window limits the bytes in flight to the rate times the sum of the minimum RTT and
`high_ns`.

The other presets depart further: thresholds apply to the RTT less the path's own minimum RTT,
because paths may differ in length; above the upper threshold the rate falls at most once per round
trip; and a gradient is divided by the round trips between its two samples.
"""

from __future__ import annotations

from typing import Any

from congestion.api import record, window_policy
from congestion.promises import Promises

SLOTS = 16  # for the last sample of each path; paths that share a slot overwrite each other

Flow = record(
    rate=float,  # sending rate in bytes per second
    paths=(0,) * SLOTS,  # path index of each slot's sample, plus one; 0: no sample
    queues_ns=(0.0,) * SLOTS,  # queueing delay of each slot's last sample
    sampled_ns=(0,) * SLOTS,
    difference_ns=float,  # smoothed change of the queueing delay per round trip
    update_ns=int,
    cut_ns=int,
    completed_bytes=float,  # acknowledged since the last update
    timeouts=int,  # consecutive timeouts without an acknowledgment
)

Params = record(
    link_bytes_per_s=12.5e9,  # used if the OS reports no link speed: 100 Gb/s
    low_ns=50_000.0,  # less queueing delay counts as none; TIMELY, section 4.4
    high_ns=500_000.0,
    smoothing=0.875,  # weight of a new sample in difference_ns (alpha in the paper)
    increase_share=0.001,  # delta as a share of the link's rate: 10 Mb/s at 10 Gb/s
    gain=0.008,  # beta of patched TIMELY
    gain_high=0.8,  # beta above the upper threshold
    start_share=0.5,  # initial rate as a share of the link's; TIMELY, section 4.2: 1 / (flows + 1)
    least_share=0.001,
    timeout_limit=3,
    whole_rtt=0,  # 1: the thresholds are of the RTT; 0: of the RTT less its minimum on the path
    completion_bytes=0.0,  # an update after so many bytes; 0: by time only, and cuts once per RTT
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
    """Shrinks the rate, at most once per round trip."""
    if event.now_ns - flow.cut_ns >= max(event.srtt_ns, event.rtt_min_ns):
        flow.rate *= factor
        flow.cut_ns = event.now_ns


def note_difference(flow: Any, params: Any, event: Any, queue_ns: float, base_ns: float) -> None:
    """Updates difference_ns by a new sample, if the path has an earlier one to compare with."""
    slot = event.path % SLOTS
    if flow.paths[slot] == event.path + 1:
        round_trips = max((event.now_ns - flow.sampled_ns[slot]) / base_ns, 1.0)
        if params.completion_bytes > 0.0:
            round_trips = 1.0  # consecutive samples, whatever the time between them
        difference_ns = (queue_ns - flow.queues_ns[slot]) / round_trips
        flow.difference_ns += params.smoothing * (difference_ns - flow.difference_ns)
    flow.paths[slot] = event.path + 1
    flow.queues_ns[slot] = queue_ns
    flow.sampled_ns[slot] = event.now_ns


def update(flow: Any, params: Any, event: Any) -> None:
    """Updates the rate by a new RTT sample, as algorithm 2 of the CoNEXT paper does."""
    base_ns = max(float(event.rtt_min_ns), 1.0)
    queue_ns = max(float(event.rtt_ns) - base_ns, 0.0)
    note_difference(flow, params, event, queue_ns, base_ns)
    delay_ns = queue_ns
    reference_ns = base_ns + params.low_ns
    if params.whole_rtt == 1:
        delay_ns = float(event.rtt_ns)
        reference_ns = max(params.low_ns, 1.0)
    step = params.increase_share * link(params, event)
    if event.app_limited != 0:
        step = 0.0
    if delay_ns < params.low_ns:
        flow.rate += step
    elif delay_ns > params.high_ns:
        excess = (delay_ns - params.high_ns) / (queue_ns + base_ns)
        factor = 1.0 - params.gain_high * excess
        if params.completion_bytes > 0.0:
            flow.rate *= factor
        else:
            cut(flow, event, factor)
    else:
        gradient = flow.difference_ns / base_ns
        weight = min(max(2.0 * gradient + 0.5, 0.0), 1.0)
        error = (delay_ns - params.low_ns) / reference_ns
        flow.rate *= 1.0 - min(params.gain * weight * error, 0.5)
        flow.rate += step * (1.0 - weight)


def on_start(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.rate = params.start_share * link(params, event)
    if event.hint_window_bytes > 0.0:  # start at the replaced policy's window per round trip
        round_trip_ns = float(event.srtt_ns)
        if event.srtt_ns <= 0:
            round_trip_ns = max(event.rtt_min_ns, 0) + params.high_ns
        flow.rate = event.hint_window_bytes * 1e9 / max(round_trip_ns, 1.0)
    answer(flow, params, event, result)


def on_ack(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts = 0
    flow.completed_bytes += event.acked_bytes
    # The rate is updated once per minimum RTT, as in section 3.2 of the CoNEXT paper.
    complete = flow.completed_bytes >= params.completion_bytes
    if event.rtt_ns > 0 and complete and event.now_ns - flow.update_ns >= event.rtt_min_ns:
        update(flow, params, event)
        flow.update_ns = event.now_ns
        flow.completed_bytes = 0.0
    answer(flow, params, event, result)


def on_loss(flow: Any, params: Any, event: Any, result: Any) -> None:
    cut(flow, event, 0.5)
    answer(flow, params, event, result)


def on_timeout(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts += 1
    cut(flow, event, 0.5)
    if flow.timeouts >= params.timeout_limit:
        flow.rate = 0.0  # answer() raises it to the minimum rate
    answer(flow, params, event, result)


POLICY = window_policy(
    "timely",
    flow=Flow,
    params=Params,
    on_start=on_start,
    on_ack=on_ack,
    on_loss=on_loss,
    on_timeout=on_timeout,
    presets={
        "host": {},
        "paper": {"whole_rtt": 1, "completion_bytes": 16_000.0},
        "fabric": {"low_ns": 5_000.0, "high_ns": 50_000.0},
    },
    promises=Promises(
        source="Zhu et al., CoNEXT 2016, section 4.3",
        signals=("rtt", "loss", "timeout"),
        state_bytes_max=432,
        cut_on=("rtt", "loss"),
        cut_factor=(0.4, 0.999),
        convergence_rtts=40,
        utilization_min=0.7,
    ),
)
