"""Checks that a credit policy shares a port evenly, starves no sender and does not flood the port.

The senders' windows are as large as possible, so that only credit limits them.
"""

from __future__ import annotations

from typing import Any

from congestion.api import Policy
from transport.compiler.library import Library
from transport.conformance.native_side import Guarded, NativeSide
from transport.conformance.result import Outcome, Outcomes, number, verdict
from transport.conformance.scenes import BYTES_PER_S, MS, US, Cast, bottleneck, plan_of, share
from transport.conformance.window_dumbbell import Ledger
from transport.policies.dumbbell import Plan, Report

START, DEMAND, TICK = 0, 1, 2
SEGMENT_BYTES = 4_096


class CreditBench:
    """Simulates one sender to a NIC port of known speed; granted bytes arrive an RTT later."""

    def __init__(self, policy: Policy, library: Library) -> None:
        self.side = NativeSide(policy, library)
        self.event = Guarded(policy.family.event.dtype, 1)
        self.result = Guarded(policy.family.result.dtype, 1)
        self.zeros = dict.fromkeys(policy.family.event.dtype.names or (), 0)
        self.now_ns = 1_000_000_000_000
        self.granted_bytes = self.demand_bytes = self.received_bytes = 0
        self.tick_ns = -1
        self.fell = self.failed = False
        self.beyond_bytes = 0  # largest number of bytes granted beyond the demand
        self.call(START)

    def call(self, hook: int, **fields: Any) -> None:
        given = self.zeros | {
            "now_ns": self.now_ns,
            "kind": hook - 1,
            "demand_bytes": self.demand_bytes,
            "granted_bytes": self.granted_bytes,
            "received_bytes": self.received_bytes,
            "segment_bytes": SEGMENT_BYTES,
            "active_flows": 1,
            "link_bytes_per_s": BYTES_PER_S,
            "rand": 0.5,
        }
        self.event.records[0] = tuple((given | fields).values())
        self.result.records[0] = (self.granted_bytes, -1)
        self.failed |= self.side.witnessed(hook, self.event, self.result) != 0
        granted_bytes, self.tick_ns = self.result.records[0].item()
        if hook == START:
            return  # the core ignores the answer of on_start
        self.fell = self.fell or granted_bytes < self.granted_bytes
        self.granted_bytes = max(self.granted_bytes, granted_bytes)
        self.beyond_bytes = max(self.beyond_bytes, self.granted_bytes - self.demand_bytes)

    def serve(self, demand_bytes: int, limit_ns: int) -> bool:
        """Requests credit and runs until all bytes arrived; False if that takes over limit_ns."""
        self.demand_bytes += demand_bytes
        self.call(DEMAND)
        end_ns = self.now_ns + limit_ns
        while self.received_bytes < self.demand_bytes and self.now_ns < end_ns:
            may = min(self.granted_bytes, self.demand_bytes) - self.received_bytes
            if may > 0:
                part = min(may, SEGMENT_BYTES)
                self.now_ns += part * 1_000_000_000 // BYTES_PER_S
                self.received_bytes += part
                self.call(DEMAND)
            elif self.tick_ns >= 0:
                self.now_ns = max(self.now_ns + 10_000, self.tick_ns)
                self.call(TICK)
            else:
                self.now_ns += 2_000_000  # time until the sender repeats its credit request
                self.call(DEMAND)
        return self.received_bytes >= self.demand_bytes


def grants(policy: Policy, library: Library) -> Outcomes:
    bench = CreditBench(policy, library)
    served = all(bench.serve(size, 400 * MS) for size in (1, 4_096, 1 << 20, 16 << 20, 8, 3 << 20))
    yield verdict(
        "serves what is asked",
        served and not bench.failed,
        f"{bench.received_bytes} of {bench.demand_bytes} bytes arrived",
        "all of them, in time",
        "a sender waits for credit for ever: every answer must grant at least a segment",
    )
    yield verdict(
        "grants never fall",
        not bench.fell,
        "a grant fell" if bench.fell else "none fell",
        "cumulative, never falls",
        "answer max(your grant, event.granted_bytes)",
    )
    promised = policy.promises.speculative_bytes
    if promised is not None:
        yield verdict(
            "grants what is asked",
            bench.beyond_bytes <= promised,
            f"up to {bench.beyond_bytes} bytes beyond the demand",
            f"<= {promised} bytes",
            "granted_bytes must not exceed demand_bytes plus speculative_bytes",
        )


def crowd(cast: Cast, limit_ns: int) -> Plan:
    """Eight senders to one host, over a network that is faster than that host's NIC port."""
    wide = Cast(cast.parts | {"window": "fixed"}, cast.params)
    plan = plan_of(
        wide,
        links=[bottleneck(bytes_per_s=10 * BYTES_PER_S, queue_bytes_max=64 << 20)] * 2,
        flows=8,
        limit_ns=limit_ns,
        measure_from_ns=limit_ns // 4,
        receiver_port=bottleneck(delay_ns=1 * US, queue_bytes_max=64 << 20),
        link_bytes_per_s=BYTES_PER_S,
        rto_ns_min=50 * MS,  # a queue as long as the credit must not cause timeouts
    )
    for flow in plan.flows:
        flow.to_host = 8
    return plan


def shares(policy: Policy, cast: Cast, ledger: Ledger, limit_ns: int) -> Outcomes:
    """Checks that the receiver's port is busy with a short queue, and senders get equal shares."""
    report = ledger.run(crowd(cast, limit_ns))
    promises = policy.promises
    least = promises.fairness_min
    measured = f"Jain {number(report.jain)} of 8 senders, {number(share(report))} of the port"
    yield verdict(
        "shares a port",
        report.jain >= (0.5 if least is None else least),
        measured,
        f">= {0.5 if least is None else least}",
        "grant flows with equal demand equal credit: event.active_flows is their number",
    )
    slowest = min(flow.goodput_bytes_per_s for flow in report.flows) / (BYTES_PER_S / 8)
    yield verdict(
        "starves no sender",
        slowest >= 0.1,
        f"the slowest gets {number(slowest)} of its share",
        ">= 0.1",
        "a sender without credit waits for a grant: every demand and every tick must grant some",
    )
    yield from at_the_port(policy, report)


def at_the_port(policy: Policy, report: Report) -> Outcomes:
    promises = policy.promises
    utilization = promises.utilization_min
    if utilization is not None:
        yield verdict(
            "fills the port",
            share(report) >= utilization,
            f"{number(share(report))} of the port",
            f">= {utilization}",
            "credit comes too late or too little: look at the tick and at the window in flight",
        )
    allowance = promises.port_queue_bytes_max
    queue = report.ports[0].queue_bytes_p99
    if allowance is not None:
        yield verdict(
            "does not flood the port",
            queue <= allowance,
            f"{queue} bytes wait at the port (p99)",
            f"<= {allowance} bytes",
            "the grants of all senders together must not exceed the link's capacity",
        )


def alone(policy: Policy, cast: Cast, ledger: Ledger) -> Outcome:
    """Checks that every message of one sender arrives in spite of loss."""
    plan = plan_of(
        cast,
        links=[bottleneck(loss=2**-8)] * 2,
        limit_ns=20_000 * MS,
        ack_loss=2**-8,
        link_bytes_per_s=BYTES_PER_S,
    )
    for flow in plan.flows:
        flow.messages = 200
    report = ledger.run(plan)
    return verdict(
        "all arrives under loss",
        report.flows[0].messages == 200,
        f"{report.flows[0].messages} of 200 messages",
        "200",
        "a lost grant must be repeated, by the tick or by the next credit request",
    )
