"""One credit window for the port, divided evenly among the flows that request credit.

Source: Olteanu et al., "An edge-queued datagram service for all datacenter traffic" (EQDS), NSDI
2022, section 3.2. Marks shrink the window as in its section 3.5, so that a congested core behind a
free port does not get the port's full rate.
"""

from __future__ import annotations

from typing import Any

from congestion.api import credit_policy, record
from congestion.promises import Promises

FAR = 1 << 60  # keeps sums of bytes within an int64

Port = record(
    held_back=float,  # share of the window withheld because of marks, 0 to held_back_max
    marked_segments=float,  # ECN-marked segments in the current interval (Params.interval_ns)
    changed_ns=int,
)

Params = record(
    window_bytes=4 << 20,  # the port's credit window if the link's speed is unknown
    link_ns=500_000,  # if the speed is known, the window is what the link carries in this time
    flow_segments_min=4,  # least credit of a flow, in segments, so that the flow can start
    interval_ns=100_000,
    held_back_step=0.125,
    held_back_release=0.03125,
    held_back_max=0.75,
)


def adapt(port: Any, params: Any, event: Any) -> None:
    """Once per interval, withholds more of the window after marks, else slowly less."""
    port.marked_segments += max(event.ecn_segments, 0)
    if event.now_ns - port.changed_ns < params.interval_ns:
        return
    port.changed_ns = event.now_ns
    if port.marked_segments > 0.0:
        port.held_back = min(port.held_back + params.held_back_step, params.held_back_max)
    else:
        port.held_back = max(port.held_back - params.held_back_release, 0.0)
    port.marked_segments = 0.0


def on_demand(flow: Any, port: Any, params: Any, event: Any, result: Any) -> None:
    adapt(port, params, event)
    window_bytes = float(params.window_bytes)
    if event.link_bytes_per_s > 0:
        window_bytes = event.link_bytes_per_s * 1e-9 * params.link_ns
    share_bytes = window_bytes * (1.0 - port.held_back) / max(event.active_flows, 1)
    least_bytes = params.flow_segments_min * float(max(event.segment_bytes, 1))
    share_bytes = min(max(share_bytes, least_bytes), 1e18)
    received_bytes = min(max(event.received_bytes, 0), FAR)
    granted_bytes = min(event.demand_bytes, received_bytes + int(share_bytes))
    result.granted_bytes = max(granted_bytes, event.granted_bytes)
    result.next_tick_ns = -1
    if result.granted_bytes < event.demand_bytes:
        result.next_tick_ns = min(max(event.now_ns, 0), FAR) + params.interval_ns


POLICY = credit_policy(
    "grant",
    port=Port,
    params=Params,
    on_start=on_demand,
    on_demand=on_demand,
    on_tick=on_demand,
    promises=Promises(
        source="Olteanu et al., NSDI 2022, sections 3.2 and 3.5",
        signals=("credit", "ecn"),
        state_bytes_max=24,
        speculative_bytes=0,
        port_queue_bytes_max=700_000,
        fairness_min=0.95,
        utilization_min=0.95,
    ),
)
