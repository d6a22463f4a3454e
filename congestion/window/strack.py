"""STrack: a window from the delay of one path while nothing is marked, and of all paths when it is.

Source: Le et al., "STrack: A Reliable Multipath Transport for AI/ML Clusters", arXiv 2407.15266,
section 3.2, algorithm 4. Without a mark the window grows by the room below the target delay, and a
little if this segment alone was late. With marks it shrinks by the excess of the average delay over
all paths; marks with a low average are a matter of the path policy (`bitmap` comes near to the
paper's). A delay of several targets sets the window to what was delivered in a round trip.

Departures: written from the abstract and a public implementation of algorithm 4; alpha, gamma and
the cut to the bytes delivered are those of NSCC, its relative, where they play the same part.
Trimmed packets and other losses take their bytes from the window. A window that is not used does
not grow. There is at most one cut in a round trip, and `timeout_limit` timeouts in a row set the
window to its minimum.
"""

from __future__ import annotations

from typing import Any

from congestion.api import record, window_policy
from congestion.promises import Promises

Flow = record(
    window_bytes=float,
    delay_ns=float,  # queueing delay, averaged over the paths by bytes
    achieved_bytes=float,  # acknowledged since achieved_ns
    achieved_ns=int,
    cut_ns=int,
    troubled=int,  # 1: a loss or timeout since achieved_ns
    timeouts=int,  # consecutive timeouts without an acknowledgment
)

Params = record(
    link_bytes_per_s=12.5e9,  # used if the OS reports no link speed: 100 Gb/s
    target_rtts=1.0,  # target of queueing delay, in round trips without any
    target_ns_min=50_000,  # and at least this, for wake-ups of threads
    alpha_segments=4.0,  # growth in a round trip without queueing delay
    beta_segments=1.0,  # growth in a round trip if single segments are late and none is marked
    gamma=0.8,  # cut by this share of the excess of the average delay
    cut_max=0.5,
    smoothing_per_byte=7.63e-7,  # of the average delay: 0.0125 for 16 KiB
    collapse_targets=4.0,  # delay at which the window becomes what was delivered in a round trip
    collapse_share=0.125,  # if that is less than this share of the largest window
    window_multiple=1.5,  # the largest window, in bandwidth-delay products
    hold_ns=30_000.0,  # time by which receivers delay acknowledgments
    segments_min=2.0,
    timeout_limit=3,
)


def rtt_ns(event: Any) -> Any:
    """The round trip without a queue."""
    return float(max(event.rtt_min_ns, 1))


def target_ns(params: Any, event: Any) -> Any:
    return max(params.target_rtts * rtt_ns(event), float(params.target_ns_min))


def most_bytes(params: Any, event: Any) -> Any:
    link = params.link_bytes_per_s
    if event.link_bytes_per_s > 0:
        link = float(event.link_bytes_per_s)
    base_ns = max(rtt_ns(event), float(params.target_ns_min))
    return params.window_multiple * link * (base_ns + params.hold_ns) * 1e-9


def answer(flow: Any, params: Any, event: Any, result: Any, window_bytes: float) -> None:
    least = params.segments_min * max(float(event.segment_bytes), 1.0)
    most = max(min(most_bytes(params, event), float(event.window_bytes_max)), least)
    flow.window_bytes = min(max(window_bytes, least), most)
    result.window_bytes = flow.window_bytes


def collapsed(flow: Any, params: Any, event: Any, delay_ns: float) -> Any:
    """Whether little was delivered in the last round trips, and delay or losses say why."""
    target = target_ns(params, event)
    if event.now_ns - flow.achieved_ns <= max(float(event.srtt_ns), rtt_ns(event)) + target:
        return False
    watched = flow.achieved_ns != 0 and event.app_limited == 0
    late = flow.troubled != 0 or delay_ns > params.collapse_targets * target
    little = flow.achieved_bytes < params.collapse_share * most_bytes(params, event)
    flow.achieved_ns = event.now_ns
    flow.troubled = 0
    if watched and late and little:
        return True
    flow.achieved_bytes = 0.0
    return False


def grown(flow: Any, params: Any, event: Any, delay_ns: float) -> Any:
    """The window after an acknowledgment without marks."""
    if event.app_limited != 0:
        return flow.window_bytes
    target = target_ns(params, event)
    share = float(event.acked_bytes) / max(flow.window_bytes, 1.0)
    if delay_ns < target:
        room = 1.0 - delay_ns / target
        return flow.window_bytes + params.alpha_segments * event.segment_bytes * room * share
    if delay_ns > 2.0 * target:
        return flow.window_bytes + params.beta_segments * event.segment_bytes * share
    return flow.window_bytes


def cut(flow: Any, params: Any, event: Any) -> Any:
    """The window after marks: smaller if the average delay is above the target."""
    target = target_ns(params, event)
    recent = float(event.now_ns) - flow.cut_ns <= max(float(event.srtt_ns), rtt_ns(event))
    if recent or flow.delay_ns <= target:
        return flow.window_bytes
    flow.cut_ns = event.now_ns
    excess = params.gamma * (flow.delay_ns - target) / flow.delay_ns
    return flow.window_bytes * (1.0 - min(excess, params.cut_max))


def on_start(flow: Any, params: Any, event: Any, result: Any) -> None:
    window_bytes = most_bytes(params, event)  # the first round trip is at full rate
    if event.hint_window_bytes > 0.0:
        window_bytes = event.hint_window_bytes
    answer(flow, params, event, result, window_bytes)


def on_ack(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts = 0
    delay_ns = max(float(event.rtt_ns) - event.rtt_min_ns, 0.0)
    smoothing = min(params.smoothing_per_byte * event.acked_bytes, 1.0)
    flow.delay_ns += smoothing * (delay_ns - flow.delay_ns)
    flow.achieved_bytes += event.acked_bytes
    if collapsed(flow, params, event, delay_ns):
        window_bytes = flow.achieved_bytes
        flow.achieved_bytes = 0.0
        flow.cut_ns = event.now_ns
    elif event.ecn_segments > 0:
        window_bytes = cut(flow, params, event)
    else:
        window_bytes = grown(flow, params, event, delay_ns)
    answer(flow, params, event, result, window_bytes)


def on_loss(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.troubled = 1
    answer(flow, params, event, result, flow.window_bytes - event.lost_bytes)


def on_timeout(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.troubled = 1
    flow.timeouts += 1
    window_bytes = flow.window_bytes
    if flow.timeouts >= params.timeout_limit:
        window_bytes = 0.0  # answer() raises it to the minimum window
    answer(flow, params, event, result, window_bytes)


FABRIC = {"target_ns_min": 0, "hold_ns": 0.0}

POLICY = window_policy(
    "strack",
    flow=Flow,
    params=Params,
    on_start=on_start,
    on_ack=on_ack,
    on_loss=on_loss,
    on_timeout=on_timeout,
    presets={"host": {}, "paper": FABRIC | {"segments_min": 1.0}, "fabric": FABRIC},
    promises=Promises(
        source="Le et al., arXiv 2407.15266, section 3.2, algorithm 4",
        signals=("rtt", "ecn", "rate", "loss", "timeout"),
        state_bytes_max=56,
        cut_on=("ecn+rtt",),
        cut_factor=(0.5, 1.0),
        cuts_per_rtt=1,
        fairness_min=0.9,
        utilization_min=0.8,
    ),
)
