"""Poseidon: the rate at which the delay of the busiest hop is what that rate allows.

Source: Wang et al., "Poseidon: An Efficient Congestion Control using Deployable INT for Data Center
Networks", NSDI 2023, section 3. The signal is the largest delay of one hop (MPD). A flow of a low
rate allows a longer one than a flow of a high rate (MPT), so that all flows at a hop, which see the
same delay, come to the same rate: the largest fair one.

    MPT(rate) = k + p * (ln rate_max - ln rate) / (ln rate_max - ln rate_min)
    factor    = exp(m * (MPT - MPD) / p * (ln rate_max - ln rate_min))

A rate below its fair one grows by the factor in a round trip, a higher one falls by it. That is
(fair rate / rate) to the power of m.

Departures: the delay of a hop is what waits behind the segment over the port's rate; the paper's
switches measure how long the packet waited. A window that is not used does not grow. With several
paths each acknowledgment changes the window by its share of the round trip, in both directions;
`spread` = 0 (`paper`) cuts once in a round trip. A loss halves the window at most once in a round
trip, and `timeout_limit` timeouts in a row set it to the minimum.

Without telemetry (sockets, verbs, switches that stamp nothing) the queueing delay of the whole way,
RTT less the least RTT, counts as the delay of a hop.
"""

from __future__ import annotations

import math
from typing import Any

from congestion.api import MAX_HOPS, record, window_policy
from congestion.promises import Promises
from congestion.telemetry import base_rtt_ns, line, room

Flow = record(
    window_bytes=float,
    cut_ns=int,
    round_ns=int,  # begin of the round trip
    round_window_bytes=float,  # the window then
    timeouts=int,  # consecutive timeouts without an acknowledgment
    stamped=int,  # 1: an acknowledgment brought telemetry
)

Params = record(
    target_ns=10_000,  # k: the delay that a flow at the highest rate allows
    range_ns=100_000,  # p: how much more one at the lowest rate allows
    rate_min_bytes_per_s=12.5e6,  # 100 Mb/s
    rate_max_bytes_per_s=0.0,  # 0: the link's rate
    step=0.25,  # m: how much of the way to the fair rate a round trip goes, in logarithms
    factor_max=2.0,  # of the growth in a round trip, and 1 / factor_max of a cut
    spread=1,  # 0: cuts come once in a round trip
    base_rtt_ns=0,  # 0: the least RTT
    hold_ns=30_000,  # how long a receiver may wait before it acknowledges
    link_bytes_per_s=12.5e9,  # used if neither the system nor a hop tells one: 100 Gb/s
    window_segments_min=2.0,
    timeout_limit=3,
)


def hop_delay_ns(flow: Any, event: Any) -> Any:
    """MPD: the largest delay of a hop, or the queueing delay of the way; negative: unknown."""
    most_ns = -1.0
    if event.hops > 0:
        flow.stamped = 1
        for hop in range(MAX_HOPS):
            if hop < event.hops and event.hop_link_bytes_per_s[hop] > 0:
                waits = float(event.hop_queue_bytes[hop]) * 1e9 / event.hop_link_bytes_per_s[hop]
                most_ns = max(most_ns, waits)
    elif flow.stamped == 0 and event.rtt_ns > 0:
        most_ns = max(float(event.rtt_ns) - event.rtt_min_ns, 0.0)
    return most_ns


# Logarithm and exponential by square roots and products, which are the same in all C libraries, so
# that runs are, too. Both are exact to about 1e-9 in the ranges that occur.
ROOTS = 6  # 2 to the power of it is the 64 below


def log_of(x: float) -> Any:
    """The natural logarithm of x >= 1, up to 1e12: 64 times that of its 64th root."""
    for _ in range(ROOTS):
        x = math.sqrt(x)
    z = (x - 1.0) / (x + 1.0)
    w = z * z
    series = 1.0 + w * (1.0 / 3.0 + w * (1.0 / 5.0 + w * (1.0 / 7.0 + w / 9.0)))
    return 2.0 * z * series * 64.0


def exp_of(x: float) -> Any:
    """e to the power of x, for -3 <= x <= 3: the eighth power of a series."""
    x = x / 8.0
    value = 1.0
    for term in range(8):
        value = 1.0 + value * x / (8.0 - term)
    value *= value
    value *= value
    return value * value


def round_trip_ns(params: Any, event: Any) -> Any:
    return max(base_rtt_ns(params, event), float(event.rtt_ns))


def factor(flow: Any, params: Any, event: Any, delay_ns: float) -> Any:
    """By how much the window changes in a round trip with this delay."""
    most = params.rate_max_bytes_per_s
    if most <= 0.0:
        most = line(params, event)
    least = min(max(params.rate_min_bytes_per_s, 1.0), most / 2.0)
    span = log_of(most / least)
    rate = min(max(flow.window_bytes * 1e9 / round_trip_ns(params, event), 1.0), most)
    range_ns = max(float(params.range_ns), 1.0)
    target_ns = params.target_ns + range_ns * log_of(most / rate) / span
    bound = min(log_of(max(params.factor_max, 1.0)), 3.0)
    change = params.step * span * (target_ns - delay_ns) / range_ns
    return exp_of(min(max(change, -bound), bound))


def answer(flow: Any, params: Any, event: Any, result: Any) -> None:
    segments = max(params.window_segments_min, 0.0001)
    least = segments * max(float(event.segment_bytes), 1.0)
    cap = max(float(event.window_bytes_max), least)
    most = cap
    if event.link_bytes_per_s > 0:  # the link's bytes in a round trip with the longest target
        round_ns = base_rtt_ns(params, event) + params.target_ns + params.range_ns
        most = min(most, max(line(params, event) * round_ns * 1e-9, least))
    flow.window_bytes = min(max(flow.window_bytes, least), most)
    result.window_bytes = min(flow.window_bytes * room(params, event), cap)
    result.window_segments_min = min(segments, 1.0)
    result.pacing_bytes_per_s = flow.window_bytes * 1e9 / round_trip_ns(params, event)


def on_start(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.window_bytes = line(params, event) * base_rtt_ns(params, event) * 1e-9
    if event.hint_window_bytes > 0.0:
        flow.window_bytes = event.hint_window_bytes / room(params, event)
    answer(flow, params, event, result)


def on_ack(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts = 0
    delay_ns = hop_delay_ns(flow, event)
    if delay_ns >= 0.0 and flow.window_bytes > 0.0:
        whole = factor(flow, params, event, delay_ns)
        if float(event.now_ns) - flow.round_ns >= float(event.srtt_ns):
            flow.round_ns = event.now_ns
            flow.round_window_bytes = flow.window_bytes
        # The part of a round trip that this acknowledgment stands for.
        round_bytes = max(flow.round_window_bytes, flow.window_bytes)
        share = min(float(event.acked_bytes) / round_bytes, 1.0)
        if whole >= 1.0:
            if event.app_limited == 0:
                flow.window_bytes *= 1.0 + (whole - 1.0) * share
        elif params.spread != 0:
            least = min(flow.window_bytes, flow.round_window_bytes * whole)
            flow.window_bytes = max(flow.window_bytes - (1.0 - whole) * share * round_bytes, least)
        elif float(event.now_ns) - flow.cut_ns >= float(event.srtt_ns):
            flow.cut_ns = event.now_ns
            flow.window_bytes *= whole
    answer(flow, params, event, result)


def on_loss(flow: Any, params: Any, event: Any, result: Any) -> None:
    if float(event.now_ns) - flow.cut_ns >= float(max(event.srtt_ns, event.rtt_min_ns)):
        flow.cut_ns = event.now_ns
        flow.window_bytes /= 2.0
    answer(flow, params, event, result)


def on_timeout(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts += 1
    if flow.timeouts >= params.timeout_limit:
        flow.window_bytes = 0.0  # answer() raises it to the least window
    answer(flow, params, event, result)


FABRIC = {
    "target_ns": 2_000,
    "range_ns": 40_000,
    "hold_ns": 10_000,
    "window_segments_min": 0.01,
}

POLICY = window_policy(
    "poseidon",
    flow=Flow,
    params=Params,
    on_start=on_start,
    on_ack=on_ack,
    on_loss=on_loss,
    on_timeout=on_timeout,
    presets={"host": {}, "paper": FABRIC | {"hold_ns": 0, "spread": 0}, "fabric": FABRIC},
    promises=Promises(
        source="Wang et al., NSDI 2023, section 3",
        signals=("int", "rtt", "loss", "timeout"),
        state_bytes_max=48,
        cut_on=("rtt", "loss"),
        cut_factor=(0.3, 1.0),
        fairness_min=0.9,
        utilization_min=0.8,
    ),
)
