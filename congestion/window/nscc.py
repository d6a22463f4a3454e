"""NSCC: a window from delay and marks, by four quadrants, with quick adaptation.

Sources: Ultra Ethernet Specification 1.0, section 3.6 (NSCC), and its predecessor, Bonato et al.,
"SMaRTT-REPS", arXiv 2404.01630, section 3. Each loss, also of a packet that was dropped, is handled
as the sources handle a trimmed packet. That a trimmed packet also counts as a round trip of delay,
and may cause quick adaptation, is in `paper` (`nacks`), as is the lower target of networks that
trim.

Departures, for hosts, and for networks slower than the one that the constants were chosen for: an
RTT counts as at least `rtt_ns_min`, because thread wake-ups take that long. In the gains, a segment
counts as at most 4 KiB. The gains grow with the RTT only up to a bound, because a round trip
without congestion would otherwise more than double the window. There is at most one cut in a
measured round trip. Quick adaptation requires that the application had enough to send.
"""

from __future__ import annotations

from typing import Any

from congestion.api import record, window_policy
from congestion.promises import Promises

Flow = record(
    window_bytes=float,
    most_bytes=float,
    base_ns=float,  # minimum RTT, smoothed over the paths; also the target of queueing delay
    scale=float,  # bandwidth-delay product, divided by that of the reference network
    delay_ns=float,  # smoothed queueing delay
    increase=float,  # increase since adjust_ns in bytes, times the window in bytes, as NSCC sums it
    unadjusted_bytes=float,
    clear_bytes=float,  # bytes acknowledged since the last mark or queueing delay
    achieved_bytes=float,  # bytes acknowledged since adapt_ns
    ignore_bytes=float,  # bytes in flight at the last quick adaptation, not acknowledged yet
    adapt_ns=int,
    adjust_ns=int,
    steady_ns=int,  # time of the last constant increase
    cut_ns=int,
    troubled=int,  # 1: a loss or timeout happened since adapt_ns
    timeouts=int,  # consecutive timeouts without an acknowledgment
)

Params = record(
    link_bytes_per_s=12.5e9,  # used if the OS reports no link speed: 100 Gb/s
    rtt_ns_min=50_000,
    reference_bytes=150_000.0,  # bandwidth-delay product of the reference network: 100 Gb/s, 12 us
    reference_ns=12_000.0,
    slowness_max=2.0,  # upper bound of base_ns / reference_ns, which scales the gain
    segments_min=2.0,
    segment_bytes_max=4_096.0,  # longer segments count as this length in the gains
    proportional_segments=4.0,  # growth in a round trip without queueing delay
    fair_segments=5.0,
    steady_segments=0.15,  # constant increase (eta in the paper)
    fast_gain=0.25,  # fast growth per acknowledged byte, times scale; the product is at most 1
    fast_delay_ns=1_000.0,
    decrease_gain=0.8,  # gamma in the paper
    decrease_max=0.5,
    base_smoothing=0.125,
    smoothing_per_byte=7.63e-7,  # 0.0125 for an acknowledgment of 16 KiB
    unmarked_share=0.25,  # high delay without marks counts as this share of base_ns
    window_multiple=1.5,  # the largest window, as a multiple of link rate * (base_ns + hold_ns)
    hold_ns=30_000.0,  # time by which receivers delay acknowledgments
    adapt_share=0.125,  # delivering less than this share of the largest window is a collapse
    adapt_targets=4.0,  # queueing delay, in multiples of base_ns, that suggests a collapse
    adjust_segments=8.0,
    timeout_limit=3,
    target_share=1.0,  # target of queueing delay, as a share of base_ns; 0.75 in networks that trim
    nacks=0,  # 1: a trimmed packet is a sample of high delay, and may cause quick adaptation
)


def target_ns(flow: Any, params: Any) -> Any:
    """The target of queueing delay."""
    return params.target_share * flow.base_ns


def measure(flow: Any, params: Any, event: Any) -> None:
    """Updates the RTT and the bandwidth-delay product of the network."""
    least_ns = float(max(event.rtt_min_ns, params.rtt_ns_min, 1))
    if flow.base_ns == 0.0 or event.rtt_min_ns <= 0:
        flow.base_ns = least_ns
    flow.base_ns += params.base_smoothing * (least_ns - flow.base_ns)
    link = params.link_bytes_per_s
    if event.link_bytes_per_s > 0:
        link = float(event.link_bytes_per_s)
    flow.scale = link * flow.base_ns * 1e-9 / params.reference_bytes
    flow.most_bytes = params.window_multiple * link * (flow.base_ns + params.hold_ns) * 1e-9


def answer(flow: Any, params: Any, event: Any, result: Any, window_bytes: float) -> None:
    least = params.segments_min * max(float(event.segment_bytes), 1.0)
    most = max(min(flow.most_bytes, float(event.window_bytes_max)), least)
    flow.window_bytes = min(max(window_bytes, least), most)
    result.window_bytes = flow.window_bytes
    result.pacing_bytes_per_s = 0.0


def collapsed(flow: Any, params: Any, event: Any, delay_ns: float) -> Any:
    """Whether quick adaptation applies, which sets the window to the few bytes delivered.

    It is checked once in two round trips, but not in the round trip after a cut, when the effect
    of the cut is not visible yet.
    """
    if event.now_ns - flow.adapt_ns <= flow.base_ns + target_ns(flow, params):
        return False
    recent = event.now_ns - flow.cut_ns <= max(float(event.srtt_ns), flow.base_ns)
    if recent and params.nacks == 0:
        return False
    # With all data in flight or waiting to be resent, a flow counts as limited by the application.
    watched = flow.adapt_ns != 0 and (event.app_limited == 0 or params.nacks != 0)
    troubled = flow.troubled != 0 or delay_ns > params.adapt_targets * target_ns(flow, params)
    little = flow.achieved_bytes < params.adapt_share * flow.most_bytes
    flow.troubled = 0
    flow.adapt_ns = event.now_ns
    if watched and troubled and little:
        return True
    flow.achieved_bytes = 0.0
    return False


def adapted(flow: Any, event: Any) -> Any:
    """The window after quick adaptation. Marks of what is in flight count no more."""
    window_bytes = flow.achieved_bytes
    flow.cut_ns = event.now_ns  # so that the window is not cut again in this round trip
    flow.achieved_bytes = 0.0
    flow.ignore_bytes = float(event.inflight_bytes)
    flow.increase = 0.0
    return window_bytes


def decreased(flow: Any, params: Any, event: Any) -> Any:
    """The window after marks and high delay: smaller by the excess delay, once per round trip."""
    waited = event.now_ns - flow.cut_ns > max(float(event.srtt_ns), flow.base_ns)
    target = target_ns(flow, params)
    if not waited or flow.delay_ns <= target:
        return flow.window_bytes
    flow.cut_ns = event.now_ns
    excess = params.decrease_gain * (flow.delay_ns - target) / flow.delay_ns
    return flow.window_bytes * (1.0 - min(excess, params.decrease_max))


def weighed(flow: Any, params: Any, event: Any, delay_ns: float) -> Any:
    """The window by the rules of the four quadrants; marked segments give no increase."""
    window_bytes = flow.window_bytes
    target = target_ns(flow, params)
    acked_bytes = float(event.acked_bytes)
    grown_bytes = acked_bytes
    sample_ns = delay_ns
    clear_bytes = flow.clear_bytes + acked_bytes
    if event.ecn_segments > 0:
        grown_bytes *= 1.0 - min(event.ecn_segments / max(event.acked_segments, 1), 1.0)
    elif delay_ns >= target:
        sample_ns = params.unmarked_share * flow.base_ns
    if event.ecn_segments > 0 or delay_ns >= params.fast_delay_ns:
        clear_bytes = 0.0
    flow.clear_bytes = clear_bytes
    smoothing = min(params.smoothing_per_byte * acked_bytes, 1.0)
    flow.delay_ns += smoothing * (sample_ns - flow.delay_ns)
    if event.ecn_segments > 0 and delay_ns >= target:
        window_bytes = decreased(flow, params, event)
    if event.app_limited != 0:
        return window_bytes
    gain_bytes = min(float(event.segment_bytes), params.segment_bytes_max) * flow.scale
    if delay_ns >= target:
        flow.increase += params.fair_segments * gain_bytes * grown_bytes
    elif clear_bytes > window_bytes:
        window_bytes += min(params.fast_gain * flow.scale, 1.0) * grown_bytes
    else:
        slowness = min(target / params.reference_ns, params.slowness_max)
        room = slowness * (1.0 - delay_ns / target)
        flow.increase += params.proportional_segments * room * gain_bytes * grown_bytes
    if event.now_ns - flow.steady_ns >= max(float(event.srtt_ns), flow.base_ns):
        window_bytes += params.steady_segments * gain_bytes
        flow.steady_ns = event.now_ns
    return window_bytes


def adjusted(flow: Any, params: Any, event: Any, window_bytes: float) -> Any:
    """Adds the accumulated increase to the window every few segments, or every round trip."""
    unadjusted_bytes = flow.unadjusted_bytes + event.acked_bytes
    due = unadjusted_bytes >= params.adjust_segments * event.segment_bytes
    if due or event.now_ns - flow.adjust_ns >= flow.base_ns:
        window_bytes += flow.increase / window_bytes
        unadjusted_bytes = 0.0
        flow.increase = 0.0
        flow.adjust_ns = event.now_ns
    flow.unadjusted_bytes = unadjusted_bytes
    return window_bytes


def on_start(flow: Any, params: Any, event: Any, result: Any) -> None:
    measure(flow, params, event)
    window_bytes = flow.most_bytes  # the first round trip is at full rate
    if event.hint_window_bytes > 0.0:
        window_bytes = event.hint_window_bytes
    answer(flow, params, event, result, window_bytes)


def on_ack(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts = 0
    measure(flow, params, event)
    window_bytes = flow.window_bytes
    delay_ns = max(float(event.rtt_ns - event.rtt_min_ns), 0.0)
    flow.achieved_bytes += event.acked_bytes
    ignored = flow.ignore_bytes > 0.0 and event.ecn_segments > 0
    flow.ignore_bytes = max(flow.ignore_bytes - event.acked_bytes, 0.0)
    if not ignored:
        if collapsed(flow, params, event, delay_ns):
            window_bytes = adapted(flow, event)
        else:
            window_bytes = weighed(flow, params, event, delay_ns)
            window_bytes = adjusted(flow, params, event, window_bytes)
    answer(flow, params, event, result, window_bytes)


def on_loss(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.troubled = 1
    flow.ignore_bytes = max(flow.ignore_bytes - event.lost_bytes, 0.0)
    window_bytes = flow.window_bytes - event.lost_bytes
    if params.nacks != 0 and event.trimmed_segments > 0:
        # The queue that trimmed it was full: a round trip of delay.
        smoothing = min(params.smoothing_per_byte * event.lost_bytes, 1.0)
        flow.delay_ns += smoothing * (flow.base_ns - flow.delay_ns)
        if collapsed(flow, params, event, flow.base_ns):
            window_bytes = adapted(flow, event)
    answer(flow, params, event, result, window_bytes)


def on_timeout(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.troubled = 1
    flow.timeouts += 1
    window_bytes = flow.window_bytes
    if flow.timeouts >= params.timeout_limit:
        window_bytes = 0.0  # answer() raises it to the minimum window
    answer(flow, params, event, result, window_bytes)


PAPER = {"rtt_ns_min": 0, "hold_ns": 0.0, "segments_min": 1.0, "target_share": 0.75, "nacks": 1}

POLICY = window_policy(
    "nscc",
    flow=Flow,
    params=Params,
    on_start=on_start,
    on_ack=on_ack,
    on_loss=on_loss,
    on_timeout=on_timeout,
    presets={
        "host": {},
        "paper": PAPER,
        "fabric": {"rtt_ns_min": 0, "hold_ns": 0.0},
    },
    promises=Promises(
        source="Ultra Ethernet Specification 1.0, section 3.6 (NSCC)",
        signals=("rtt", "ecn", "loss", "timeout"),
        state_bytes_max=128,
        cut_on=("ecn+rtt",),
        cut_factor=(0.5, 1.0),
        cuts_per_rtt=1,
        fairness_min=0.7,
        convergence_rtts=30,
        utilization_min=0.9,
        intrinsic={
            "loss_response": "section 3.6: trimming, delay and marks are the signals, not losses"
        },
    ),
)
