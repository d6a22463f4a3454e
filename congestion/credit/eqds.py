"""EQDS: a pacer grants pulls at the rate of the link, to the waiting flows in turn.

Source: Olteanu et al., "An edge-queued datagram service for all datacenter traffic" (EQDS), NSDI
2022, sections 3.2 and 3.5.

The pacer is a clock in the port record. A waiting flow reserves the next free slot of this clock,
and a new slot after each grant, so that flows take turns even if ticks are late. The first
bandwidth-delay product is speculative and takes no slot. A pull is skipped, and its slot left
empty, with a probability that grows with the share of marked segments in the last 100 us
(`round_ns`), so that a congested core behind a free port does not get the port's full rate.
"""

from __future__ import annotations

from typing import Any

from congestion.api import credit_policy, record
from congestion.promises import Promises

FAR = 1 << 60  # keeps sums of times and of bytes within an int64
PULLS_MAX = 32  # most pulls granted to one flow at one event

Flow = record(
    begun=int,
    waiting=int,  # 1: the pacer has a time reserved for this flow's next credit
    turn_ns=int,  # the time reserved for this flow's next credit
    round_ns=int,
    round_bytes=int,  # received_bytes at the start of the current interval (Params.round_ns)
    marked_segments=float,  # ECN-marked segments in the current interval (Params.round_ns)
    marked_share=float,  # share of marked segments in the last interval (Params.round_ns)
)

Port = record(clock_ns=int)  # earliest time at which the pacer can send another credit

Params = record(
    link_bytes_per_s=12.5e9,  # used if the OS reports no link speed: 100 Gb/s
    link_share=0.98,  # share of the link's rate that is granted; headers use 1.5 %
    pull_segments=4,
    speculative_ns=100_000,  # size of the first grant, in nanoseconds at the pacer's rate
    ahead_ns=500_000,  # limit of credit beyond received_bytes, in ns at the pacer's rate
    late_ns=50_000,  # most time that the pacer catches up after a late tick
    round_ns=100_000,
    skipped_above=0.1,  # share of marked segments above which pulls are skipped, section 3.5
)


def rate_of(params: Any, event: Any) -> Any:
    """The pacer's rate, in bytes per second."""
    if event.link_bytes_per_s > 0:
        return params.link_share * event.link_bytes_per_s
    return params.link_share * params.link_bytes_per_s


def bytes_in(params: Any, event: Any, span_ns: float) -> Any:
    """How many bytes the pacer grants in the given time; at least four segments."""
    segments = 4.0 * max(event.segment_bytes, 1)
    return int(min(max(rate_of(params, event) * span_ns * 1e-9, segments), 1e18))


def reserve(
    flow: Any, port: Any, params: Any, event: Any, now_ns: int, share: float, wanted_bytes: int
) -> None:
    """Reserves the next slot for a pull of up to `wanted_bytes`, at `share` of the pacer's rate."""
    pull_bytes = params.pull_segments * float(max(event.segment_bytes, 1))
    pull_bytes = min(pull_bytes, max(float(wanted_bytes), 1.0))
    pull_ns = pull_bytes * 1e9 / max(share * rate_of(params, event), 1.0)
    port.clock_ns = min(max(port.clock_ns, now_ns - params.late_ns), now_ns + 1_000_000_000)
    flow.turn_ns = port.clock_ns
    flow.waiting = 1
    port.clock_ns += int(min(pull_ns, 1e9))


def count_marks(flow: Any, params: Any, event: Any) -> None:
    flow.marked_segments += max(event.ecn_segments, 0)
    if event.now_ns - flow.round_ns >= params.round_ns:
        received_bytes = float(event.received_bytes) - flow.round_bytes
        received = received_bytes / max(event.segment_bytes, 1)
        flow.marked_share = min(flow.marked_segments / max(received, 1.0), 1.0)
        flow.marked_segments = 0.0
        flow.round_bytes = event.received_bytes
        flow.round_ns = event.now_ns


def on_demand(flow: Any, port: Any, params: Any, event: Any, result: Any) -> None:
    count_marks(flow, params, event)
    now_ns = min(max(event.now_ns, 0), FAR)
    received_bytes = min(max(event.received_bytes, 0), FAR)
    granted_bytes = min(max(event.granted_bytes, 0), FAR)
    if flow.begun == 0:
        flow.begun = 1
        first_bytes = received_bytes + bytes_in(params, event, params.speculative_ns)
        granted_bytes = max(granted_bytes, first_bytes)
    ahead_bytes = received_bytes + bytes_in(params, event, params.ahead_ns)
    limit_bytes = min(event.demand_bytes, ahead_bytes)
    pull_bytes = params.pull_segments * min(max(event.segment_bytes, 1), FAR)
    chance = event.rand
    for _ in range(PULLS_MAX):
        if granted_bytes >= limit_bytes:
            flow.waiting = 0
            break
        if flow.waiting == 0:
            reserve(flow, port, params, event, now_ns, 1.0, limit_bytes - granted_bytes)
        if now_ns < flow.turn_ns:
            break
        flow.waiting = 0
        chance += 0.618034  # golden ratio: a sequence that spreads evenly over 0 to 1
        chance -= int(chance)
        if chance >= flow.marked_share - params.skipped_above:
            granted_bytes = min(granted_bytes + pull_bytes, limit_bytes)
    result.granted_bytes = max(granted_bytes, event.granted_bytes)
    result.next_tick_ns = -1
    if granted_bytes < limit_bytes:
        result.next_tick_ns = max(flow.turn_ns, now_ns)


def on_start(flow: Any, port: Any, params: Any, event: Any, result: Any) -> None:
    flow.round_ns = event.now_ns
    flow.round_bytes = event.received_bytes
    result.granted_bytes = event.granted_bytes
    result.next_tick_ns = -1


POLICY = credit_policy(
    "eqds",
    flow=Flow,
    port=Port,
    params=Params,
    on_start=on_start,
    on_demand=on_demand,
    on_tick=on_demand,
    presets={"host": {}, "paper": {"speculative_ns": 12_000}, "fabric": {"speculative_ns": 12_000}},
    promises=Promises(
        source="Olteanu et al., NSDI 2022, sections 3.2 and 3.5",
        signals=("credit", "ecn", "chance"),
        state_bytes_max=64,
        speculative_bytes=125_000,
        port_queue_bytes_max=1_200_000,
        fairness_min=0.95,
        utilization_min=0.95,
    ),
)
