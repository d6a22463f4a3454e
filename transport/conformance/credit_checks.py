"""Checks that a credit policy shares a port evenly, starves no sender and does not flood the port.

The senders' windows are as large as possible, so that only credit limits them.
"""

from __future__ import annotations

from typing import Any

from congestion.api import Policy
from transport.compiler.library import Library
from transport.conformance.native_side import Guarded, NativeSide
from transport.conformance.result import Outcome, Outcomes, graded, number, usual, verdict
from transport.conformance.scenes import (
    BYTES_PER_S,
    MS,
    RTT_NS,
    US,
    Cast,
    bottleneck,
    network_text,
    plan_of,
    share,
    span_text,
)
from transport.conformance.window_dumbbell import Ledger
from transport.ground.units import bit_rate_text, time_text
from transport.policies.dumbbell import Plan, Report

START, DEMAND, TICK = 0, 1, 2
SEGMENT_BYTES = 4_096
TICK_NS_MIN = 10_000  # between two ticks, in native/core/credit_control.cc
USUAL_JAIN, USUAL_SHARE, USUAL_UTILIZATION = 0.8, 0.5, 0.7
# Credit for half a millisecond at the port's rate, which is ten round trips of 50 us, or less.
USUAL_QUEUE_NS = 1 * MS
TICKS_MAX = 1.0  # for each segment that arrives
IDLE_TICKS_MAX = 0.5  # in each round trip without demand
IDLE_NS = 20 * MS


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
        self.ticks = 0
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

    def tick(self) -> None:
        self.now_ns = max(self.now_ns + TICK_NS_MIN, self.tick_ns)
        self.ticks += 1
        self.call(TICK)

    def rest(self, span_ns: int) -> None:
        """Runs without demand."""
        end_ns = self.now_ns + span_ns
        while 0 <= self.tick_ns < end_ns:
            self.tick()
        self.now_ns = end_ns

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
                self.tick()
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


def ticks(policy: Policy, library: Library) -> Outcomes:
    """Checks how many ticks a policy asks for, while it serves a sender and afterwards."""
    bench = CreditBench(policy, library)
    size = 16 << 20
    bench.serve(size, 400 * MS)
    busy = bench.ticks / (size / SEGMENT_BYTES)
    bench.ticks = 0
    bench.rest(IDLE_NS)
    idle = bench.ticks / (IDLE_NS / RTT_NS)
    where = f"one sender to a port of {bit_rate_text(BYTES_PER_S)}"
    yield usual(
        "ticks a segment",
        busy <= TICKS_MAX,
        f"{number(busy)} while {size >> 20} MiB arrive",
        f"usual <= {TICKS_MAX:g}",
        "each tick costs as much as a packet: grant several segments at once",
        name="timer_rate",
        where=where,
    )
    yield usual(
        "ticks without demand",
        idle <= IDLE_TICKS_MAX,
        f"{number(idle)} in each {time_text(RTT_NS)}",
        f"usual <= {IDLE_TICKS_MAX:g}",
        "answer a negative next_tick_ns if all that is asked for is granted",
        name="timer_rate",
        where=f"{where}, idle for {time_text(IDLE_NS)}",
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
    plan = crowd(cast, limit_ns)
    report = ledger.run(plan)
    where = network_text(plan, span_text(plan.measure_from_ns, limit_ns))
    where = f"{bit_rate_text(BYTES_PER_S)} at the receiver; network: {where}"
    promises = policy.promises
    least = promises.fairness_min
    measured = f"Jain {number(report.jain)} of 8 senders, {number(share(report))} of the port"
    remedy = "grant flows with equal demand equal credit: event.active_flows is their number"
    outcome = verdict(
        "shares a port",
        report.jain >= (0.5 if least is None else least),
        measured,
        f">= {0.5 if least is None else least}",
        remedy,
        name="fairness",
        where=where,
    )
    yield graded(outcome, report.jain >= USUAL_JAIN, f">= {USUAL_JAIN}", remedy)
    slowest = min(flow.goodput_bytes_per_s for flow in report.flows) / (BYTES_PER_S / 8)
    remedy = (
        "a sender without credit waits for a grant: every demand and every tick must grant some"
    )
    outcome = verdict(
        "starves no sender",
        slowest >= 0.1,
        f"the slowest gets {number(slowest)} of its share",
        ">= 0.1",
        remedy,
        name="newcomer_share",
        where=where,
    )
    yield graded(outcome, slowest >= USUAL_SHARE, f">= {USUAL_SHARE}", remedy)
    yield from at_the_port(policy, report, where)


def at_the_port(policy: Policy, report: Report, where: str) -> Outcomes:
    promises = policy.promises
    utilization = promises.utilization_min
    remedy = "credit comes too late or too little: look at the tick and at the window in flight"
    outcome = verdict(
        "fills the port",
        share(report) >= (utilization or 0.0),
        f"{number(share(report))} of the port",
        f">= {utilization or 0.0}",
        remedy,
        name="utilization",
        where=where,
    )
    kept = share(report) >= USUAL_UTILIZATION
    yield graded(outcome, kept, f">= {USUAL_UTILIZATION}", remedy)
    allowance = promises.port_queue_bytes_max
    queue = report.ports[0].queue_bytes_p99
    queue_ns = queue * 1_000_000_000 // BYTES_PER_S
    remedy = "the grants of all senders together must not exceed the link's capacity"
    outcome = verdict(
        "does not flood the port",
        allowance is None or queue <= allowance,
        f"{queue} bytes wait at the port (p99), {time_text(queue_ns, 3)}",
        "no limit declared" if allowance is None else f"<= {allowance} bytes",
        remedy,
        name="standing_queue",
        where=where,
    )
    yield graded(outcome, queue_ns <= USUAL_QUEUE_NS, f"<= {time_text(USUAL_QUEUE_NS)}", remedy)


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
