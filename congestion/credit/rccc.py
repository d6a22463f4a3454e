"""RCCC: a pacer just below the link's rate grants credit to waiting flows in turn, then idle ones.

Source: Ultra Ethernet Specification 1.0, section 3.6 (RCCC: receiver-credit congestion control), as
modelled in its simulator, uet-htsim.

Waiting flows take turns: each reserves the next free slot of the clock in the port record, as in
eqds. While no flow waits, flows without demand slowly get credit in advance, up to one
bandwidth-delay product, so that their next message need not wait for a grant. With an
oversubscribed core, marks lower the rate of the whole port, and their absence restores it.
"""

from __future__ import annotations

from typing import Any

from congestion.api import credit_policy, record
from congestion.credit.eqds import FAR, PULLS_MAX, bytes_in, reserve
from congestion.promises import Promises

Flow = record(
    begun=int,
    waiting=int,  # 1: a slot of the pacer's clock is reserved for this flow's next credit
    turn_ns=int,  # time of the slot that is reserved for this flow's next credit
    seen_bytes=int,  # how much of received_bytes the port record has counted
)

Port = record(
    clock_ns=int,  # time of the pacer's next free slot
    rate_share=float,  # current rate as a share of the pacer's rate; 0: not started
    congestion=float,  # smoothed share of ECN-marked segments
    marked_segments=float,  # ECN-marked segments since the last rate adaptation
    received_segments=float,
    calm_rounds=int,  # consecutive rate adaptations without an ECN mark
    adapt_ns=int,
    wait_ns=int,  # time from the last rate adaptation to the next one
)

Params = record(
    link_bytes_per_s=12.5e9,  # used if the OS reports no link speed: 100 Gb/s
    link_share=0.98,  # granted share of the link's rate; headers use 1.5 %, and queues must drain
    pull_segments=4,
    speculative_ns=100_000,  # the first grant, and an idle flow's credit, in ns at the pacer's rate
    ahead_ns=500_000,  # limit of credit beyond received_bytes, in ns at the pacer's rate
    late_ns=50_000,  # most time that the pacer catches up after a late tick
    slow_ns=100_000,  # time between ticks of an idle flow
    oversubscription=1.0,  # ratio at the network core; at 1 (none), marks do not change the rate
    adapt_ns=150_000,  # mean time between rate adaptations: one and a half round trips
    congestion_limit=0.3,
    decrease_gain=0.5,
    increase=0.01,  # step added to rate_share; each adaptation without marks doubles the step
    doublings_max=5,
)


def adapt(flow: Any, port: Any, params: Any, event: Any) -> None:
    """Adapts the port's rate to the marks of all its flows."""
    segment_bytes = max(float(event.segment_bytes), 1.0)
    port.received_segments += (
        max(float(event.received_bytes) - flow.seen_bytes, 0.0) / segment_bytes
    )
    port.marked_segments += max(event.ecn_segments, 0)
    flow.seen_bytes = event.received_bytes
    if port.rate_share <= 0.0:
        port.rate_share = 1.0
        port.adapt_ns = event.now_ns
        port.wait_ns = params.adapt_ns
    if params.oversubscription <= 1.0 or event.now_ns - port.adapt_ns < port.wait_ns:
        return
    share = min(port.marked_segments / max(port.received_segments, 1.0), 1.0)
    port.congestion += 0.5 * (share - port.congestion)
    if port.congestion > params.congestion_limit:
        excess = port.congestion - params.congestion_limit
        port.rate_share *= 1.0 - params.decrease_gain * excess
        port.calm_rounds = 0
    elif port.marked_segments == 0.0:
        step = params.increase
        for doubling in range(8):
            if doubling < min(port.calm_rounds, params.doublings_max):
                step *= 2.0
        port.rate_share += step
        port.calm_rounds += 1
    else:
        port.calm_rounds = 0
    floor = max(0.9 / params.oversubscription, 0.01)
    port.rate_share = min(max(port.rate_share, floor), 1.0)
    port.marked_segments = 0.0
    port.received_segments = 0.0
    port.adapt_ns = event.now_ns
    port.wait_ns = int(params.adapt_ns * (0.5 + event.rand))


def on_demand(flow: Any, port: Any, params: Any, event: Any, result: Any) -> None:
    adapt(flow, port, params, event)
    now_ns = min(max(event.now_ns, 0), FAR)
    received_bytes = min(max(event.received_bytes, 0), FAR)
    # Bytes that arrived, or are known to be lost, have used credit, whether granted or speculative.
    granted_bytes = min(max(event.granted_bytes, received_bytes), FAR)
    product_bytes = 0
    if params.speculative_ns > 0:
        product_bytes = bytes_in(params, event, params.speculative_ns)
    if flow.begun == 0:
        flow.begun = 1
        granted_bytes = max(granted_bytes, received_bytes + product_bytes)
    pull_bytes = params.pull_segments * min(max(event.segment_bytes, 1), FAR)
    ahead_bytes = received_bytes + bytes_in(params, event, params.ahead_ns)
    limit_bytes = min(event.demand_bytes, ahead_bytes)
    for _ in range(PULLS_MAX):
        if granted_bytes >= limit_bytes:
            flow.waiting = 0
            break
        if flow.waiting == 0:
            wanted_bytes = limit_bytes - granted_bytes
            reserve(flow, port, params, event, now_ns, port.rate_share, wanted_bytes)
        if now_ns < flow.turn_ns:
            break
        flow.waiting = 0
        granted_bytes = min(granted_bytes + pull_bytes, limit_bytes)
    result.next_tick_ns = -1
    if granted_bytes < limit_bytes:
        result.next_tick_ns = max(flow.turn_ns, now_ns)
    elif granted_bytes < received_bytes + product_bytes:
        if port.clock_ns <= now_ns - params.late_ns:  # no flow waits: credit for an idle flow
            reserve(flow, port, params, event, now_ns, port.rate_share, pull_bytes)
            flow.waiting = 0
            granted_bytes = min(granted_bytes + pull_bytes, received_bytes + product_bytes)
        result.next_tick_ns = now_ns + params.slow_ns
    result.granted_bytes = max(granted_bytes, event.granted_bytes)


def on_start(flow: Any, port: Any, params: Any, event: Any, result: Any) -> None:
    flow.seen_bytes = event.received_bytes
    result.granted_bytes = event.granted_bytes
    result.next_tick_ns = -1


POLICY = credit_policy(
    "rccc",
    flow=Flow,
    port=Port,
    params=Params,
    on_start=on_start,
    on_demand=on_demand,
    on_tick=on_demand,
    presets={
        "host": {},
        "paper": {"speculative_ns": 0, "late_ns": 0},
        "fabric": {"speculative_ns": 0, "late_ns": 0},
    },
    promises=Promises(
        source="Ultra Ethernet Specification 1.0, section 3.6 (RCCC)",
        signals=("credit", "ecn", "chance"),
        state_bytes_max=96,
        speculative_bytes=125_000,
        port_queue_bytes_max=1_200_000,
        fairness_min=0.95,
        utilization_min=0.95,
    ),
)
