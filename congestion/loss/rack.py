"""RACK: a segment is lost if one sent later, by at least a reordering window, was delivered.

Source: RFC 8985 (RACK-TLP), section 6, kept per path, because reordering between paths is normal
and says nothing. Sequence numbers are not used.

The tail loss probe (section 7) is a probe packet on the path, not a retransmission of the last
segment: a segment sent on the path before the probe and still missing after the answer is lost. So
no segment is resent only to detect a loss. If probes are lost, too, the first timeout declares only
the oldest segment lost.

Four departures from section 6.2 concern the reordering window:

- It doubles with every acknowledgment that reports a spurious retransmission; the RFC adds a
  quarter of the minimum RTT per round trip.
- It may grow to the timeout; the RFC stops at the smoothed RTT, which is too little where delays
  vary by as much as the RTT.
- It halves after every 1,024 round trips without a spurious retransmission; the RFC resets it after
  16 recoveries, which pass quickly under random loss.
- It is never zero, because receivers deliver packets in batches from the first round trip on.
"""

from __future__ import annotations

from typing import Any

from congestion.api import loss_policy, record
from congestion.promises import Promises

Path = record(
    reorder_quarters=int,  # reordering window, in quarters of the minimum RTT; 0 counts as 1
    spurious_ns=int,  # when reorder_quarters last doubled (spurious retransmission) or halved
    rack_rtt_ns=int,  # RTT of the newest delivered segment
    newest_ns=int,  # send time of the newest delivered segment
    expiries=int,  # timeouts since the last acknowledgment
    asked_ns=int,  # time of the last request for a probe
    probed_ns=int,  # send time of the newest answered probe
    probe_back_ns=int,  # time of the answer to the newest answered probe
)

Params = record(
    reorder_floor_ns=20_000,  # least reordering window, as receivers deliver packets in batches
    reorder_quarters_max=256,
    forget_rtts=1024,  # after so many RTTs without a spurious retransmission the window halves
    hold_ns=50_000,  # max_ack_delay: receivers delay acknowledgments by 30 us plus a thread wake-up
    probe_rtts=2,  # probe timeout (PTO) in round trips, RFC 8985 section 7.2
)


def reorder_ns(path: Any, params: Any, event: Any) -> Any:
    window_ns = max(path.reorder_quarters, 1) * event.rtt_min_ns // 4
    return max(min(window_ns, event.rto_ns), params.reorder_floor_ns)


def judge(path: Any, params: Any, event: Any, result: Any) -> None:
    """Declares segments lost that a newer one overtook, if older than RTT + reordering window."""
    patience_ns = path.rack_rtt_ns + reorder_ns(path, params, event)
    horizon_ns = -1
    if event.newest_acked_sent_ns >= 0:
        horizon_ns = max(min(event.newest_acked_sent_ns, event.now_ns - patience_ns), -1)
    result.lost_below_seq = -1
    result.lost_sent_before_ns = horizon_ns
    result.next_check_ns = -1
    result.probe = 0
    if event.oldest_inflight_sent_ns >= 0:
        oldest_ns = max(event.oldest_inflight_sent_ns, horizon_ns)
        if oldest_ns < event.newest_acked_sent_ns:  # a newer segment arrived: check again later
            result.next_check_ns = max(oldest_ns + patience_ns, event.now_ns) + 1
        else:
            judge_tail(path, params, event, result)


def judge_tail(path: Any, params: Any, event: Any, result: Any) -> None:
    """No newer segment was delivered: sends a probe; its answer distinguishes loss from delay."""
    if event.oldest_inflight_sent_ns < path.probed_ns:
        due_ns = path.probe_back_ns + params.hold_ns + reorder_ns(path, params, event)
        if event.now_ns >= due_ns:
            result.lost_sent_before_ns = max(result.lost_sent_before_ns, path.probed_ns)
        else:
            result.next_check_ns = due_ns
    elif path.asked_ns < event.newest_inflight_sent_ns:
        due_ns = event.newest_inflight_sent_ns + params.probe_rtts * event.srtt_ns + params.hold_ns
        if event.now_ns >= due_ns:
            result.probe = 1
            path.asked_ns = event.now_ns
        elif due_ns < event.oldest_inflight_sent_ns + event.rto_ns:
            result.next_check_ns = due_ns


def on_ack(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    path = paths[event.path]
    path.expiries = 0
    if event.probed_sent_ns > path.probed_ns:
        path.probed_ns = event.probed_sent_ns
        path.probe_back_ns = event.now_ns
    if event.spurious_segments > 0:
        # Doubling, because growth by one step per RTT allows too many spurious retransmissions.
        doubled = 2 * max(path.reorder_quarters, 1)
        path.reorder_quarters = min(doubled, params.reorder_quarters_max)
        path.spurious_ns = event.now_ns
    elif event.now_ns - path.spurious_ns > params.forget_rtts * event.srtt_ns:
        path.reorder_quarters = max(path.reorder_quarters // 2, 1)
        path.spurious_ns = event.now_ns
    if event.newest_acked_sent_ns > path.newest_ns or path.rack_rtt_ns == 0:
        path.newest_ns = event.newest_acked_sent_ns
        path.rack_rtt_ns = max(event.now_ns - event.newest_acked_sent_ns, 0)
    judge(path, params, event, result)


def on_timer(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    """The first timeout declares the oldest segment lost, a second one everything in flight.

    So if an acknowledgment is late because a host was busy, only one segment is resent in vain.
    """
    path = paths[event.path]
    judge(path, params, event, result)
    overdue_ns = event.now_ns - event.rto_ns
    oldest_ns = event.oldest_inflight_sent_ns
    if oldest_ns >= 0 and oldest_ns <= overdue_ns:
        horizon_ns = oldest_ns if path.expiries == 0 else event.now_ns - 1
        path.expiries += 1
        result.lost_sent_before_ns = max(result.lost_sent_before_ns, horizon_ns + 1)
        result.next_check_ns = event.now_ns + event.rto_ns


POLICY = loss_policy(
    "rack",
    path=Path,
    params=Params,
    on_ack=on_ack,
    on_timer=on_timer,
    presets={
        "host": {},
        "paper": {"reorder_floor_ns": 0, "hold_ns": 0},
        "fabric": {"hold_ns": 0, "reorder_floor_ns": 5_000},
    },
    promises=Promises(
        source="RFC 8985, sections 6 and 7, per path",
        signals=("rtt", "loss", "timeout"),
        state_bytes_max=64,
        repairs_rtts=2.0,
        repairs_windows=1.5,
    ),
)
