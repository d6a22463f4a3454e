"""SLEEK: loss is declared when too many segments arrive out of order, once per recovery.

Source: Ultra Ethernet Specification 1.0, section 3.6 (SLEEK, recovery without trimming), as
modelled in its simulator, uet-htsim. Time is not used while segments arrive.

Recovery begins when the segments delivered beyond the first hole reach one and a half windows, and
at least five. Then each path declares once that its overtaken segments are lost; the simulator
declares everything missing in a window from the hole on, which includes segments sent just now.
Recovery ends when the cumulative sequence number passes the highest one delivered at its start. If
too few segments are out of order, or the last segments are missing, a probe is sent once sending
pauses: segments that are still missing after the probe's answer, and after acknowledgments that the
receiver delays, were lost.
"""

from __future__ import annotations

from typing import Any

from congestion.api import loss_policy, record
from congestion.loss.fixed import FAR_NS
from congestion.loss.go_back_n import timed_out_ns
from congestion.promises import Promises

Flow = record(
    recoveries=int,  # number of recoveries begun so far
    recovering=int,
    end_seq=int,  # recovery ends when the cumulative sequence number passes this number
    began_ns=int,
)

Path = record(
    recovery=int,  # number of the last recovery that this path took part in
    asked_ns=int,  # time of the last request for a probe
    probed_ns=int,  # send time of the newest answered probe
    probe_back_ns=int,  # time of the answer to the newest answered probe
)

Params = record(
    window_multiple=1.5,
    segments_min=5,
    settle_rtts=2,
    probe_rtts=3,  # round trips without sending after which a probe is sent, as in uet-htsim
    hold_ns=50_000,  # receivers delay acknowledgments by 30 us plus a thread wake-up
)


def begin_or_end(flow: Any, params: Any, event: Any) -> None:
    if flow.recovering != 0 and event.cumulative_seq > flow.end_seq:
        flow.recovering = 0
    segments = event.window_bytes / max(event.segment_bytes, 1)
    reach = max(params.window_multiple * segments, float(params.segments_min))
    # Segments resent in the last recovery need a round trip until they are acknowledged.
    settled = event.now_ns - flow.began_ns > params.settle_rtts * max(event.srtt_ns, 0)
    if flow.recovering == 0 and event.sacked_segments >= reach and settled:
        flow.recovering = 1
        flow.recoveries += 1
        flow.end_seq = event.highest_acked_seq
        flow.began_ns = event.now_ns


def judge_pause(path: Any, params: Any, event: Any, result: Any) -> None:
    """Sends a probe after a pause in sending; its answer distinguishes lost from late segments."""
    now_ns = min(max(event.now_ns, 0), FAR_NS)
    if event.oldest_inflight_sent_ns < path.probed_ns:
        left_ns = params.hold_ns - (event.now_ns - path.probe_back_ns)
        if left_ns > 0:
            result.next_check_ns = now_ns + min(left_ns, params.hold_ns)
        else:
            result.lost_sent_before_ns = max(min(path.probed_ns, event.now_ns), -1)
    elif path.asked_ns <= event.newest_inflight_sent_ns:
        round_trip_ns = min(max(event.srtt_ns, event.rtt_min_ns, 0), 1_000_000_000)
        wait_ns = params.probe_rtts * round_trip_ns + params.hold_ns
        left_ns = wait_ns - (event.now_ns - event.newest_inflight_sent_ns)
        if left_ns <= 0:
            result.probe = 1
            path.asked_ns = event.now_ns
        elif wait_ns < event.rto_ns:
            result.next_check_ns = now_ns + min(left_ns, wait_ns)


def judge(flow: Any, path: Any, params: Any, event: Any, result: Any) -> None:
    result.lost_below_seq = -1
    result.lost_sent_before_ns = -1
    result.next_check_ns = -1
    result.probe = 0
    begin_or_end(flow, params, event)
    if flow.recovering != 0 and path.recovery != flow.recoveries:
        path.recovery = flow.recoveries
        result.lost_sent_before_ns = max(min(event.newest_acked_sent_ns, event.now_ns), -1)
    if event.oldest_inflight_sent_ns >= 0:
        judge_pause(path, params, event, result)


def on_ack(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    path = paths[min(max(event.path, 0), len(paths) - 1)]
    if event.probed_sent_ns > path.probed_ns:
        path.probed_ns = event.probed_sent_ns
        path.probe_back_ns = event.now_ns
    judge(flow, path, params, event, result)


def on_timer(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    path = paths[min(max(event.path, 0), len(paths) - 1)]
    judge(flow, path, params, event, result)
    result.lost_sent_before_ns = max(result.lost_sent_before_ns, timed_out_ns(event))


POLICY = loss_policy(
    "sleek",
    flow=Flow,
    path=Path,
    params=Params,
    on_ack=on_ack,
    on_timer=on_timer,
    presets={"host": {}, "paper": {"hold_ns": 0}, "fabric": {"hold_ns": 0}},
    promises=Promises(
        source="Ultra Ethernet Specification 1.0, section 3.6 (SLEEK)",
        signals=("loss", "timeout"),
        state_bytes_max=72,
        reorder_segments=4,
        repairs_windows=1.5,
    ),
)
