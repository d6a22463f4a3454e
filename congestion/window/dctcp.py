"""DCTCP: cuts the window in proportion to the share of marked segments.

Source: RFC 8257 (Data Center TCP), sections 3.3 to 3.5. Delay is not used.

One departure: the first timeout shrinks the window only as a loss does, because one silent path of
several does not mean that the network has collapsed. A second timeout without an acknowledgment in
between sets the minimum window.
"""

from __future__ import annotations

from typing import Any

from congestion.api import record, window_policy
from congestion.promises import Promises

FAR = 1 << 60  # keeps sums of bytes within an int64

Flow = record(
    window_bytes=float,
    threshold_bytes=float,  # ssthresh: slow start ends here
    alpha=float,  # the estimated share of marked segments
    acked=float,  # segments, or bytes, acknowledged in the current round trip
    marked=float,
    round_start_ns=int,
    last_cut_ns=int,
    recover_bytes=int,  # delivered_bytes when all data in flight at the last cut has arrived
    timeouts=int,  # consecutive timeouts without an acknowledgment
)

Params = record(
    start_segments=10.0,  # initial window, RFC 6928
    increase_segments=1.0,  # window growth per round trip
    gain=0.0625,  # g of section 4.2: 1/16
    loss_factor=0.5,  # a loss multiplies the window by this factor, as in TCP; section 3.5
    timeout_limit=2,
    in_bytes=0,  # 1: alpha is the share of marked bytes, as in section 3.3, and not of segments
)


def answer(flow: Any, event: Any, result: Any) -> None:
    least = 2.0 * max(float(event.segment_bytes), 1.0)
    most = max(float(event.window_bytes_max), least)
    flow.window_bytes = min(max(flow.window_bytes, least), most)
    result.window_bytes = flow.window_bytes
    result.pacing_bytes_per_s = 0.0


def cut(flow: Any, event: Any, factor: float) -> None:
    """Shrinks the window once per window of data, as data in flight was sent before the cut."""
    waited = event.now_ns - flow.last_cut_ns >= max(event.srtt_ns, event.rtt_min_ns)
    before_bytes = max(event.delivered_bytes - event.acked_bytes, 0)
    if waited and before_bytes >= flow.recover_bytes:
        flow.last_cut_ns = event.now_ns
        flow.recover_bytes = min(max(event.delivered_bytes, 0), FAR)
        flow.recover_bytes += min(max(event.inflight_bytes, 0), FAR)
        flow.window_bytes *= factor
        flow.threshold_bytes = flow.window_bytes


def observe(flow: Any, params: Any, event: Any) -> None:
    """Counts marks; at the end of a round trip, updates alpha with their share."""
    # An event does not say which of its segments were marked: each counts as the average one.
    weight = 1.0
    if params.in_bytes != 0:
        weight = max(float(event.acked_bytes), 0.0) / max(event.acked_segments, 1)
    flow.acked += weight * max(event.acked_segments, 0)
    flow.marked += weight * max(event.ecn_segments, 0)
    if event.now_ns - flow.round_start_ns >= max(event.srtt_ns, event.rtt_min_ns):
        share = min(flow.marked / max(flow.acked, 1.0), 1.0)
        flow.alpha += params.gain * (share - flow.alpha)
        flow.acked = 0.0
        flow.marked = 0.0
        flow.round_start_ns = event.now_ns


def on_start(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.alpha = 1.0  # section 3.3: the conservative value until marks are measured
    if event.hint_window_bytes > 0.0:  # take over the replaced policy's window; end slow start
        flow.window_bytes = event.hint_window_bytes
        flow.threshold_bytes = event.hint_window_bytes
    else:
        flow.window_bytes = params.start_segments * max(float(event.segment_bytes), 1.0)
        flow.threshold_bytes = max(float(event.window_bytes_max), 0.0)
    answer(flow, event, result)


def on_ack(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts = 0
    observe(flow, params, event)
    if event.ecn_segments > 0:
        cut(flow, event, 1.0 - flow.alpha / 2.0)
    elif event.app_limited == 0:
        if flow.window_bytes < flow.threshold_bytes:
            flow.window_bytes = min(flow.window_bytes + event.acked_bytes, flow.threshold_bytes)
        else:
            share = event.acked_bytes / flow.window_bytes
            flow.window_bytes += params.increase_segments * event.segment_bytes * share
    answer(flow, event, result)


def on_loss(flow: Any, params: Any, event: Any, result: Any) -> None:
    if flow.timeouts == 0:  # RFC 5681, section 3.1: repeated timeouts keep the threshold
        cut(flow, event, params.loss_factor)
    answer(flow, event, result)


def on_timeout(flow: Any, params: Any, event: Any, result: Any) -> None:
    if flow.timeouts == 0:
        cut(flow, event, params.loss_factor)
    flow.timeouts += 1
    if flow.timeouts >= params.timeout_limit:
        flow.window_bytes = 0.0  # answer() raises it to the minimum window
    answer(flow, event, result)


POLICY = window_policy(
    "dctcp",
    flow=Flow,
    params=Params,
    on_start=on_start,
    on_ack=on_ack,
    on_loss=on_loss,
    on_timeout=on_timeout,
    presets={"host": {}, "paper": {"in_bytes": 1}, "fabric": {}},
    promises=Promises(
        source="RFC 8257, section 3",
        signals=("ecn", "loss", "timeout"),
        state_bytes_max=72,
        growth_segments=(0.9, 1.1),
        cut_on=("ecn", "loss"),
        cut_factor=(0.5, 0.99),  # depends on the share of marks in this round trip and before
        cuts_per_rtt=1,
        fairness_min=0.9,
        convergence_rtts=120,
        utilization_min=0.9,
    ),
)
