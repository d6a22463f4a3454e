"""HPCC: the window that keeps the bytes in flight of the busiest link at 95 % of what it holds.

Source: Li et al., "HPCC: High Precision Congestion Control", SIGCOMM 2019, algorithm 1. Switch
ports stamp their queue, bytes sent, time and rate into each segment, and acknowledgments bring
these back. U is the estimate of bytes in flight over rate times base RTT, of the busiest port.

Departures: only switch ports stamp, not the sender's own; a flow may use several paths but has one
window, so the estimates of up to seven of them, and of the latest, make one average over time; the
rate of a port counts as at most its link's; a window that the sender does not use does not grow,
and the smallest is one segment; a loss halves the window at most once in a round trip, and
`timeout_limit` timeouts in a row set it to the minimum, because the network may drop packets.
`hold_ns` adds room for segments that wait at the receiver for their acknowledgment.

Without telemetry (sockets, verbs, switches that stamp nothing) U is `eta` times RTT / least RTT:
the window shrinks by the share of the RTT that is queueing, and each flow keeps about W_AI bytes in
a queue.
"""

from __future__ import annotations

from typing import Any

from congestion.api import MAX_HOPS, record, window_policy
from congestion.promises import Promises
from congestion.telemetry import FIELDS, base_rtt_ns, keep, line, place_of, room

U_MIN = 0.01  # a link that is idle multiplies the window by at most 95

Flow = record(
    u=float,  # U, smoothed
    base_window_bytes=float,  # W_c, which changes once in a round trip
    window_bytes=float,
    stages=int,  # incStage
    round_end_bytes=float,  # delivered bytes with which the round trip ends
    round_ns=int,  # when it began
    cut_ns=int,
    timeouts=int,  # consecutive timeouts without an acknowledgment
    stamped=int,  # 1: an acknowledgment brought telemetry
    measured_ns=int,  # when telemetry of any path was last compared
    ack_ns=int,  # of the last acknowledgment without telemetry
    **FIELDS,
)

Params = record(
    eta=0.95,
    stages_max=5,  # maxStage
    flows=10.0,  # N: W_AI is (1 - eta) of the host link's bytes in a base RTT, over N
    base_rtt_ns=0,  # T; 0: the least RTT
    hold_ns=30_000,  # how long a receiver may wait before it acknowledges
    link_bytes_per_s=12.5e9,  # used if neither the system nor a hop tells one: 100 Gb/s
    window_segments_min=2.0,
    timeout_limit=3,
)


def smooth(flow: Any, sample: float, tau_ns: float, base_ns: float) -> None:
    share = min(max(tau_ns / base_ns, 0.0), 1.0)
    flow.u = (1.0 - share) * flow.u + share * sample


def measure(flow: Any, event: Any, base_ns: float, place: int) -> None:
    """MeasureInflight of algorithm 1. Samples of all paths make one average over time."""
    old = place * MAX_HOPS
    most = 0.0
    tau_ns = 0.0
    for hop in range(MAX_HOPS):
        if hop < event.hops:
            between_ns = float(event.hop_timestamp_ns[hop]) - flow.hop_timestamp_ns[old + hop]
            sent_bytes = float(event.hop_tx_bytes[hop]) - flow.hop_tx_bytes[old + hop]
            rate = float(event.hop_link_bytes_per_s[hop])
            if between_ns > 0.0 and sent_bytes >= 0.0 and rate > 0.0:
                used = min(sent_bytes * 1e9 / (between_ns * rate), 1.0)
                queue = min(event.hop_queue_bytes[hop], flow.hop_queue_bytes[old + hop])
                used += max(queue, 0) * 1e9 / (rate * base_ns)
                if used > most:
                    most = used
                    tau_ns = between_ns
    if tau_ns > 0.0:
        since_ns = float(event.now_ns) - flow.measured_ns
        smooth(flow, most, min(tau_ns, since_ns), base_ns)
        flow.measured_ns = event.now_ns


def observe(flow: Any, params: Any, event: Any, base_ns: float) -> None:
    if event.hops > 0:
        flow.stamped = 1
        place = place_of(flow, event, base_ns)
        if flow.paths[place] == event.path + 1 and flow.path_hops[place] == event.hops:
            measure(flow, event, base_ns, place)
        keep(flow, event, place)
    elif flow.stamped == 0 and event.rtt_ns > 0:
        # eta at the least RTT, so that the window stays there, and the delay counts as a queue.
        sample = params.eta * event.rtt_ns / base_ns
        smooth(flow, sample, float(event.now_ns) - flow.ack_ns, base_ns)
        flow.ack_ns = event.now_ns


def answer(flow: Any, params: Any, event: Any, result: Any) -> None:
    base_ns = base_rtt_ns(params, event)
    cap = max(float(event.window_bytes_max), float(event.segment_bytes))
    most = cap
    if event.link_bytes_per_s > 0:  # more than the host's link holds would only queue
        most = min(most, max(line(params, event) * base_ns * 1e-9, float(event.segment_bytes)))
    segments = max(params.window_segments_min, 0.0001)
    least = segments * max(float(event.segment_bytes), 1.0)
    flow.window_bytes = min(max(flow.window_bytes, least), max(most, least))
    flow.base_window_bytes = min(max(flow.base_window_bytes, least), max(most, least))
    result.window_bytes = min(flow.window_bytes * room(params, event), max(cap, least))
    result.window_segments_min = min(segments, 1.0)
    result.pacing_bytes_per_s = flow.window_bytes * 1e9 / base_ns


def on_start(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.u = params.eta
    base_ns = base_rtt_ns(params, event)
    flow.base_window_bytes = line(params, event) * base_ns * 1e-9
    if event.hint_window_bytes > 0.0:
        flow.base_window_bytes = event.hint_window_bytes / room(params, event)
    flow.window_bytes = flow.base_window_bytes
    flow.round_end_bytes = float(event.delivered_bytes) + event.inflight_bytes
    flow.ack_ns = event.now_ns
    answer(flow, params, event, result)


def on_ack(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts = 0
    base_ns = base_rtt_ns(params, event)
    observe(flow, params, event, base_ns)
    increase = (1.0 - params.eta) * line(params, event) * base_ns * 1e-9 / max(params.flows, 1.0)
    round_over = float(event.now_ns) - flow.round_ns >= float(event.srtt_ns)
    round_over = round_over and float(event.delivered_bytes) >= flow.round_end_bytes
    by_u = flow.u >= params.eta or flow.stages >= params.stages_max
    window_bytes = flow.base_window_bytes + increase
    if by_u:
        window_bytes = flow.base_window_bytes * params.eta / max(flow.u, U_MIN) + increase
    if event.app_limited == 1:
        window_bytes = min(window_bytes, flow.window_bytes)
    flow.window_bytes = window_bytes
    if round_over:
        flow.round_end_bytes = float(event.delivered_bytes) + event.inflight_bytes
        flow.round_ns = event.now_ns
        flow.base_window_bytes = window_bytes
        flow.stages += 1
        if by_u:
            flow.stages = 0
    answer(flow, params, event, result)


def on_loss(flow: Any, params: Any, event: Any, result: Any) -> None:
    if float(event.now_ns) - flow.cut_ns >= float(max(event.srtt_ns, event.rtt_min_ns)):
        flow.cut_ns = event.now_ns
        flow.base_window_bytes = min(flow.base_window_bytes, flow.window_bytes) / 2.0
        flow.window_bytes = flow.base_window_bytes
        flow.stages = 0
    answer(flow, params, event, result)


def on_timeout(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts += 1
    if flow.timeouts >= params.timeout_limit:
        flow.window_bytes = 0.0  # answer() raises it to the least window
        flow.base_window_bytes = 0.0
    answer(flow, params, event, result)


PAPER = {"flows": 100.0, "window_segments_min": 1.0, "hold_ns": 0}

POLICY = window_policy(
    "hpcc",
    flow=Flow,
    params=Params,
    on_start=on_start,
    on_ack=on_ack,
    on_loss=on_loss,
    on_timeout=on_timeout,
    presets={"host": {}, "paper": PAPER, "fabric": PAPER | {"hold_ns": 10_000}},
    promises=Promises(
        source="Li et al., SIGCOMM 2019, algorithm 1",
        signals=("int", "rtt", "loss", "timeout"),
        state_bytes_max=1_816,
        cut_on=("rtt", "loss"),
        cut_factor=(0.03, 0.75),
        convergence_rtts=100,
        utilization_min=0.8,
    ),
)
