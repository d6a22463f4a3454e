"""Checks that a window policy grows, cuts and recovers as declared, alone in a test harness.

window_dumbbell.py checks fairness and utilization.
"""

from __future__ import annotations

import math
import statistics
from itertools import pairwise, product

from congestion.api import Policy
from transport.compiler.library import Library
from transport.conformance.result import Outcome, Outcomes, number, verdict, within
from transport.conformance.scenes import WINDOW_SEGMENTS_MIN
from transport.conformance.window_bench import RTT_NS, SEGMENT_BYTES, Weather, WindowBench
from transport.ground.units import counted, time_text

HINTS = (32, 128, 320)  # window in segments when a policy takes over a live flow
WINDOWS = (16, 61, 256, 1_021)  # window sizes in segments; not all powers of two
ACKS = (1, 8, 1 << 20)  # segments per acknowledgment: one, a few, the whole window
ROUNDS = 20
BENCH = f"one path without a network, RTT {time_text(RTT_NS)}"
LAST_ROUNDS = 5  # the result is measured in the last 5 of ROUNDS round trips
WARM_UP = 4
WIDE_RTT_NS = 50_000_000
TROUBLE = 8  # consecutive congested round trips
LOSS_SHARE = 0.125
SILENT = 12  # consecutive timeouts
MEETING = (256, 16)  # windows in segments of the two flows when they begin to share a queue
MEETING_SEGMENTS = 256  # segments in flight that the path holds without a queue
MEETING_QUEUE = 256.0
MEETING_ROUNDS = 400


def bench_at(policy: Policy, library: Library, segments: float) -> WindowBench:
    bench = WindowBench(policy, library)
    bench.start(segments * SEGMENT_BYTES)
    return bench


def starts(policy: Policy, library: Library) -> Outcomes:
    """Checks that the first window is positive, and near the hint on a live flow."""
    fresh = WindowBench(policy, library)
    fresh.start()
    yield verdict(
        "starts",
        not fresh.failed and fresh.window_bytes > 0,
        f"{number(fresh.segments)} segments",
        "a finite window above zero",
        "on_start must answer a positive window; the RTT is unknown then and fields may be zero",
    )
    if not constant(policy, library):
        yield takes_over(policy, library)


def constant(policy: Policy, library: Library) -> bool:
    """Whether the policy always answers the same window, so that a hint has no effect."""
    answers: set[float] = set()
    for segments in HINTS:
        bench = bench_at(policy, library, segments)
        bench.round(8, Weather(ecn=True, loss_share=LOSS_SHARE, queue_rtts=8.0))
        answers |= set(bench.answers)
    return len(answers) == 1


def takes_over(policy: Policy, library: Library) -> Outcome:
    """Checks that on an old flow with a known RTT the policy starts near the current window."""
    begun: list[tuple[float, str]] = []
    later: list[tuple[float, str]] = []
    for segments in HINTS:
        bench = WindowBench(policy, library)
        hint_bytes = segments * SEGMENT_BYTES
        bench.take_over(hint_bytes)
        begun.append((bench.effective_bytes / hint_bytes, f"{segments} segments"))
        bench.round(4)
        later.append((bench.effective_bytes / hint_bytes, f"{segments}, a round trip later"))
    least, most = min(begun + later), max(begun)
    return verdict(
        "takes over",
        not bench.failed and least[0] >= 0.5 and most[0] <= 2.0,
        f"{number(least[0])} ({least[1]}) to {number(most[0])} ({most[1]}) of the window before",
        "0.5 to 2, of the window or of what is paced in a round trip",
        "when a policy is swapped in, on_start gets hint_window_bytes, srtt_ns and "
        "delivered_bytes: start from these values, not from zero",
    )


def growth(policy: Policy, library: Library) -> Outcomes:
    """Checks the declared growth per round trip without congestion, in segments or as a factor.

    It is measured at small and large windows, with acknowledgments of one segment, of a few
    segments and of a whole window.
    """
    promises = policy.promises
    if promises.growth_segments is None and promises.growth_factor is None:
        return
    additive: list[tuple[float, str]] = []
    factors: list[tuple[float, str]] = []
    for segments in WINDOWS:
        if segments < promises.steady_window_segments:
            continue
        for an_ack in ACKS:
            bench = bench_at(policy, library, segments)
            for _ in range(WARM_UP):
                bench.round(an_ack)
            before = bench.segments
            for _ in range(ROUNDS):
                bench.round(an_ack)
            where = f"at {segments} segments, {min(an_ack, segments)} an ack"
            additive.append(((bench.segments - before) / ROUNDS, where))
            factors.append(((bench.segments / before) ** (1 / ROUNDS), where))
    remedy = (
        "each round trip acknowledges a full window: look for growth that is rounded down, counted "
        "by acknowledgments instead of bytes, or assigned instead of added"
    )
    for name, promised, seen in (
        ("growth", promises.growth_segments, additive),
        ("growth factor", promises.growth_factor, factors),
    ):
        if promised is None:
            continue
        least, most = min(seen), max(seen)
        yield verdict(
            name,
            within(least[0], *promised, 0.005) and within(most[0], *promised, 0.005),
            f"{number(least[0])} ({least[1]}) to {number(most[0])} ({most[1]})",
            f"{promised[0]} to {promised[1]} a round trip",
            remedy,
        )


def weather_of(signals: str, queue_rtts: float) -> Weather:
    weather = Weather()
    for signal in signals.split("+"):
        if signal == "ecn":
            weather.ecn = True
        elif signal == "loss":
            weather.loss_share = LOSS_SHARE
        elif signal == "rtt":
            weather.queue_rtts = queue_rtts
    return weather


def cuts(policy: Policy, library: Library) -> Outcomes:
    """Checks the declared cuts: each signal of `cut_on` alone, in consecutive round trips."""
    promises = policy.promises
    for signals in promises.cut_on:
        factors: list[tuple[float, str]] = []
        often: list[tuple[int, str]] = []
        idle: list[tuple[int, str]] = []
        weather = weather_of(signals, promises.cut_queue_rtts)
        for segments in WINDOWS[1:]:
            for an_ack in ACKS[:2]:
                bench = bench_at(policy, library, segments)
                for _ in range(WARM_UP):
                    bench.round(an_ack)
                where = f"at {segments} segments, {an_ack} an ack"
                left, falls = troubled(bench, an_ack, weather)
                # RTT samples reveal a queue during the first round trip, so the cut may come in the
                # second one.
                factors.append((min(left[: 2 if weather.queue_rtts else 1]), where))
                often += [(count, where) for count in falls]
                idle.append((longest_idle(falls), where))
        yield from judged_cuts(policy, signals, factors, often, max(idle))


def troubled(bench: WindowBench, an_ack: int, weather: Weather) -> tuple[list[float], list[int]]:
    """Two lists over congested round trips: window after / window before, and number of cuts.

    Ends after TROUBLE round trips, or earlier once the window is small.
    """
    left: list[float] = []
    falls: list[int] = []
    while len(falls) < TROUBLE and (bench.segments > 4 or not falls):
        before, seen = bench.window_bytes, len(bench.windows) - 1
        bench.round(an_ack, weather)
        falls.append(fallen(bench.windows[seen:]))
        left.append(bench.window_bytes / before)
    return left, falls


def fallen(windows: list[float]) -> int:
    """The number of times that the window shrank."""
    return sum(later < earlier * (1 - 1e-9) for earlier, later in pairwise(windows))


def longest_idle(falls: list[int]) -> int:
    """The largest number of consecutive round trips without a cut."""
    longest = run = 0
    for count in falls:
        run = 0 if count else run + 1
        longest = max(longest, run)
    return longest


def judged_cuts(
    policy: Policy,
    signals: str,
    factors: list[tuple[float, str]],
    often: list[tuple[int, str]],
    idle: tuple[int, str],
) -> Outcomes:
    promises = policy.promises
    if promises.cut_factor is not None:
        least, most = min(factors), max(factors)
        yield verdict(
            f"cut on {signals}",
            within(least[0], *promises.cut_factor, 0.005)
            and within(most[0], *promises.cut_factor, 0.005)
            and most[0] < 1.0,
            f"leaves {number(least[0])} ({least[1]}) to {number(most[0])} ({most[1]})",
            f"{promises.cut_factor[0]} to {promises.cut_factor[1]} after a round trip",
            "cut_factor: look for a factor f used as 1 - f, or for an unused signal",
        )
    else:
        most = max(factors)
        yield verdict(
            f"cut on {signals}",
            most[0] < 1.0,
            f"leaves {number(most[0])} ({most[1]})",
            "less than before",
            "cut_on names a signal that does not shrink the window",
        )
    if promises.cuts_per_rtt is not None:
        worst = max(often)
        yield verdict(
            f"cuts a round trip on {signals}",
            worst[0] <= promises.cuts_per_rtt,
            f"up to {worst[0]} ({worst[1]})",
            f"<= {promises.cuts_per_rtt}",
            "store the time of a cut, and cut again only a round trip later",
        )
        yield verdict(
            f"cuts again on {signals}",
            idle[0] <= 2,
            f"{idle[0]} congested round trips in a row without a cut ({idle[1]})",
            "<= 2",
            "the guard against a second cut stays closed: compare times, do not use a flag",
        )


def regains(policy: Policy, library: Library) -> Outcomes:
    """Checks how long the window takes to recover from one loss at an RTT of 50 ms."""
    promised = policy.promises.regain_s
    if promised is None:
        return
    bench = WindowBench(policy, library, rtt_ns=WIDE_RTT_NS)
    bench.start(1_000.0 * SEGMENT_BYTES)
    bench.round(64)
    before = 0.99 * bench.window_bytes
    bench.round(64, Weather(loss_share=0.01))
    begin_ns = bench.now_ns
    while bench.window_bytes < before and bench.now_ns - begin_ns < 2e9 * promised[1]:
        bench.round(64)
    seconds = (bench.now_ns - begin_ns) / 1e9
    yield verdict(
        "regains its window",
        within(seconds, *promised),
        f"{number(seconds)} s until {number(99 * bench.window_bytes / before)} % after one loss",
        f"{promised[0]} to {promised[1]} s",
        "measure time from the cut, not from the last acknowledgment",
    )


def warm_bench(policy: Policy, library: Library, segments: float, old: bool) -> WindowBench:
    """A flow after some round trips without congestion; if `old`, a week later."""
    bench = bench_at(policy, library, segments)
    for turn in range(WARM_UP):
        if old and turn == 1:
            bench.age()
        bench.round()
    return bench


def gives_way(policy: Policy, library: Library) -> Outcomes:
    """Checks that less is sent after many round trips with 50 % loss, and after timeouts."""
    kept: list[tuple[float, str]] = []
    left: list[tuple[float, str]] = []
    for segments, old in product(WINDOWS[1:], (False, True)):
        where = f"at {segments} segments" + (", after a week" if old else "")
        bench = warm_bench(policy, library, segments, old)
        before = bench.effective_bytes
        for _ in range(ROUNDS - LAST_ROUNDS):
            bench.round(8, Weather(loss_share=0.5))
        first = len(bench.in_flight)
        for _ in range(LAST_ROUNDS):
            bench.round(8, Weather(loss_share=0.5))
        # The mean over all events, because an acknowledgment may undo a cut after a loss.
        kept.append((statistics.fmean(bench.in_flight[first:]) / before, where))
        bench = warm_bench(policy, library, segments, old)
        before = bench.effective_bytes
        for _ in range(SILENT):
            bench.timeout()
        left.append((bench.effective_bytes / before, where))
    for check, name, seen, what in (
        ("response to loss", "loss_response", kept, f"{ROUNDS} round trips that lose half"),
        ("response to timeouts", "timeout_response", left, f"{SILENT} timeouts in a row"),
    ):
        most = max(seen)
        yield verdict(
            check,
            most[0] <= 0.5,
            f"{what} leave {number(most[0])} of what is in flight ({most[1]})",
            "<= 0.5",
            f"a policy that never sends less can congest a network: reduce the window, or declare "
            f'Promises(intrinsic={{"{name}": "why"}})',
            name=name,
            where=f"{BENCH}; at the end of them",
        )


def meets(policy: Policy, library: Library) -> Outcome:
    """Checks that a small and a large window converge when both see the same queue.

    Chiu and Jain, "Analysis of the Increase and Decrease Algorithms", 1989: multiplicative increase
    with multiplicative decrease never changes the ratio of two windows.
    """
    flows = [WindowBench(policy, library) for _ in MEETING]
    for flow, segments in zip(flows, MEETING, strict=True):
        flow.take_over(segments * SEGMENT_BYTES)
    sums = [0.0 for _ in flows]
    for turn in range(MEETING_ROUNDS):
        total = sum(flow.effective_bytes for flow in flows) / SEGMENT_BYTES
        queue = min(max(total - MEETING_SEGMENTS, 0.0), MEETING_QUEUE)
        lost = max(total - MEETING_SEGMENTS - MEETING_QUEUE, 0.0) / total
        weather = Weather(
            ecn_share=min(max(queue / MEETING_QUEUE - 0.25, 0.0) * 2.0, 1.0),
            queue_rtts=queue / MEETING_SEGMENTS,
            loss_share=lost,
            paced=True,
        )
        for index, flow in enumerate(flows):
            flow.round(8, weather)
            if turn >= MEETING_ROUNDS // 2:
                sums[index] += flow.effective_bytes
    share = 2.0 * sums[-1] / max(sum(sums), 1.0)
    return verdict(
        "meets a larger flow",
        not any(flow.failed for flow in flows) and share >= 0.25,
        f"{number(share)} of its fair share after {MEETING_ROUNDS // 2} round trips",
        ">= 0.25",
        "increase by a number of segments, decrease by a factor (AIMD), not both by a factor; or "
        'declare Promises(intrinsic={"newcomer_share": "why"})',
        name="newcomer_share",
        where=f"a queue that two flows see alike, RTT {time_text(RTT_NS)}, "
        f"windows of {MEETING[0]} and {MEETING[1]} segments at the start",
    )


def recovers(policy: Policy, library: Library) -> Outcome:
    """Checks that the window grows again after timeouts, however small it became."""
    bench = bench_at(policy, library, 256)
    for _ in range(WARM_UP):
        bench.round()
    for _ in range(12):
        bench.timeout()
    fallen = bench.segments
    for _ in range(400):
        bench.round(16)
    grown = bench.segments
    return verdict(
        "recovers from silence",
        not bench.failed and grown >= min(4 * fallen, 64.0),
        f"{number(fallen)} segments after 12 timeouts, {number(grown)} after 400 round trips",
        "four times as much, or 64 segments",
        "a window at its minimum must still grow: look for growth lost to rounding, a timeout "
        "counter that is never reset, a threshold that stays zero",
    )


def stays_a_window(policy: Policy, library: Library) -> Outcome:
    """Checks that windows stay above the core's minimum, under each congestion signal in turn."""
    bench = WindowBench(policy, library)
    bench.start()
    weathers = [Weather(), Weather(ecn=True), Weather(loss_share=0.3), Weather(queue_rtts=8.0)]
    for turn in range(240):
        if turn % 37 == 0:
            bench.timeout()
        bench.round(8 + turn % 9, weathers[turn * 7 % 13 % 4])
    least = min(bench.answers) / SEGMENT_BYTES
    bound = counted(WINDOW_SEGMENTS_MIN, "segment")
    return verdict(
        "stays a window",
        not bench.failed and bench.shortfall_bytes <= 0.0 and math.isfinite(max(bench.answers)),
        f"{number(least)} to {number(max(bench.answers) / SEGMENT_BYTES)} segments",
        f">= {bound}, or result.window_segments_min; no failure",
        f"the core raises smaller windows to {bound} without the policy's knowledge: clamp to "
        f"{WINDOW_SEGMENTS_MIN} * segment_bytes or more, or allow less by window_segments_min",
        where=bench.where(),
    )
