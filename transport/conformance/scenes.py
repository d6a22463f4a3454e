"""The simulated networks of the checks: one bottleneck, several paths, loss, an outage."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transport import native
from transport.ground.units import binary_text, bit_rate_text, counted, time_text
from transport.policies import dumbbell
from transport.policies.dumbbell import Flow, Link, Plan

MS = 1_000_000
US = 1_000
# 10 Gb/s and an RTT of 50 us: a bandwidth-delay product of 62,500 bytes; a 1 MB queue lasts 840 us.
BYTES_PER_S = 1_250_000_000
DELAY_NS = 25 * US
RTT_NS = 2 * DELAY_NS
QUEUE_BYTES = 1 << 20
MARK_BYTES = 65_536
PAYLOAD_SHARE = 4_096 / 4_160  # payload bytes / bytes of a packet
# The core raises smaller windows to this many segments, unless the policy allows less in
# result.window_segments_min (native/core/window_control.cc).
WINDOW_SEGMENTS_MIN = 1
# The shipped policies that run in the other families beside the policy under test.
COMPANIONS = {"window": "swift", "path": "oblivious", "loss": "rack"}


@dataclass(frozen=True)
class Cast:
    """The library of the policy under test, and those of COMPANIONS for the other families."""

    parts: dict[str, str]
    params: dict[str, bytes] = field(default_factory=dict)

    def with_part(self, family: str, name: str) -> Cast:
        return Cast(self.parts | {family: name}, self.params)


def cast_of(family: str, library: Path) -> Cast:
    return Cast({family: str(library)})


def bottleneck(**changes: Any) -> Link:
    given = {
        "bytes_per_s": BYTES_PER_S,
        "delay_ns": DELAY_NS,
        "queue_bytes_max": QUEUE_BYTES,
    }
    return Link(**(given | changes))


def marking(**changes: Any) -> Link:
    """A bottleneck with ECN: all packets are marked while the queue exceeds MARK_BYTES."""
    return bottleneck(**({"mark_from_bytes": MARK_BYTES, "mark_full_bytes": MARK_BYTES} | changes))


def plan_of(
    cast: Cast, *, links: list[Link], flows: int = 1, limit_ns: int, **changes: Any
) -> Plan:
    """A plan of `flows` senders with a receiver each; `changes` sets attributes of the plan."""
    plan = Plan(
        paths=links,
        flows=[
            Flow(from_host=one, to_host=flows + one, message_bytes=256 << 10)
            for one in range(flows)
        ],
        ahead=16,
        limit_ns=limit_ns,
        window_bytes_max=4 << 20,
    )
    for name, value in changes.items():
        setattr(plan, name, value)
    directories = [str(native.POLICY_DIRECTORY)]
    for family, name in (COMPANIONS | cast.parts).items():
        plan.choose(family, name, directories, cast.params.get(family, b""))
    return plan


def share(report: dumbbell.Report, bytes_per_s: float = BYTES_PER_S) -> float:
    """Goodput as a share of the bottleneck's capacity for payload."""
    return report.goodput_bytes_per_s / (bytes_per_s * PAYLOAD_SHARE)


def network_text(plan: Plan, when: str = "") -> str:
    """The network of a plan as text, and the virtual time that a check is about."""
    link = plan.paths[0]
    parts = [
        f"{bit_rate_text(link.bytes_per_s)}, RTT {time_text(2 * link.delay_ns)}",
        f"buffer {binary_text(link.queue_bytes_max)}",
        f"bursts of {binary_text(plan.burst_bytes_max)}",
        counted(len(plan.flows), "flow"),
    ]
    if len(plan.paths) > 1:
        parts.insert(0, counted(len(plan.paths), "path"))
    if link.mark_full_bytes:
        parts.append(f"marks from {binary_text(link.mark_from_bytes)}")
    if link.loss:
        parts.append(f"loss {link.loss:g}")
    if link.reorder:
        late = time_text(link.reorder_ns_max)
        parts.append(f"{link.reorder:.0%} of the packets late by up to {late}")
    return ", ".join(parts) + (f"; {when}" if when else "")


def span_text(from_ns: int, until_ns: int) -> str:
    """A span of virtual time as text."""
    return f"from {time_text(from_ns)} to {time_text(until_ns)}"
