"""CUBIC: the window is a cubic function of the time since the last cut.

Source: RFC 9438, sections 4.1 to 4.10. Delay is not used.

In a data centre the Reno-friendly region applies nearly always, because the cubic function takes
seconds to grow. Time in which the application limits the flow does not count (section 5.8). One
departure: the first timeout shrinks the window only as a loss does, because one silent path of
several does not mean that the network has collapsed.
"""

from __future__ import annotations

from typing import Any

from congestion.api import record, window_policy
from congestion.promises import Promises

FAR = 1 << 60  # keeps sums of bytes within an int64

Flow = record(
    window_bytes=float,
    threshold_bytes=float,  # ssthresh: slow start ends here
    peak_bytes=float,  # W_max: the plateau of the cubic function
    prior_bytes=float,  # cwnd_prior: the window before the last cut
    friendly_bytes=float,  # W_est: the window that Reno would have
    origin_s=float,  # K: time after the cut until the window is back at W_max
    epoch_s=float,  # duration of this epoch of congestion avoidance
    last_ack_ns=int,
    last_cut_ns=int,
    recover_bytes=int,  # delivered_bytes when all data in flight at the last cut has arrived
    timeouts=int,  # consecutive timeouts without an acknowledgment
)

Params = record(
    start_segments=10.0,  # initial window, RFC 6928
    scale=0.4,  # C, section 4.1.2, in segments per cubic second
    decrease_factor=0.7,  # beta, section 4.6
    target_max=1.5,  # limit of the target window, as a multiple of the window, section 4.2
    timeout_limit=2,
)


def answer(flow: Any, event: Any, result: Any) -> None:
    least = 2.0 * max(float(event.segment_bytes), 1.0)
    most = max(float(event.window_bytes_max), least)
    flow.window_bytes = min(max(flow.window_bytes, least), most)
    result.window_bytes = flow.window_bytes
    result.pacing_bytes_per_s = 0.0


def cube_root(x: float) -> Any:
    """The cube root by Newton's method; unlike libm, it gives the same bits on every platform."""
    root = max(x, 1.0)
    for _ in range(64):
        root = (2.0 * root + x / (root * root)) / 3.0
    return root


def begin_epoch(flow: Any, origin_s: float) -> None:
    flow.origin_s = origin_s
    flow.epoch_s = 0.0
    flow.friendly_bytes = flow.window_bytes


def cut(flow: Any, params: Any, event: Any) -> None:
    """Shrinks the window, once per window of data, with fast convergence."""
    if event.now_ns - flow.last_cut_ns < max(event.srtt_ns, event.rtt_min_ns):
        return
    if max(event.delivered_bytes - event.acked_bytes, 0) < flow.recover_bytes:
        return  # the lost data was sent before the last cut
    flow.last_cut_ns = event.now_ns
    flow.recover_bytes = min(max(event.delivered_bytes, 0), FAR)
    flow.recover_bytes += min(max(event.inflight_bytes, 0), FAR)
    flow.last_ack_ns = event.now_ns  # a new epoch of congestion avoidance begins
    flow.prior_bytes = flow.window_bytes
    if flow.window_bytes < flow.peak_bytes:  # fast convergence, section 4.7
        flow.peak_bytes = flow.window_bytes * (1.0 + params.decrease_factor) / 2.0
    else:
        flow.peak_bytes = flow.window_bytes
    flow.window_bytes *= params.decrease_factor
    flow.threshold_bytes = flow.window_bytes
    segments = (flow.peak_bytes - flow.window_bytes) / max(float(event.segment_bytes), 1.0)
    begin_epoch(flow, cube_root(segments / params.scale))


def avoid(flow: Any, params: Any, event: Any) -> None:
    """Congestion avoidance, sections 4.2 to 4.5."""
    segment_bytes = max(float(event.segment_bytes), 1.0)
    share = event.acked_bytes / flow.window_bytes
    step = 1.0  # alpha, section 4.3: 1 once W_est has reached cwnd_prior
    if flow.friendly_bytes < flow.prior_bytes:
        step = 3.0 * (1.0 - params.decrease_factor) / (1.0 + params.decrease_factor)
    flow.friendly_bytes += step * segment_bytes * share
    now_s = flow.epoch_s - flow.origin_s
    cubic_bytes = flow.peak_bytes + params.scale * now_s * now_s * now_s * segment_bytes
    if cubic_bytes < flow.friendly_bytes:
        flow.window_bytes = max(flow.window_bytes, flow.friendly_bytes)
        return
    ahead_s = now_s + max(event.srtt_ns, 0) * 1e-9
    target_bytes = flow.peak_bytes + params.scale * ahead_s * ahead_s * ahead_s * segment_bytes
    target_bytes = min(max(target_bytes, flow.window_bytes), params.target_max * flow.window_bytes)
    flow.window_bytes += (target_bytes - flow.window_bytes) * min(share, 1.0)


def on_start(flow: Any, params: Any, event: Any, result: Any) -> None:
    if event.hint_window_bytes > 0.0:  # take over the replaced policy's window; end slow start
        flow.window_bytes = event.hint_window_bytes
        flow.threshold_bytes = event.hint_window_bytes
    else:
        flow.window_bytes = params.start_segments * max(float(event.segment_bytes), 1.0)
        flow.threshold_bytes = max(float(event.window_bytes_max), 0.0)
    answer(flow, event, result)
    flow.peak_bytes = flow.window_bytes
    flow.last_ack_ns = event.now_ns
    begin_epoch(flow, 0.0)


def on_ack(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts = 0
    elapsed_s = min(max(event.now_ns - flow.last_ack_ns, 0), 1_000_000_000) * 1e-9
    flow.last_ack_ns = event.now_ns
    if event.ecn_segments > 0:  # section 4.6: marks count as losses
        cut(flow, params, event)
    elif event.app_limited == 0:
        if flow.window_bytes < flow.threshold_bytes:
            flow.window_bytes = min(flow.window_bytes + event.acked_bytes, flow.threshold_bytes)
            flow.peak_bytes = flow.window_bytes
            begin_epoch(flow, 0.0)
        else:
            flow.epoch_s += elapsed_s
            avoid(flow, params, event)
    answer(flow, event, result)


def on_loss(flow: Any, params: Any, event: Any, result: Any) -> None:
    if flow.timeouts == 0:  # RFC 5681, section 3.1: repeated timeouts keep the threshold
        cut(flow, params, event)
    answer(flow, event, result)


def on_timeout(flow: Any, params: Any, event: Any, result: Any) -> None:
    if flow.timeouts == 0:
        cut(flow, params, event)
    flow.timeouts += 1
    if flow.timeouts >= params.timeout_limit:
        flow.window_bytes = 0.0  # answer() raises it to the minimum window
    answer(flow, event, result)


POLICY = window_policy(
    "cubic",
    flow=Flow,
    params=Params,
    on_start=on_start,
    on_ack=on_ack,
    on_loss=on_loss,
    on_timeout=on_timeout,
    presets={"host": {}, "paper": {}, "fabric": {}},
    promises=Promises(
        source="RFC 9438, section 4",
        signals=("ecn", "loss", "timeout"),
        state_bytes_max=88,
        growth_segments=(0.45, 2.0),
        cut_on=("loss", "ecn"),
        cut_factor=(0.7, 0.75),
        cuts_per_rtt=1,
        regain_s=(5.5, 7.0),  # computed: cbrt(300 / 0.4) - cbrt(10 / 0.4) = 6.2 s
        fairness_min=0.8,
        convergence_rtts=60,
        utilization_min=0.8,
    ),
)
