"""Measures a loss policy by what is usual in the field: needless resends, probes, timer checks.

The values are always shown. One beyond its bound is a warning, and with `--strict` a failure.
"""

from __future__ import annotations

from collections.abc import Callable

from congestion.api import Policy
from transport.compiler.library import Library
from transport.conformance.loss_bench import GAP_NS, NEVER, RTO_NS, RTT_NS, START_NS, LossBench
from transport.conformance.loss_checks import all_but
from transport.conformance.result import Outcome, Outcomes, number, usual
from transport.conformance.scenes import MS, US, Cast, bottleneck, network_text, plan_of
from transport.conformance.window_dumbbell import Ledger
from transport.ground.units import percent, time_text

SEGMENTS = 2_000
STEADY_SEGMENTS = 6_400  # 200 round trips
SILENCE_NS = 200 * RTT_NS
# RFC 8985, section 7.2: one tail loss probe for each flight, and so at most one a round trip.
PROBES_MAX = 1.0  # a round trip
# A policy needs a timer for the tail and one for reordering: four checks a round trip are plenty.
TIMERS_MAX = 4.0  # a round trip
# TCP's fast retransmit and RACK both tolerate a few segments, and a quarter of a round trip.
RESENT_MAX = 0.01  # of all segments, if none is lost
REORDERINGS = (("a quarter of a round trip", 12_500), ("a round trip", 50 * US))


def reordered(cast: Cast, ledger: Ledger) -> Outcomes:
    """Checks how much is resent in a network that reorders packets and loses none."""
    for what, late_ns in REORDERINGS:
        plan = plan_of(
            cast,
            links=[bottleneck(reorder=0.1, reorder_ns_max=late_ns, queue_bytes_max=16 << 20)],
            limit_ns=40 * MS,
        )
        report = ledger.run(plan)
        counters = report.flows[0].counters
        resent = counters["segments_resent"] / max(counters["segments_sent"], 1)
        yield usual(
            f"resends if late by {what}",
            resent <= RESENT_MAX,
            f"{percent(resent, 2)} of the segments resent; {report.paths[0].lost} were lost",
            f"usual <= {percent(RESENT_MAX)}",
            "a late segment is no lost one: wait for a few later ones, or for a part of a round "
            "trip, and wait longer after event.spurious_segments",
            name="reordering",
            where=network_text(plan, f"from the start to {time_text(plan.limit_ns)}"),
        )


def most_in_a_round(times: list[int]) -> tuple[int, int]:
    """The largest number of times within a round trip, and when that began."""
    most, when, first = 0, START_NS, 0
    for last, then_ns in enumerate(times):
        while then_ns - times[first] >= RTT_NS:
            first += 1
        if last - first + 1 > most:
            most, when = last - first + 1, times[first]
    return most, when


def rates(policy: Policy, library: Library) -> Outcomes:
    """Checks the probes and timer checks while all arrives, near a loss, and in silence."""
    scenes: tuple[tuple[str, Callable[[int], int | None], int], ...] = (
        ("all arrives", lambda seq: 0, NEVER),
        ("one segment of 50 lost", lambda seq: None if seq % 50 == 7 else 0, NEVER),
        ("the last segment lost", all_but(STEADY_SEGMENTS - 1), NEVER),
        ("nothing arrives any more", lambda seq: 0, STEADY_SEGMENTS * GAP_NS // 2),
    )
    probes, timers = [], []
    for name, late_ns, dead_ns in scenes:
        bench = LossBench(policy, library, late_ns, dead_ns=dead_ns)
        bench.run(STEADY_SEGMENTS, SILENCE_NS)
        rounds = (bench.now_ns - START_NS) / RTT_NS
        most, when = most_in_a_round(bench.probes)
        probes.append((len(bench.probes) / rounds, most, when - START_NS, name))
        timers.append((bench.timers / rounds, name))
    rate, most, when_ns, name = max(probes, key=lambda one: (one[1], one[0]))
    where = f"one path, RTT {time_text(RTT_NS)}, {RTT_NS // GAP_NS} segments a round trip"
    yield usual(
        "probes a round trip",
        most <= 2 and rate <= PROBES_MAX,
        f"{number(rate)} on average, at most {most} ({name})",
        f"usual <= {PROBES_MAX:g}, at most 2 within a round trip",
        "remember when a probe was asked for, and wait for its answer or for a timeout",
        name="probe_rate",
        where=f"{where}; most after {time_text(when_ns)}",
    )
    rate, name = max(timers)
    yield usual(
        "timer checks a round trip",
        rate <= TIMERS_MAX,
        f"{number(rate)} on average ({name})",
        f"usual <= {TIMERS_MAX:g}",
        "next_check_ns is for the next deadline: answer a negative one if there is none",
        name="timer_rate",
        where=f"{where}, timeout {time_text(RTO_NS)}",
    )


def neighbours(policy: Policy, library: Library) -> Outcome:
    """Checks that adjacent segments that change places are not resent."""
    bench = LossBench(policy, library, lambda seq: GAP_NS + GAP_NS // 2 if seq % 2 == 0 else 0)
    bench.run(SEGMENTS)
    wrong = sum(len(segment.verdicts) for segment in bench.segments)
    return usual(
        "tolerates neighbours that change places",
        wrong <= RESENT_MAX * SEGMENTS,
        f"{wrong} of {SEGMENTS} segments judged lost, none was",
        f"usual <= {int(RESENT_MAX * SEGMENTS)}",
        "segments sent together often arrive in another order: one later segment proves no loss",
        name="reordering",
        where=f"one path, RTT {time_text(RTT_NS)}, every other segment one place late",
    )
