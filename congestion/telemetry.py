"""In-band telemetry of several paths, as hpcc and powertcp keep it; not a policy.

An acknowledgment brings what the switch ports on the way of one path stamped. Two of one path give
the rate of each port, so the last telemetry of a path is kept until the path comes back, which
takes many round trips if a flow with a small window has many paths.
"""

from __future__ import annotations

from typing import Any

from congestion.api import MAX_HOPS

KEPT = 7  # paths whose telemetry is kept
SLOTS = 8  # and the last one is for the latest of the others
STALE_RTTS = 100.0  # a path that brought none for so long gives its place to another one
NO_PATHS = (0,) * SLOTS
NO_HOPS = (0,) * (SLOTS * MAX_HOPS)
UNKNOWN_RTT_NS = 50_000.0  # until the first sample

# Fields of a flow's record.
FIELDS = {
    "paths": NO_PATHS,  # by place: the number of the path plus 1; 0: the place is free
    "path_ns": NO_PATHS,  # when it last brought telemetry
    "path_hops": NO_PATHS,
    "hop_queue_bytes": NO_HOPS,  # by place, MAX_HOPS each
    "hop_tx_bytes": NO_HOPS,
    "hop_timestamp_ns": NO_HOPS,
}


def base_rtt_ns(params: Any, event: Any) -> Any:
    if params.base_rtt_ns > 0:
        return float(params.base_rtt_ns)
    if event.rtt_min_ns > 0:
        return float(event.rtt_min_ns)
    if event.srtt_ns > 0:
        return float(event.srtt_ns)
    return UNKNOWN_RTT_NS


def room(params: Any, event: Any) -> Any:
    """Window over bytes in the network: the rest waits at the receiver to be acknowledged."""
    if event.rtt_min_ns <= 0 and event.srtt_ns <= 0:
        return 1.0
    return 1.0 + params.hold_ns / base_rtt_ns(params, event)


def line(params: Any, event: Any) -> Any:
    """The rate of the host's link, or that of the first hop."""
    if event.link_bytes_per_s > 0:
        return float(event.link_bytes_per_s)
    if event.hops > 0 and event.hop_link_bytes_per_s[0] > 0:
        return float(event.hop_link_bytes_per_s[0])
    return params.link_bytes_per_s


def place_of(flow: Any, event: Any, base_ns: float) -> Any:
    """The place of the path. Those that found none free share the last one: the latest has it."""
    place = KEPT
    for other in range(KEPT):
        stale = float(event.now_ns) - flow.path_ns[other] > STALE_RTTS * base_ns
        if flow.paths[other] == 0 or stale:
            place = other
    for own in range(SLOTS):
        if flow.paths[own] == event.path + 1:
            place = own
    return place


def keep(flow: Any, event: Any, place: int) -> None:
    """Keeps the telemetry for the path's next acknowledgment."""
    flow.paths[place] = event.path + 1
    flow.path_ns[place] = event.now_ns
    flow.path_hops[place] = event.hops
    for hop in range(MAX_HOPS):
        flow.hop_queue_bytes[place * MAX_HOPS + hop] = event.hop_queue_bytes[hop]
        flow.hop_tx_bytes[place * MAX_HOPS + hop] = event.hop_tx_bytes[hop]
        flow.hop_timestamp_ns[place * MAX_HOPS + hop] = event.hop_timestamp_ns[hop]
