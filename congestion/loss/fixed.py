"""Loss by age: a segment that was not acknowledged for a retransmission timeout is lost.

Source: RFC 6298, section 5, with the core's timeout. The order of acknowledgments is not used.
"""

from __future__ import annotations

from typing import Any

from congestion.api import loss_policy
from congestion.promises import Promises

FAR_NS = 1 << 62  # keeps sums of times within an int64


def overdue_ns(event: Any) -> Any:
    """The cutoff: segments sent before this time have timed out; -1: none has timed out."""
    late_ns = max(event.now_ns, 0) - min(max(event.rto_ns, 1), FAR_NS) + 1
    return max(min(late_ns, event.now_ns), -1)


def on_ack(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    result.lost_below_seq = -1
    result.lost_sent_before_ns = -1
    result.next_check_ns = -1
    result.probe = 0


def on_timer(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    late_ns = overdue_ns(event)
    silent = event.newest_acked_sent_ns < event.oldest_inflight_sent_ns
    if silent and 0 <= event.oldest_inflight_sent_ns < late_ns:
        # Nothing was acknowledged, so all segments count as lost: later segments would otherwise
        # wait for timeouts that double each time.
        late_ns = max(min(event.now_ns, FAR_NS), -1)
    result.lost_below_seq = -1
    result.lost_sent_before_ns = late_ns
    result.next_check_ns = -1
    result.probe = 0


POLICY = loss_policy(
    "fixed",
    on_ack=on_ack,
    on_timer=on_timer,
    promises=Promises(source="RFC 6298, section 5", signals=("timeout",), state_bytes_max=0),
)
