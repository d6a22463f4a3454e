"""Checks a window policy in a dumbbell network: fairness, utilization, convergence, loss."""

from __future__ import annotations

import numpy as np

from congestion.api import Policy
from transport.conformance.result import Outcome, Outcomes, graded, number, usual, verdict
from transport.conformance.scenes import (
    BYTES_PER_S,
    MARK_BYTES,
    MS,
    PAYLOAD_SHARE,
    RTT_NS,
    US,
    Cast,
    bottleneck,
    marking,
    network_text,
    plan_of,
    share,
    span_text,
)
from transport.conformance.witness import of_a_run
from transport.ground.units import bit_rate_text, time_text
from transport.policies.dumbbell import ACK_DELAY_NS, Change, Link, Plan, Report, run

FLOWS = 4
OWED_UTILIZATION, OWED_JAIN, OWED_SHARE = 0.5, 0.6, 0.25
# Usual bounds, below what papers report of their controllers (a link full to 0.9, a Jain's index of
# 0.9 and more), so that a warning needs no second look.
USUAL_UTILIZATION, USUAL_JAIN, USUAL_SHARE = 0.7, 0.8, 0.5
USUAL_QUEUE_RTTS = 8.0  # half of the buffer
# Rate in Gb/s, one-way delay and duration of the further networks.
OTHER_NETWORKS = ((100, 10 * US, 20 * MS), (1, 100 * US, 200 * MS))
SAMPLES = 120  # of a queue
SEEDS = (1, 2, 3)


def hears(policy: Policy) -> bool:
    """Whether links set ECN marks: if the policy uses them or declares no signals."""
    return not policy.promises.signals or "ecn" in policy.promises.signals


def link_for(policy: Policy, **changes: float) -> Link:
    return (marking if hears(policy) else bottleneck)(**changes)


class Ledger:
    """Collects protocol violations and failed hooks from all simulator runs of a policy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.raised = ""
        self.runs = 0
        self.segments = 0
        self.failed = 0
        self.first = ""
        self.where = ""  # the network of the first run that went wrong

    def run(self, plan: Plan) -> Report:
        report = run(plan)
        self.runs += 1
        self.segments += sum(flow.counters["segments_sent"] for flow in report.flows)
        self.failed += report.policies_failed
        self.first = self.first or report.violation
        if report.violation or report.policies_failed:
            self.where = self.where or network_text(plan, f"seed {plan.seed}")
        if report.policies_failed and not self.raised:
            self.raised = of_a_run(self.policy, plan)
        return report

    def outcomes(self) -> Outcomes:
        yield verdict(
            "account in flight",
            not self.first,
            self.first or f"{self.segments} segments in {self.runs} runs balance",
            "the core's bytes in flight match the packets on the wire and the window",
            "the core and the independent account disagree: report this with the seed",
            where=self.where,
        )
        yield verdict(
            "never gives way",
            self.failed == 0,
            f"{self.failed} times `fixed` took over" + (f": {self.raised}" if self.raised else ""),
            "none",
            "a hook failed in a run: record it (weft policy try FILE --record) and run it "
            'interpreted under a debugger (weft docs policies "Finding a failure")',
            where=self.where,
        )


def alone(policy: Policy, cast: Cast, ledger: Ledger, limit_ns: int) -> Outcomes:
    """Checks how much of an idle bottleneck one flow uses, and how long its queue is."""
    plan = plan_of(
        cast,
        links=[link_for(policy)],
        limit_ns=limit_ns,
        measure_from_ns=limit_ns // 4,
        trace_ns=limit_ns // SAMPLES,
    )
    report = ledger.run(plan)
    measured = share(report)
    promised = policy.promises.utilization_min
    least = OWED_UTILIZATION if promised is None else promised
    remedy = (
        "look at a trace: a window that stops growing, or cuts that go too deep or come too often"
    )
    outcome = verdict(
        "fills a link",
        measured >= least,
        f"{number(measured)} of the bottleneck",
        f">= {least}",
        remedy,
        name="utilization",
        where=network_text(plan, span_text(limit_ns // 4, limit_ns)),
    )
    yield graded(outcome, measured >= USUAL_UTILIZATION, f">= {USUAL_UTILIZATION}", remedy)
    yield standing_queue(plan, report, "of one flow")


def standing_queue(plan: Plan, report: Report, whose: str) -> Outcome:
    """Checks the median queue in the second half of a run, as the time that it delays a packet."""
    trace, link = report.trace, plan.paths[0]
    late = trace.at_ns >= plan.limit_ns // 2
    queue_bytes = trace.queue_bytes[late, 0]
    delay_ns = float(np.median(queue_bytes)) * 1e9 / link.bytes_per_s
    rtts = delay_ns / (2 * link.delay_ns)
    worst = trace.at_ns[late][int(queue_bytes.argmax())]
    return usual(
        f"standing queue {whose}",
        rtts <= USUAL_QUEUE_RTTS,
        f"median {time_text(delay_ns, 3)}, {number(rtts)} round trips; "
        f"most {time_text(float(queue_bytes.max()) * 1e9 / link.bytes_per_s, 3)}",
        f"usual <= {USUAL_QUEUE_RTTS} round trips",
        "a queue that never drains delays every other flow: answer marks or delay before the "
        "buffer is full",
        name="standing_queue",
        where=network_text(plan, f"longest at {time_text(int(worst))}"),
    )


def fills_others(policy: Policy, cast: Cast, ledger: Ledger) -> Outcomes:
    """Checks the utilization of networks that are faster, slower and longer than the first one."""
    for gigabits, delay_ns, limit_ns in OTHER_NETWORKS:
        bytes_per_s = gigabits * 125_000_000
        round_ns = 2 * delay_ns + ACK_DELAY_NS
        product_bytes = max(round_ns * bytes_per_s // 10**9, MARK_BYTES)
        marks = {"mark_from_bytes": product_bytes, "mark_full_bytes": product_bytes}
        changes = {"bytes_per_s": bytes_per_s, "delay_ns": delay_ns}
        changes |= {"queue_bytes_max": 4 * product_bytes} | (marks if hears(policy) else {})
        plan = plan_of(
            cast,
            links=[bottleneck(**changes)],
            limit_ns=limit_ns,
            measure_from_ns=limit_ns // 2,
            link_bytes_per_s=bytes_per_s,
        )
        measured = share(ledger.run(plan), bytes_per_s)
        yield usual(
            f"fills {bit_rate_text(bytes_per_s)}",
            measured >= USUAL_UTILIZATION,
            f"{number(measured)} of the bottleneck",
            f"usual >= {USUAL_UTILIZATION}",
            "look for a constant that fits one rate or one round trip only",
            name="utilization",
            where=network_text(plan, span_text(limit_ns // 2, limit_ns)),
        )


def fair(policy: Policy, cast: Cast, ledger: Ledger, limit_ns: int) -> Outcomes:
    """Checks that four flows get equal shares if they start within a few round trips."""
    found: list[tuple[float, float, Plan, Report]] = []
    for seed in SEEDS:
        plan = plan_of(
            cast,
            links=[link_for(policy)],
            flows=FLOWS,
            limit_ns=limit_ns,
            measure_from_ns=limit_ns // 3,
            trace_ns=limit_ns // SAMPLES,
            seed=seed,
        )
        for index, flow in enumerate(plan.flows):
            flow.start_ns = index * seed * RTT_NS
        report = ledger.run(plan)
        found.append((report.jain, share(report), plan, report))
    jain, _, plan, report = min(found, key=lambda one: one[0])
    utilization = min(one[1] for one in found)
    promised = policy.promises.fairness_min
    least = OWED_JAIN if promised is None else promised
    remedy = (
        "equal flows must end equal: look for increase that grows with the window, or cuts "
        "that some flows never make"
    )
    outcome = verdict(
        "fair",
        jain >= least,
        f"Jain {number(jain)} of {FLOWS} flows, {number(utilization)} of the bottleneck",
        f">= {least}",
        remedy,
        name="fairness",
        where=network_text(plan, span_text(limit_ns // 3, limit_ns) + f", seed {plan.seed}"),
    )
    yield graded(outcome, jain >= USUAL_JAIN, f">= {USUAL_JAIN}", remedy)
    yield standing_queue(plan, report, f"of {FLOWS} flows")


def joins(policy: Policy, cast: Cast, ledger: Ledger) -> Outcome:
    """Checks that a flow that joins a full link, and the flow that filled it, both get a share."""
    join_rtts, after_rtts = 400, 1_600
    plan = plan_of(
        cast,
        links=[link_for(policy)],
        flows=2,
        limit_ns=(join_rtts + after_rtts) * RTT_NS,
        trace_ns=after_rtts // 4 * RTT_NS,
    )
    plan.flows[1].start_ns = join_rtts * RTT_NS + 1
    trace = ledger.run(plan).trace
    delivered, at_ns = trace.delivered_bytes, trace.at_ns
    got = delivered[-1] - delivered[-2]
    shares = 2.0 * got / max(int(got.sum()), 1)
    least = float(shares.min())
    remedy = (
        "one of two equal flows is starved: look for growth that needs a large window, and for a "
        "minimum RTT measured over a standing queue; or declare "
        'Promises(intrinsic={"newcomer_share": "why"})'
    )
    outcome = verdict(
        "a newcomer's share",
        least >= OWED_SHARE,
        f"{number(float(shares[1]))} of its fair share, {number(float(shares[0]))} for the other",
        f">= {OWED_SHARE} for both",
        remedy,
        name="newcomer_share",
        where=network_text(
            plan,
            f"joins after {join_rtts} round trips, measured "
            + span_text(int(at_ns[-2]), int(at_ns[-1])),
        ),
    )
    return graded(outcome, least >= USUAL_SHARE, f">= {USUAL_SHARE} for both", remedy)


def converges(policy: Policy, cast: Cast, ledger: Ledger) -> Outcomes:
    """Checks how long a flow that joins a full link takes until it keeps half of its share."""
    promised = policy.promises.convergence_rtts
    if promised is None:
        return
    join_ns, worst = 20 * MS, 0.0
    for seed in SEEDS:
        plan = plan_of(
            cast,
            links=[link_for(policy)],
            flows=2,
            limit_ns=join_ns + 4 * promised * RTT_NS,
            trace_ns=4 * RTT_NS,
            seed=seed,
        )
        plan.flows[1].start_ns = join_ns + 1
        trace = ledger.run(plan).trace
        delivered = np.diff(trace.delivered_bytes[:, 1])
        # The rate is averaged over 32 round trips: 8 samples, 4 round trips apart.
        rate = np.convolve(delivered, np.ones(8) / 8, "valid") / (4 * RTT_NS * 1e-9)
        below = np.flatnonzero(rate < BYTES_PER_S * PAYLOAD_SHARE / 4)
        # 1 << 60 means never: the rate is below half of the share at the end.
        ends_ns = np.append(trace.at_ns[8:], 1 << 60)
        since_ns = ends_ns[below[-1] + 1]  # `below` is not empty, because the rate is 0 at first
        worst = max(worst, (since_ns - join_ns) / RTT_NS)
    yield verdict(
        "converges",
        worst <= promised,
        f"{number(worst)} round trips until a newcomer has half its share",
        f"<= {promised}",
        "the new flow stays small: look for cuts that reduce small windows as much as large ones",
        where=network_text(plan, f"joins at {time_text(join_ns)}"),
    )


def survives(policy: Policy, cast: Cast, ledger: Ledger) -> Outcomes:
    """Checks that every flow continues under random loss and after an outage."""
    for loss, name in ((2**-10, "2^-10"), (2**-7, "2^-7")):
        plan = plan_of(
            cast,
            links=[link_for(policy, loss=loss)],
            flows=FLOWS,
            limit_ns=120 * MS,
            trace_ns=30 * MS,
        )
        report = ledger.run(plan)
        delivered = np.diff(report.trace.delivered_bytes, axis=0)
        least = int(delivered.min())
        row, flow = np.unravel_index(int(delivered.argmin()), delivered.shape)
        at_ns = report.trace.at_ns
        worst = f"flow {flow} {span_text(int(at_ns[row]), int(at_ns[row + 1]))}"
        yield verdict(
            f"no starvation at loss {name}",
            least >= 16 * 4_096,
            f"at least {least} bytes a flow in 30 ms; {number(share(report))} of the bottleneck",
            ">= 65536 bytes",
            "random loss must not keep a flow small for ever: the window has to grow again",
            where=network_text(plan, worst),
        )
    yield silence(policy, cast, ledger)


def silence(policy: Policy, cast: Cast, ledger: Ledger) -> Outcome:
    """Checks that the rate returns after an outage of 60 ms."""
    plan = plan_of(
        cast,
        links=[link_for(policy)],
        flows=2,
        limit_ns=400 * MS,
        trace_ns=20 * MS,
        changes=[
            Change(at_ns=30 * MS, path=0, up=0),
            Change(at_ns=90 * MS, path=0, up=1),
        ],
    )
    report = ledger.run(plan)
    delivered = report.trace.delivered_bytes.sum(axis=1)
    before, after = delivered[1] - delivered[0], delivered[-1] - delivered[-2]
    return verdict(
        "comes back after an outage",
        after >= before / 2,
        f"{number(after / max(before, 1))} of the rate before, 300 ms after it healed",
        ">= 0.5",
        "after an outage the window must grow again from its minimum: look at on_timeout",
        where=network_text(plan, "down from 30 ms to 90 ms"),
    )
