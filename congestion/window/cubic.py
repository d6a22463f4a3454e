"""CUBIC: the window is a cubic function of the time since the last cut.

Source: RFC 9438, sections 4.1 to 4.10. Slow start ends as RFC 9406 (HyStart++) has it in `paper`:
when round trips get longer, growth is slower for some of them, and if they stay long slow start
ends without a loss. In the defaults and in `fabric` (`hystart` is 0) delay is not used.

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
    # HyStart++: of this round trip and the last one.
    round_end_bytes=int,  # delivered_bytes with which it ends
    round_rtt_ns=int,  # least RTT in it; 0: none yet
    last_rtt_ns=int,
    samples=int,  # RTTs in it
    slow_rounds=int,  # round trips of slower growth; 0: slow start
    slow_rtt_ns=int,  # least RTT of the round trip before these
)

Params = record(
    start_segments=10.0,  # initial window, RFC 6928
    scale=0.4,  # C, section 4.1.2, in segments per cubic second
    decrease_factor=0.7,  # beta, section 4.6
    target_max=1.5,  # limit of the target window, as a multiple of the window, section 4.2
    timeout_limit=2,
    hystart=0,  # 1: slow start may end by delay, RFC 9406
    rtt_step_ns_min=4_000_000,  # MIN_RTT_THRESH of RFC 9406
    rtt_step_ns_max=16_000_000,  # MAX_RTT_THRESH
    rtt_divisor=8,  # MIN_RTT_DIVISOR
    rtt_samples=8,  # N_RTT_SAMPLE
    slow_divisor=4.0,  # CSS_GROWTH_DIVISOR
    slow_rounds_max=5,  # CSS_ROUNDS
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


def begin_round(flow: Any, event: Any) -> None:
    flow.round_end_bytes = min(max(event.delivered_bytes, 0), FAR)
    flow.round_end_bytes += min(max(event.inflight_bytes, 0), FAR)
    flow.last_rtt_ns = flow.round_rtt_ns
    flow.round_rtt_ns = 0
    flow.samples = 0


def delay_ends_growth(flow: Any, params: Any, event: Any) -> Any:
    """HyStart++, RFC 9406, section 4.2, for an acknowledgment in slow start.

    Returns the divisor of the growth, or 0: slow start ends.
    """
    if event.delivered_bytes >= flow.round_end_bytes:
        begin_round(flow, event)
        if flow.slow_rounds > 0:
            flow.slow_rounds += 1
    # The smoothed RTT: steps are milliseconds, so what hosts add to it does not matter.
    if event.srtt_ns > 0:
        if flow.round_rtt_ns == 0 or event.srtt_ns < flow.round_rtt_ns:
            flow.round_rtt_ns = event.srtt_ns
        flow.samples = min(flow.samples + 1, params.rtt_samples)
    known = flow.samples >= params.rtt_samples and flow.last_rtt_ns > 0
    if flow.slow_rounds == 0 and known:
        step_ns = flow.last_rtt_ns // max(params.rtt_divisor, 1)
        step_ns = max(min(step_ns, params.rtt_step_ns_max), params.rtt_step_ns_min)
        if flow.round_rtt_ns - flow.last_rtt_ns >= step_ns:
            flow.slow_rounds = 1
            flow.slow_rtt_ns = flow.round_rtt_ns
    elif flow.slow_rounds > 0 and known and flow.round_rtt_ns < flow.slow_rtt_ns:
        flow.slow_rounds = 0  # the delay went away
    if flow.slow_rounds > params.slow_rounds_max:
        return 0.0
    if flow.slow_rounds > 0:
        return max(params.slow_divisor, 1.0)
    return 1.0


def start_fast(flow: Any, params: Any, event: Any) -> None:
    """Slow start."""
    divisor = 1.0
    if params.hystart != 0:
        divisor = delay_ends_growth(flow, params, event)
    if divisor > 0.0:
        window_bytes = flow.window_bytes + event.acked_bytes / divisor
        flow.window_bytes = min(window_bytes, flow.threshold_bytes)
    else:
        flow.threshold_bytes = flow.window_bytes
    flow.peak_bytes = flow.window_bytes
    begin_epoch(flow, 0.0)


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
            start_fast(flow, params, event)
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
    presets={"host": {}, "paper": {"hystart": 1}, "fabric": {}},
    promises=Promises(
        source="RFC 9438, section 4",
        signals=("ecn", "loss", "timeout"),
        state_bytes_max=136,
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
