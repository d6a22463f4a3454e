"""Go-back-N, as in simple hardware: after a gap, everything in flight on that path is lost.

Source: InfiniBand Architecture Specification, volume 1, section 9.7.5, where a receiver
answers a gap with a NAK and the sender resends everything from the gap on. Reordering counts as
loss.

It is the baseline for selective recovery: one lost segment makes the sender resend everything in
flight on its path.
"""

from __future__ import annotations

from typing import Any

from congestion.api import loss_policy
from congestion.loss.fixed import FAR_NS, overdue_ns
from congestion.promises import Promises


def flight_ns(event: Any) -> Any:
    """The cutoff that declares every segment in flight on this path lost."""
    newest_ns = max(event.newest_inflight_sent_ns, event.newest_acked_sent_ns)
    return max(min(min(newest_ns, FAR_NS) + 1, event.now_ns), -1)


def timed_out_ns(event: Any) -> Any:
    """The cutoff for everything in flight if the oldest segment timed out (RFC 6298), else -1."""
    if 0 <= event.oldest_inflight_sent_ns < overdue_ns(event):
        return flight_ns(event)
    return -1


def on_ack(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    result.lost_below_seq = -1
    result.lost_sent_before_ns = -1
    result.next_check_ns = -1
    result.probe = 0
    oldest_ns = event.oldest_inflight_sent_ns
    if 0 <= oldest_ns < event.newest_acked_sent_ns:
        result.lost_sent_before_ns = flight_ns(event)


def on_timer(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    result.lost_below_seq = -1
    result.lost_sent_before_ns = timed_out_ns(event)
    result.next_check_ns = -1
    result.probe = 0


POLICY = loss_policy(
    "go_back_n",
    on_ack=on_ack,
    on_timer=on_timer,
    presets={"host": {}, "paper": {}, "fabric": {}},
    promises=Promises(
        source="InfiniBand Architecture Specification, volume 1, section 9.7.5",
        signals=("loss", "timeout"),
        state_bytes_max=0,
        reorder_segments=0,
        repairs_rtts=1.5,
        repairs_windows=1.5,
        intrinsic={"reordering": "section 9.7.5: a receiver answers every gap with a NAK"},
    ),
)
