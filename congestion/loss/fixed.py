"""Decides loss by age alone: what has gone unacknowledged for a retransmit timeout is lost.

Never touches the order of acknowledgments. Source: RFC 6298, section 5, with the core's timeout.
"""

from __future__ import annotations

from typing import Any

from congestion.api import loss_policy


def on_ack(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    result.lost_below_seq = -1
    result.lost_sent_before_ns = -1
    result.next_check_ns = -1


def on_timer(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    result.lost_below_seq = -1
    result.lost_sent_before_ns = max(event.now_ns - event.rto_ns + 1, -1)
    result.next_check_ns = -1


POLICY = loss_policy("fixed", on_ack=on_ack, on_timer=on_timer)
