"""Checks a window policy in a dumbbell network: fairness, utilization, convergence, loss."""

from __future__ import annotations

import numpy as np

from congestion.api import Policy
from transport.conformance.result import Outcome, Outcomes, number, verdict
from transport.conformance.scenes import (
    BYTES_PER_S,
    MS,
    PAYLOAD_SHARE,
    RTT_NS,
    Cast,
    bottleneck,
    marking,
    plan_of,
    share,
)
from transport.conformance.window_checks import owed
from transport.conformance.witness import of_a_run
from transport.policies.dumbbell import Change, Link, Plan, Report, run

FLOWS = 4
OWED_UTILIZATION, OWED_JAIN, OWED_SHARE = 0.5, 0.6, 0.25
SEEDS = (1, 2, 3)


def link_for(policy: Policy, **changes: float) -> Link:
    """A link that sets ECN marks if the policy uses them or declares no signals."""
    deaf = policy.promises.signals and "ecn" not in policy.promises.signals
    return (bottleneck if deaf else marking)(**changes)


class Ledger:
    """Collects protocol violations and failed hooks from all simulator runs of a policy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.raised = ""
        self.runs = 0
        self.segments = 0
        self.failed = 0
        self.first = ""

    def run(self, plan: Plan) -> Report:
        report = run(plan)
        self.runs += 1
        self.segments += sum(flow.counters["segments_sent"] for flow in report.flows)
        self.failed += report.policies_failed
        self.first = self.first or report.violation
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
        )
        yield verdict(
            "never gives way",
            self.failed == 0,
            f"{self.failed} times `fixed` took over" + (f": {self.raised}" if self.raised else ""),
            "none",
            "a hook failed in a run: record it (weft policy try FILE --record) and run it "
            'interpreted under a debugger (weft docs policies "Finding a failure")',
        )


def alone(policy: Policy, cast: Cast, ledger: Ledger, limit_ns: int) -> Outcome:
    """Checks how much of an idle bottleneck one flow uses."""
    plan = plan_of(cast, links=[link_for(policy)], limit_ns=limit_ns, measure_from_ns=limit_ns // 4)
    measured = share(ledger.run(plan))
    promised = policy.promises.utilization_min
    least = OWED_UTILIZATION if promised is None else promised
    outcome = verdict(
        "fills a link",
        measured >= least,
        f"{number(measured)} of the bottleneck",
        f">= {least}",
        "look at a trace: a window that stops growing, or cuts that go too deep or come too often",
    )
    return outcome if promised is not None else owed(policy, "utilization", outcome)


def fair(policy: Policy, cast: Cast, ledger: Ledger, limit_ns: int) -> Outcomes:
    """Checks that four flows get equal shares if they start within a few round trips."""
    jain, utilization = 1.0, 1.0
    for seed in SEEDS:
        plan = plan_of(
            cast,
            links=[link_for(policy)],
            flows=FLOWS,
            limit_ns=limit_ns,
            measure_from_ns=limit_ns // 3,
            seed=seed,
        )
        for index, flow in enumerate(plan.flows):
            flow.start_ns = index * seed * RTT_NS
        report = ledger.run(plan)
        jain, utilization = min(jain, report.jain), min(utilization, share(report))
    promised = policy.promises.fairness_min
    least = OWED_JAIN if promised is None else promised
    outcome = verdict(
        "fair",
        jain >= least,
        f"Jain {number(jain)} of {FLOWS} flows, {number(utilization)} of the bottleneck",
        f">= {least}",
        "equal flows must end equal: look for increase that grows with the window, or cuts "
        "that some flows never make",
    )
    yield outcome if promised is not None else owed(policy, "fairness", outcome)


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
    delivered = ledger.run(plan).trace.delivered_bytes
    got = delivered[-1] - delivered[-2]
    shares = 2.0 * got / max(int(got.sum()), 1)
    outcome = verdict(
        "a newcomer's share",
        float(shares.min()) >= OWED_SHARE,
        f"{number(float(shares[1]))} of its fair share, {number(float(shares[0]))} for the other",
        f">= {OWED_SHARE} for both",
        "one of two equal flows is starved: look for growth that needs a large window, and for a "
        'minimum RTT measured over a standing queue; or declare Promises(without=("newcomer_share"'
        ",))",
    )
    return owed(policy, "newcomer_share", outcome)


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
        least = int(np.diff(report.trace.delivered_bytes, axis=0).min())
        yield verdict(
            f"no starvation at loss {name}",
            least >= 16 * 4_096,
            f"at least {least} bytes a flow in 30 ms; {number(share(report))} of the bottleneck",
            ">= 65536 bytes",
            "random loss must not keep a flow small for ever: the window has to grow again",
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
    )
