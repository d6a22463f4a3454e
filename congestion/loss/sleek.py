"""Decides loss when more has arrived out of order than reordering explains, and then only once.

Never touches timing while segments arrive. Source: Ultra Ethernet Specification 1.0, section 3.6
(SLEEK, recovery without trimming), as modelled in its simulator, uet-htsim.

Recovery begins when the segments delivered beyond the first hole exceed one and a half windows, but
five at least. Then each path gives up, once, what was overtaken there: its simulator takes all that
is missing in a window from the hole on, which sends again what has just left as well. It ends when
all that was delivered at its start has been overtaken by the cumulative position. Too little out of
order, or a tail, is told by a probe once sending pauses: what is still missing after it came back,
and held acknowledgments with it, was lost.
"""

from __future__ import annotations

from typing import Any

from congestion.api import loss_policy, record
from congestion.loss.fixed import FAR_NS
from congestion.loss.go_back_n import timed_out_ns
from congestion.promises import Promises

Flow = record(
    recoveries=int,  # begun so far
    recovering=int,
    end_seq=int,  # recovery ends beyond it
    began_ns=int,
)

Path = record(
    recovery=int,  # the last one that this path took part in
    asked_ns=int,  # when a probe was last asked for
    probed_ns=int,  # send time of the newest probe that came back
    probe_back_ns=int,  # and when it came
)

Params = record(
    window_multiple=1.5,
    segments_min=5,
    settle_rtts=2,
    probe_rtts=3,  # of silence before a path is asked: its simulator's, with a backlog
    hold_ns=50_000,  # receivers hold acknowledgments for 30 us, and a wake-up
)


def begin_or_end(flow: Any, params: Any, event: Any) -> None:
    if flow.recovering != 0 and event.cumulative_seq > flow.end_seq:
        flow.recovering = 0
    segments = event.window_bytes / max(event.segment_bytes, 1)
    reach = max(params.window_multiple * segments, float(params.segments_min))
    # What the last recovery sent again needs a round trip: until then it is no news that it lacks.
    settled = event.now_ns - flow.began_ns > params.settle_rtts * max(event.srtt_ns, 0)
    if flow.recovering == 0 and event.sacked_segments >= reach and settled:
        flow.recovering = 1
        flow.recoveries += 1
        flow.end_seq = event.highest_acked_seq
        flow.began_ns = event.now_ns


def judge_pause(path: Any, params: Any, event: Any, result: Any) -> None:
    """Nothing more was sent on this path: a probe tells what is lost from what is late."""
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
    promises=Promises(
        source="Ultra Ethernet Specification 1.0, section 3.6 (SLEEK)",
        signals=("loss", "timeout"),
        state_bytes_max=72,
        reorder_segments=4,
        repairs_windows=1.5,
    ),
)
