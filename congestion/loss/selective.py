"""Loss by distance: a segment is lost once enough segments sent after it were delivered.

Source: RFC 6675, section 4 (DupThresh), counted for each path alone, because reordering between
paths is normal and says nothing. Time is used only for the timeout and for forgetting.

An acknowledgment of many segments does not tell in which order they arrived, so all segments of the
first acknowledgment that shows a hole are counted. A spurious retransmission doubles the distance
(RFC 4653 is similar); a long time without one halves it again.
"""

from __future__ import annotations

from typing import Any

from congestion.api import loss_policy, record
from congestion.loss.go_back_n import timed_out_ns
from congestion.promises import Promises

Flow = record(
    # How many later deliveries declare a loss, in units of threshold_segments; 0 counts as 1.
    patience=int,
    # Time of the last spurious retransmission, or of a later halving of `patience`.
    changed_ns=int,
)

Path = record(
    edge_ns=int,  # overtook_segments counts deliveries that overtook segments sent before this time
    overtook_segments=float,
)

Params = record(
    threshold_segments=3,  # DupThresh of RFC 6675
    threshold_segments_max=512,
    forget_rtts=1024,  # after so many RTTs without a spurious retransmission, patience halves
)


def patience_segments(flow: Any, params: Any, event: Any) -> Any:
    """How many later segments must be delivered before an earlier one counts as lost."""
    if event.spurious_segments > 0:
        flow.patience = min(2 * max(flow.patience, 1), max(params.threshold_segments_max, 1))
        flow.changed_ns = event.now_ns
    elif flow.patience > 1 and event.now_ns - flow.changed_ns > params.forget_rtts * event.srtt_ns:
        flow.patience //= 2
        flow.changed_ns = event.now_ns
    wanted = max(flow.patience, 1) * params.threshold_segments
    return min(wanted, max(params.threshold_segments_max, params.threshold_segments))


def on_ack(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    path = paths[min(max(event.path, 0), len(paths) - 1)]
    distance = patience_segments(flow, params, event)
    result.lost_below_seq = -1
    result.lost_sent_before_ns = -1
    result.next_check_ns = -1
    result.probe = 0
    if not 0 <= event.oldest_inflight_sent_ns < event.newest_acked_sent_ns:  # nothing was overtaken
        path.overtook_segments = 0.0
        return
    if path.overtook_segments == 0.0 or path.edge_ns <= event.oldest_inflight_sent_ns:
        path.overtook_segments = 0.0
        path.edge_ns = event.newest_acked_sent_ns
    path.overtook_segments += max(event.acked_segments, 0)
    if path.overtook_segments >= distance:
        result.lost_sent_before_ns = max(min(path.edge_ns, event.now_ns), -1)
        path.overtook_segments = 0.0


def on_timer(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    paths[min(max(event.path, 0), len(paths) - 1)].overtook_segments = 0.0
    result.lost_below_seq = -1
    result.lost_sent_before_ns = timed_out_ns(event)
    result.next_check_ns = -1
    result.probe = 0


POLICY = loss_policy(
    "selective",
    flow=Flow,
    path=Path,
    params=Params,
    on_ack=on_ack,
    on_timer=on_timer,
    presets={"host": {}, "paper": {}, "fabric": {}},
    promises=Promises(
        source="RFC 6675, section 4, per path",
        signals=("loss", "timeout"),
        state_bytes_max=32,
        reorder_segments=2,
        repairs_rtts=2.0,
        repairs_windows=1.5,
    ),
)
