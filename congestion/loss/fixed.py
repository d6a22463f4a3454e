"""Decides loss by age alone: what has gone unacknowledged for a retransmit timeout is lost.

Never touches the order of acknowledgments. Source: RFC 6298, section 5, with the core's timeout.
"""

from __future__ import annotations

from typing import Any

from congestion.api import loss_policy
from congestion.promises import Promises

FAR_NS = 1 << 62  # keeps sums of times within an int64


def overdue_ns(event: Any) -> Any:
    """What was sent before has waited for a whole timeout; -1: nothing can have."""
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
        # Nothing came back, and the timeout doubles: what left later would wait ever longer.
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
