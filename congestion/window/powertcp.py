"""PowerTCP: the window divided by the power of the busiest link: queues and their growth.

Source: Addanki et al., "PowerTCP: Pushing the Performance Limits of Datacenter Networks", NSDI
2022, algorithm 1. Power is (growth of the queue + rate) times (queue + rate times base RTT), over
the same of a full link without a queue. Switch ports stamp what it needs into each segment.

Departures: only switch ports stamp, not the sender's own; a flow may use several paths but has one
window, so the estimates of up to seven of them, and of the latest, make one average over time; the
rate of a port counts as at most its link's, and power as at least `power_min`; samples in which no
port has power are left out; a window that the sender does not use does not grow; a loss halves the
window at most once in a round trip, and `timeout_limit` timeouts in a row set it to the minimum,
because the network may drop packets. `hold_ns` adds room for segments that wait at the receiver for
their acknowledgment, and is part of the time over which power is smoothed.

Without telemetry (sockets, verbs, switches that stamp nothing) power is that of the round trip,
(growth of the RTT + 1) times RTT / least RTT, as in the paper's version for such networks, but with
the window rule of algorithm 1.
"""

from __future__ import annotations

from typing import Any

from congestion.api import MAX_HOPS, record, window_policy
from congestion.promises import Promises
from congestion.telemetry import FIELDS, base_rtt_ns, keep, line, place_of, room

Flow = record(
    power=float,  # smoothed
    window_bytes=float,
    old_window_bytes=float,  # the window when this round trip began
    round_end_bytes=float,  # delivered bytes with which the round trip ends
    round_ns=int,  # when it began
    cut_ns=int,
    timeouts=int,  # consecutive timeouts without an acknowledgment
    stamped=int,  # 1: an acknowledgment brought telemetry
    measured_ns=int,  # when telemetry of any path was last compared
    ack_ns=int,  # of the last acknowledgment without telemetry
    rtt_ns=int,  # of that acknowledgment
    **FIELDS,
)

Params = record(
    gamma=0.9,
    flows=20.0,  # N: beta is the host link's bytes in a base RTT, over N
    power_min=0.1,
    base_rtt_ns=0,  # tau; 0: the least RTT
    hold_ns=30_000,  # how long a receiver may wait before it acknowledges
    link_bytes_per_s=12.5e9,  # used if neither the system nor a hop tells one: 100 Gb/s
    window_segments_min=2.0,
    timeout_limit=3,
)


def smooth(flow: Any, sample: float, between_ns: float, base_ns: float) -> None:
    share = min(max(between_ns / base_ns, 0.0), 1.0)
    flow.power = (1.0 - share) * flow.power + share * sample


def measure(flow: Any, params: Any, event: Any, base_ns: float, place: int) -> None:
    """NormPower of algorithm 1. Samples of all paths make one average over time."""
    old = place * MAX_HOPS
    most = 0.0
    period_ns = 0.0
    for hop in range(MAX_HOPS):
        if hop < event.hops:
            between_ns = float(event.hop_timestamp_ns[hop]) - flow.hop_timestamp_ns[old + hop]
            sent_bytes = float(event.hop_tx_bytes[hop]) - flow.hop_tx_bytes[old + hop]
            rate = float(event.hop_link_bytes_per_s[hop])
            if between_ns > 0.0 and sent_bytes >= 0.0 and rate > 0.0:
                queue_bytes = float(event.hop_queue_bytes[hop])
                grown_bytes = queue_bytes - flow.hop_queue_bytes[old + hop]
                sent = min(sent_bytes * 1e9 / (between_ns * rate), 1.0)
                current = grown_bytes * 1e9 / (between_ns * rate) + sent
                power = current * (queue_bytes * 1e9 / (rate * base_ns) + 1.0)
                if power > most:
                    most = power
                    period_ns = between_ns
    if period_ns > 0.0:
        since_ns = float(event.now_ns) - flow.measured_ns
        smooth(flow, most, min(period_ns, since_ns), base_ns + params.hold_ns)
        flow.measured_ns = event.now_ns


def measure_delay(flow: Any, event: Any, base_ns: float) -> None:
    between_ns = float(event.now_ns) - flow.ack_ns
    if flow.rtt_ns > 0 and between_ns > 0.0:
        growth = (float(event.rtt_ns) - flow.rtt_ns) / between_ns
        smooth(flow, (growth + 1.0) * event.rtt_ns / base_ns, between_ns, base_ns)
    flow.rtt_ns = event.rtt_ns
    flow.ack_ns = event.now_ns


def observe(flow: Any, params: Any, event: Any, base_ns: float) -> None:
    if event.hops > 0:
        flow.stamped = 1
        place = place_of(flow, event, base_ns)
        if flow.paths[place] == event.path + 1 and flow.path_hops[place] == event.hops:
            measure(flow, params, event, base_ns, place)
        keep(flow, event, place)
    elif flow.stamped == 0 and event.rtt_ns > 0:
        measure_delay(flow, event, base_ns)


def answer(flow: Any, params: Any, event: Any, result: Any) -> None:
    base_ns = base_rtt_ns(params, event)
    cap = max(float(event.window_bytes_max), float(event.segment_bytes))
    most = cap
    if event.link_bytes_per_s > 0:  # more than the host's link holds would only queue
        most = min(most, max(line(params, event) * base_ns * 1e-9, float(event.segment_bytes)))
    segments = max(params.window_segments_min, 0.0001)
    least = segments * max(float(event.segment_bytes), 1.0)
    flow.window_bytes = min(max(flow.window_bytes, least), max(most, least))
    result.window_bytes = min(flow.window_bytes * room(params, event), max(cap, least))
    result.window_segments_min = min(segments, 1.0)
    result.pacing_bytes_per_s = flow.window_bytes * 1e9 / base_ns


def begin_round(flow: Any, event: Any, window_bytes: float) -> None:
    flow.round_ns = event.now_ns
    flow.round_end_bytes = float(event.delivered_bytes) + event.inflight_bytes
    flow.old_window_bytes = window_bytes


def on_start(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.power = 1.0
    flow.window_bytes = line(params, event) * base_rtt_ns(params, event) * 1e-9
    if event.hint_window_bytes > 0.0:
        flow.window_bytes = event.hint_window_bytes / room(params, event)
    flow.ack_ns = event.now_ns
    answer(flow, params, event, result)
    begin_round(flow, event, flow.window_bytes)


def on_ack(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts = 0
    base_ns = base_rtt_ns(params, event)
    observe(flow, params, event, base_ns)
    beta = line(params, event) * base_ns * 1e-9 / max(params.flows, 1.0)
    aim = flow.old_window_bytes / max(flow.power, params.power_min, 0.001) + beta
    window_bytes = params.gamma * aim + (1.0 - params.gamma) * flow.window_bytes
    if event.app_limited == 1:
        window_bytes = min(window_bytes, flow.window_bytes)
    flow.window_bytes = window_bytes
    answer(flow, params, event, result)
    timely = float(event.now_ns) - flow.round_ns >= float(event.srtt_ns)
    if timely and float(event.delivered_bytes) >= flow.round_end_bytes:
        begin_round(flow, event, flow.window_bytes)


def on_loss(flow: Any, params: Any, event: Any, result: Any) -> None:
    if float(event.now_ns) - flow.cut_ns >= float(max(event.srtt_ns, event.rtt_min_ns)):
        flow.cut_ns = event.now_ns
        flow.window_bytes /= 2.0
        flow.old_window_bytes = min(flow.old_window_bytes, flow.window_bytes)
    answer(flow, params, event, result)


def on_timeout(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts += 1
    if flow.timeouts >= params.timeout_limit:
        flow.window_bytes = 0.0  # answer() raises it to the least window
        flow.old_window_bytes = 0.0
    answer(flow, params, event, result)


PAPER = {"flows": 100.0, "window_segments_min": 0.001, "hold_ns": 0}

POLICY = window_policy(
    "powertcp",
    flow=Flow,
    params=Params,
    on_start=on_start,
    on_ack=on_ack,
    on_loss=on_loss,
    on_timeout=on_timeout,
    presets={"host": {}, "paper": PAPER, "fabric": PAPER | {"hold_ns": 10_000}},
    promises=Promises(
        source="Addanki et al., NSDI 2022, algorithm 1",
        signals=("int", "rtt", "loss", "timeout"),
        state_bytes_max=1_816,
        cut_on=("rtt", "loss"),
        cut_factor=(0.03, 0.75),
        convergence_rtts=100,
        utilization_min=0.8,
    ),
)
