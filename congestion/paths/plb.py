"""PLB: one path for each flow, and a new random one after several congested round trips.

Source: Qureshi et al., "PLB: Congestion Signals are Simple and Effective for Network Load
Balancing", SIGCOMM 2022, section 3.

The record of a peer has 32 slots; the hash of a flow selects its slot. If an acknowledgment has a
mark, all its bytes count as marked. To avoid reordering in TCP, PLB moves a flow at a pause after
three congested round trips, and without a pause after twelve. Here reordering across paths costs
nothing, so the flow moves after three congested round trips.

A timeout moves the flow. With `paper`, marks then do not move it for a random time between
`suspend_ns` and twice as long, because they could lead it back to the broken path; 60 s is the
default of Linux (tcp_plb_suspend_rto_sec). `host` and `fabric` depart from this: the core does not
use a silent path until a probe is answered, so marks cannot lead a flow back to it.
"""

from __future__ import annotations

from typing import Any

from congestion.api import ECN, NACK, TIMEOUT, path_policy, record
from congestion.paths.oblivious import barred, drawn
from congestion.promises import Promises

PLACES = 32

Flow = record(
    path=(0,) * PLACES,  # index of the flow's path, plus one; 0: choose a random path
    rounds=(0,) * PLACES,  # consecutive congested round trips
    round_ns=(0,) * PLACES,  # start of the current round trip
    acked_bytes=(0.0,) * PLACES,  # bytes acknowledged in the current round trip
    marked_bytes=(0.0,) * PLACES,
    suspended_ns=(0,) * PLACES,  # until when marks do not move the flow
)

Params = record(
    burst_bytes=65_536,
    marked_share=0.5,  # share of marked bytes above which a round trip is congested
    rounds_max=3,
    suspend_ns=0,  # least time after a timeout in which marks do not move the flow
)


def pick(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    place = event.flow % PLACES
    chosen = flow.path[place] - 1
    lost = chosen < 0 or chosen >= len(paths)
    if lost or barred(paths, event, chosen) != 0:
        moved = drawn(paths, event)
        if lost or paths[chosen].usable == 0:  # retransmissions do not move the flow
            flow.path[place] = moved + 1
            flow.rounds[place] = 0
        chosen = moved
    result.path = chosen
    result.burst_bytes = params.burst_bytes


def count(flow: Any, params: Any, event: Any, place: int, span_ns: int) -> None:
    """Counts marks per round trip; after `rounds_max` congested round trips picks a random path."""
    flow.acked_bytes[place] += event.bytes
    if event.kind == ECN or event.kind == NACK:
        flow.marked_bytes[place] += event.bytes
    if event.now_ns - flow.round_ns[place] < span_ns:
        return
    if flow.marked_bytes[place] > params.marked_share * flow.acked_bytes[place]:
        flow.rounds[place] += 1
    else:
        flow.rounds[place] = 0
    if flow.rounds[place] >= params.rounds_max and event.now_ns >= flow.suspended_ns[place]:
        flow.path[place] = 0
    flow.acked_bytes[place] = 0.0
    flow.marked_bytes[place] = 0.0
    flow.round_ns[place] = event.now_ns


def on_feedback(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    index = min(max(event.path, 0), len(paths) - 1)
    place = event.flow % PLACES
    if event.flow >= 0 and flow.path[place] == index + 1:
        if event.kind == TIMEOUT:
            flow.path[place] = 0
            flow.rounds[place] = 0
            pause_ns = int(params.suspend_ns * (1.0 + event.rand))
            flow.suspended_ns[place] = event.now_ns + pause_ns
        else:
            count(flow, params, event, place, max(event.rtt_ns, paths[index].rtt_ns))
    result.path = index
    result.burst_bytes = params.burst_bytes


POLICY = path_policy(
    "plb",
    flow=Flow,
    params=Params,
    pick=pick,
    on_feedback=on_feedback,
    presets={
        "host": {},
        "paper": {"suspend_ns": 60_000_000_000},
        "fabric": {"burst_bytes": 4_096},
    },
    promises=Promises(
        source="Qureshi et al., SIGCOMM 2022, section 3",
        signals=("ecn", "loss", "timeout", "chance"),
        state_bytes_max=1_560,
    ),
)
