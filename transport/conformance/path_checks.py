"""Checks that a path policy spreads traffic, avoids dead paths and uses recovered ones again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from congestion.api import Policy
from transport.compiler.library import Library
from transport.conformance.path_bench import GAP_NS, RTT_NS, Conduct, PathBench
from transport.conformance.result import Outcome, Outcomes, number, verdict
from transport.conformance.scenes import (
    BYTES_PER_S,
    MS,
    Cast,
    bottleneck,
    network_text,
    plan_of,
    share,
    span_text,
)
from transport.conformance.window_dumbbell import Ledger
from transport.ground.units import time_text
from transport.policies.dumbbell import Change, Report

COUNTS = (2, 4, 8, 16, 64, 256)
DYING = (4, 8, 32)
SPAN = 40  # number of picks per path over which shares are computed


def spreads(policy: Policy, library: Library) -> Outcomes:
    if not policy.promises.spreads:
        return
    worst, where = 9.9, 0
    for paths in COUNTS:
        bench = PathBench(policy, library, paths)
        for _ in range((SPAN + 20) * paths):
            bench.pick()
        least = float(bench.shares(SPAN * paths).min())
        if least < worst:
            worst, where = least, paths
    yield verdict(
        "spreads",
        worst >= 0.5,
        f"the least used of {where} paths gets {number(worst)} of its share",
        ">= 0.5",
        "all paths are equal here: look for ties that always resolve alike, and for indices that "
        "are never used",
    )


def keeps_off(policy: Policy, library: Library) -> Outcomes:
    """Checks that of 1 to 256 paths a usable one is picked, and not avoid_path for a resend.

    If all paths are dead, any of them may be picked.
    """
    onto, unusable, outside, failed = 0, 0, 0, 0
    for paths in range(1, 257):
        bench = PathBench(policy, library, paths)
        heads = bench.side.shared.records
        for turn in range(6):
            avoid = int(bench.draw.integers(0, paths))
            picked = bench.pick(is_resend=1, avoid_path=avoid)
            onto += picked == avoid and paths > 1
            heads["usable"] = bench.draw.random(paths) < 0.3
            if turn == 5:
                heads["usable"] = 0
            picked = bench.pick()
            inside = 0 <= picked < paths
            outside += not inside
            unusable += bool(inside and heads["usable"].any() and not heads["usable"][picked])
            heads["usable"] = 1
        failed += bench.failed
    yield verdict(
        "copies take another path",
        onto == 0,
        f"{onto} of {255 * 6} copies took the path that had lost them",
        "0 if another is usable",
        "if event.is_resend is 1, answer event.avoid_path only if no other path is usable",
    )
    yield verdict(
        "usable paths only",
        unusable == 0,
        f"{unusable} picks of a dead path with others usable",
        "0",
        "paths[i].usable is 0 for a dead path: skip it",
    )
    yield verdict(
        "1 to 256 paths",
        outside == 0 and failed == 0,
        f"{outside} picks out of range; a hook failed at {failed} of 256 path counts",
        "0, and no failure",
        "if no path is usable, answer any index below len(paths)",
    )


def heeds(policy: Policy, library: Library) -> Outcomes:
    """Checks that a path with ECN marks, or with a long RTT, gets less traffic.

    Leaves out a signal (ECN or RTT) that the policy does not declare to use.
    """
    for signal, what in (("ecn", "always marked"), ("rtt", "ten times as long")):
        if signal not in policy.promises.signals:
            continue
        worst = 0.0
        for paths in DYING:
            bench = PathBench(policy, library, paths)
            if signal == "ecn":
                bench.marking.add(1)
            else:
                bench.slow_ns[1] = 9 * RTT_NS
            for _ in range(3 * SPAN * paths):
                bench.pick()
            worst = max(worst, float(bench.shares(SPAN * paths)[1]))
        yield verdict(
            f"heeds {signal}",
            worst <= 0.9,
            f"a path that is {what} gets {number(worst)} of its share",
            "<= 0.9",
            f"signals names {signal}: look at what on_feedback does with it, and for which path",
        )


def picks_until_shunned(bench: PathBench, dead: int, turns: int) -> int:
    """The number of picks of a dead path until it gets less than 10% of its fair share."""
    bench.dead.add(dead)
    before = len(bench.picks)
    for _ in range(turns):
        bench.pick()
    hits = (np.array(bench.picks[before:]) == dead).astype(int)
    span = SPAN * bench.paths
    ahead = np.convolve(hits, np.ones(span, int), "full")[span - 1 :][: len(hits) - span]
    calm = np.flatnonzero(ahead < SPAN // 10)
    return int(hits[: calm[0]].sum()) if len(calm) else 1 << 30


def shuns(policy: Policy, library: Library) -> Outcomes:
    """Checks that a path that drops everything, at once or after it worked, is soon avoided."""
    promised = policy.promises.dead_path_picks
    if promised is None:
        return
    conducts = [("", Conduct())]
    if "timeout" in policy.promises.signals:
        # A path may stay usable in spite of timeouts, through probes or another flow's traffic.
        conducts.append((" that stays usable", Conduct(retires=False)))
    for text, conduct in conducts:
        worst, where = 0, ""
        for paths in DYING:
            for warm in (0, 30 * paths):
                bench = PathBench(policy, library, paths, conduct)
                for _ in range(warm):
                    bench.pick()
                picks = picks_until_shunned(bench, paths // 2, 4 * SPAN * paths)
                if picks >= worst:
                    worst, where = picks, f"of {paths}, {'once good' if warm else 'never good'}"
        yield verdict(
            f"shuns a dead path{text}",
            worst <= promised,
            f"{worst if worst < 1 << 30 else 'endless'} picks of it (one {where})",
            f"<= {promised} before its share is below a tenth",
            "a path without feedback must lose its share: rate a path that was never measured as "
            "average, and count a timeout against it",
        )


def favours(policy: Policy, library: Library) -> Outcomes:
    """Checks that a path that never answered is not preferred before its first timeout."""
    if policy.promises.dead_path_picks is None:
        return
    worst, where = 0.0, 0
    for paths in DYING:
        turns = 2 * SPAN * paths
        bench = PathBench(policy, library, paths, Conduct(rto_ns=2 * turns * GAP_NS))
        bench.dead.add(1)
        for _ in range(turns):
            bench.pick()
        got = float(bench.shares(turns)[1])
        if got >= worst:
            worst, where = got, paths
    yield verdict(
        "does not favour a silent path",
        worst <= 1.5,
        f"{number(worst)} of its share (one of {where}) before its first timeout",
        "<= 1.5",
        "a path without a measured RTT must not count as RTT 0, which wins every comparison",
    )


def heals(policy: Policy, library: Library) -> Outcomes:
    promised = policy.promises.heals_picks
    if promised is None:
        return
    worst, where = 0, 0
    for paths in DYING:
        bench = PathBench(policy, library, paths)
        picks_until_shunned(bench, 1, 4 * SPAN * paths)
        bench.heal(1)
        before = len(bench.picks)
        for _ in range(promised + 2 * SPAN * paths):
            bench.pick()
        hits = (np.array(bench.picks[before:]) == 1).astype(int)
        span = SPAN * paths
        ahead = np.convolve(hits, np.ones(span, int), "full")[span - 1 :][: len(hits) - span]
        back = np.flatnonzero(ahead >= SPAN // 2)
        picks = int(back[0]) if len(back) else 1 << 30
        if picks >= worst:
            worst, where = picks, paths
    yield verdict(
        "takes a healed path back",
        worst <= promised,
        f"{worst if worst < 1 << 30 else 'never'} picks ({where} paths)",
        f"<= {promised} until it has half of its share",
        "after GOOD feedback for an avoided path, its earlier failures must soon be forgotten",
    )


def in_a_network(policy: Policy, cast: Cast, ledger: Ledger, limit_ns: int) -> Outcomes:
    """Checks eight flows over four paths, one of which is down for 60 ms."""
    down_ns, up_ns, step_ns = 40 * MS, 100 * MS, 5 * MS
    plan = plan_of(
        cast,
        links=[bottleneck()] * 4,
        flows=8,
        limit_ns=max(limit_ns, 200 * MS),
        trace_ns=step_ns,
        changes=[
            Change(at_ns=down_ns, path=1, up=0),
            Change(at_ns=up_ns, path=1, up=1),
        ],
    )
    report = ledger.run(plan)
    carried = np.diff(report.trace.path_bytes, axis=0)
    full = BYTES_PER_S * step_ns * 1e-9
    during = carried[(down_ns + 15 * MS) // step_ns : up_ns // step_ns] / full
    after = carried[-(30 * MS // step_ns) :] / full
    yield verdict(
        "lives on with a path dead",
        float(during.sum(axis=1).mean()) >= 0.5,
        f"{number(float(during.sum(axis=1).mean()))} of 3 paths' worth, 15 ms after it died",
        ">= 0.5",
        "traffic waits for the dead path: look at what is picked after its timeout",
        where=network_text(plan, f"path 1 down {span_text(down_ns, up_ns)}"),
    )
    for outcome in _shares_in_a_network(policy, report, after):
        yield replace(outcome, where=network_text(plan, f"path 1 down {span_text(down_ns, up_ns)}"))


def _shares_in_a_network(policy: Policy, report: Report, after: np.ndarray) -> Outcomes:
    promises = policy.promises
    if promises.dead_path_picks is not None:
        swallowed = report.paths[1].lost
        # The number of packets of a fair share in 45 of the 60 ms for which the path is down.
        fair = 0.045 * BYTES_PER_S / 4_160
        yield verdict(
            "shuns it in a network",
            swallowed <= 0.1 * fair + 1_000,
            f"{swallowed} datagrams were sent into it",
            f"<= {int(0.1 * fair + 1_000)}",
            "see the check of the same name on the bench",
        )
    if promises.spreads and promises.heals_picks is not None:
        mean = after.mean(axis=0)
        back = float(mean[1] / mean.mean())
        yield verdict(
            "takes it back in a network",
            back >= 0.5,
            f"{number(back)} of its share at the end, {number(share(report) / 4)} of all paths",
            ">= 0.5",
            "see the check of the same name on the bench",
        )


def alone(policy: Policy, cast: Cast, ledger: Ledger, limit_ns: int) -> Outcome:
    """Checks that all messages of a flow arrive over eight paths with random loss."""
    plan = plan_of(cast, links=[bottleneck(loss=2**-10)] * 8, flows=4, limit_ns=limit_ns * 4)
    for flow in plan.flows:
        flow.messages = 40
    report = ledger.run(plan)
    whole = sum(flow.messages for flow in report.flows)
    return verdict(
        "carries messages over 8 paths",
        whole == 160,
        f"{whole} of 160 messages, the last after {time_text(report.ended_ns, 3)}",
        "160",
        "some burst was never delivered: is the answer always a usable path?",
        where=network_text(plan),
    )
