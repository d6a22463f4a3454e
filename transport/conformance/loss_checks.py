"""Checks that a loss policy detects each loss once and in time, and tolerates late segments."""

from __future__ import annotations

from collections.abc import Callable

from congestion.api import Policy
from transport.compiler.library import Library
from transport.conformance.loss_bench import BACKSTOP, GAP_NS, RTO_NS, RTT_NS, LossBench
from transport.conformance.result import Outcome, Outcomes, number, verdict
from transport.conformance.scenes import MS, US, Cast, bottleneck, network_text, plan_of
from transport.conformance.window_dumbbell import Ledger
from transport.ground.units import time_text
from transport.policies.dumbbell import Change

MESSAGES = 60
WINDOWS = (16, 512)  # window sizes in segments
FAR_RTO_NS = 1_000 * MS
FLOWS = 2
TAIL_TIMEOUTS = 2.5
# Time limit for all messages if a path dies. They take 13 ms over two paths and 24 ms over one; the
# dead path's traffic must move to the other path within 50 ms.
MOVED_NS = 80 * MS


def all_but(lost: int) -> Callable[[int], int | None]:
    """A `late_ns` function: every segment is on time except one, which is lost."""
    return lambda seq: None if seq == lost else 0


def repairs(policy: Policy, library: Library) -> Outcomes:
    """Loses one segment of 400: in the middle, near the beginning, or the last."""
    longest, again, others = 0.0, 0, 0
    for lost in (3, 200, 301):
        bench = LossBench(policy, library, all_but(lost))
        bench.run(400)
        segment = bench.segments[lost]
        wait_ns = segment.verdicts[0] - segment.first_ns if segment.verdicts else 1 << 60
        longest = max(longest, wait_ns / RTT_NS)
        again = max(again, max(len(one.verdicts) for one in bench.segments))
        others = max(others, sum(len(one.verdicts) for one in bench.segments) - 1)
    promised = policy.promises.repairs_rtts
    if promised is not None:
        yield verdict(
            "repairs a lost segment",
            longest <= promised,
            f"judged {number(longest)} round trips after it was sent",
            f"<= {promised}",
            "later segments were delivered: look for a threshold above their number",
        )
    yield verdict(
        "judges a segment once",
        again <= 1,
        f"up to {again} verdicts on one segment; {others} on segments that were not lost",
        "1, while the copy is in flight",
        "do not judge a segment that was just sent again: compare send times; the copy's is newer",
        name="one_copy",
    )
    tail = LossBench(policy, library, all_but(399), probes_return=False)
    tail.run(400)
    last = tail.segments[399]
    wait_ns = last.verdicts[0] - last.first_ns if last.verdicts else 1 << 60
    yield verdict(
        "repairs the tail",
        last.acked and not tail.failed and wait_ns <= TAIL_TIMEOUTS * RTO_NS,
        f"after {number(wait_ns / RTO_NS)} timeouts",
        f"<= {TAIL_TIMEOUTS}; the core's own fallback comes after {BACKSTOP}",
        "no delivery follows the last segment: on_timer has to judge it",
    )


def repairs_in_windows(policy: Policy, library: Library) -> Outcomes:
    """Loses one segment without any timeout: later deliveries must reveal it."""
    promised = policy.promises.repairs_windows
    if promised is None:
        return
    for window in WINDOWS:
        sent = 4 * window
        bench = LossBench(policy, library, all_but(7), window_segments=window, rto_ns=FAR_RTO_NS)
        bench.run(sent)
        segment = bench.segments[7]
        beyond = segment.beyond if segment.verdicts else sent
        yield verdict(
            f"repairs within windows of {window}",
            beyond <= promised * window + 1,
            f"judged after {beyond} later segments had been delivered",
            f"<= {promised} windows",
            "look for a counter that wraps, or a threshold above this number of segments",
        )


def tolerates(policy: Policy, library: Library) -> Outcomes:
    """Delays every seventh segment so that the declared number of segments overtakes it."""
    promised = policy.promises.reorder_segments
    if promised is None:
        return
    late_ns = promised * GAP_NS + GAP_NS // 2
    bench = LossBench(policy, library, lambda seq: late_ns if seq % 7 == 3 else 0)
    bench.run(2_000)
    wrong = sum(len(segment.verdicts) for segment in bench.segments)
    yield verdict(
        "tolerates reordering",
        wrong == 0,
        f"{wrong} of 2000 segments judged lost, none was; every 7th is {promised} places late",
        "0",
        f"segments {promised} places late are not lost: widen the window, in time or in segments",
        name="reordering",
    )


def in_a_network(policy: Policy, cast: Cast, ledger: Ledger) -> Outcomes:
    """Checks that all messages arrive under random loss, heavy reordering and an outage."""
    scenes = {
        "loss 2^-8": [bottleneck(loss=2**-8)] * 2,
        "loss 1/8": [bottleneck(loss=0.125)] * 2,
        "reordering": [bottleneck(reorder=0.1, reorder_ns_max=400 * US, loss=2**-10)] * 2,
        "one path of two dead": [bottleneck(), bottleneck()],
    }
    limit_ns = 20_000 * MS
    for name, links in scenes.items():
        plan = plan_of(
            cast,
            links=links,
            flows=FLOWS,
            limit_ns=limit_ns,
            ack_loss=links[0].loss,
        )
        for flow in plan.flows:
            flow.messages = MESSAGES
        if "dead" in name:
            plan.changes = [Change(at_ns=3 * MS, path=1, up=0)]
        report = ledger.run(plan)
        whole = sum(flow.messages for flow in report.flows)
        in_time = report.ended_ns <= (MOVED_NS if "dead" in name else limit_ns)
        gone = sum(path.lost for path in report.paths)
        resent = sum(flow.counters["segments_resent"] for flow in report.flows)
        yield verdict(
            f"all arrives: {name}",
            whole == FLOWS * MESSAGES and in_time,
            f"{whole} of {FLOWS * MESSAGES} messages after {time_text(report.ended_ns)}, "
            f"{resent} copies for {gone} lost",
            f"all of them, in {MOVED_NS // MS} ms" if "dead" in name else "all of them",
            "some segment is never judged lost: look at on_timer when no acknowledgments arrive",
            where=network_text(plan, "path 1 down from 3 ms" if "dead" in name else ""),
        )
    yield copies(cast, ledger)


def copies(cast: Cast, ledger: Ledger) -> Outcome:
    """Checks that a lost segment is resent once; every 5 ms a few segments are dropped once."""
    gusts = range(5, 95, 5)
    plan = plan_of(
        cast,
        links=[bottleneck()],
        limit_ns=100 * MS,
        changes=[
            change
            for gust in gusts
            for change in (
                Change(at_ns=gust * MS, path=0, loss=1.0),
                Change(at_ns=gust * MS + 10 * US, path=0, loss=0.0),
            )
        ],
    )
    report = ledger.run(plan)
    sent = report.flows[0].counters
    lost = report.paths[0].lost
    return verdict(
        "a copy each",
        report.flows[0].copies_max <= 1,
        f"{sent['segments_resent']} copies for {lost} lost, "
        f"up to {report.flows[0].copies_max} of one",
        "at most 1, as every copy was delivered",
        "a segment that was just sent again is judged lost again, which multiplies resends",
        name="one_copy",
        where=network_text(plan, "10 us of total loss every 5 ms"),
    )
