"""Measures a window policy by what is usual in the field, alone in a test harness.

The values are always shown. One beyond its bound is a warning, and with `--strict` a failure.
"""

from __future__ import annotations

import numpy as np

from congestion.api import Policy
from transport.compiler.library import Library
from transport.conformance.result import Outcome, Outcomes, number, usual
from transport.conformance.scenes import (
    MS,
    Cast,
    bottleneck,
    marking,
    network_text,
    plan_of,
    span_text,
)
from transport.conformance.window_bench import SEGMENT_BYTES, Weather, WindowBench
from transport.conformance.window_checks import BENCH, WARM_UP, bench_at
from transport.conformance.window_dumbbell import Ledger
from transport.ground.units import time_text

WINDOWS = (64, 1_021)
AN_ACK = 32  # segments per acknowledgment
WINDOW_BYTES = 1 << 20  # the operator's bound in the network that never loses anything
FULL_MIN = 0.5  # of that bound: a queue that only the bound ends
ROUNDS = 24  # round trips with marks or delay
QUEUE_RTTS = 8.0
ANSWERS_MAX = 0.9  # of the window that the policy has without marks or delay
IDLE_NS = 5_000_000_000
IDLE_ACKS = 400  # acknowledgments while the application has nothing more to send
AFTER_ROUNDS = 100
RESUMES_MIN, RESUMES_MAX = 0.25, 4.0
ACKS = (2, 32)  # segments per acknowledgment
GROWTH_RATIO_MAX = 4.0


def left_after(policy: Policy, library: Library, segments: int, weather: Weather) -> float:
    """Bytes in flight after ROUNDS round trips of one kind."""
    bench = bench_at(policy, library, segments)
    for _ in range(WARM_UP):
        bench.round(AN_ACK, Weather(paced=True))
    for _ in range(ROUNDS):
        bench.round(AN_ACK, weather)
    return bench.effective_bytes


def left(policy: Policy, library: Library) -> dict[str, float]:
    """The most that marks, a queue or both leave of what is in flight without them."""
    kinds = {
        "marks": Weather(ecn=True, paced=True),
        "delay": Weather(queue_rtts=QUEUE_RTTS, paced=True),
        "both": Weather(ecn=True, queue_rtts=QUEUE_RTTS, paced=True),
    }
    most = dict.fromkeys(kinds, 0.0)
    for segments in WINDOWS:
        calm = left_after(policy, library, segments, Weather(paced=True))
        for kind, weather in kinds.items():
            rest = left_after(policy, library, segments, weather)
            most[kind] = max(most[kind], rest / max(calm, 1.0))
    return most


def answers(policy: Policy, library: Library, cast: Cast, ledger: Ledger) -> Outcomes:
    """Checks that marks or a growing round trip slow a flow down, and those that it declares.

    In a network whose buffer never overflows, only they can.
    """
    queues: dict[str, float] = {}
    for kind, make in (("delay", bottleneck), ("marks", marking)):
        plan = plan_of(
            cast,
            links=[make(queue_bytes_max=4 * WINDOW_BYTES)],
            limit_ns=120 * MS,
            trace_ns=MS,
            window_bytes_max=WINDOW_BYTES,
        )
        trace = ledger.run(plan).trace
        late = trace.at_ns >= plan.limit_ns // 2
        queues[kind] = float(np.median(trace.queue_bytes[late, 0])) / WINDOW_BYTES
    where = network_text(plan, span_text(plan.limit_ns // 2, plan.limit_ns))
    yield usual(
        "answers marks or delay",
        min(queues.values()) <= FULL_MIN,
        f"a median queue of {number(queues['marks'])} of the largest window with marks, "
        f"{number(queues['delay'])} without",
        f"usual <= {FULL_MIN} for one of them",
        "a policy that only losses slow down fills every buffer: heed event.ecn_segments, or "
        "event.rtt_ns over event.rtt_min_ns",
        name="congestion_response",
        where=where,
    )
    most = left(policy, library)
    for signal, kind, other in (("ecn", "marks", "delay"), ("rtt", "delay", "marks")):
        if signal in policy.promises.signals:
            # Without marks and losses, nothing but delay keeps the queue short.
            short = kind == "delay" and queues[kind] <= FULL_MIN
            beside = most["both"] / max(most[other], 1e-9)
            yield usual(
                f"answers {kind}, as declared",
                short or min(most[kind], beside) <= ANSWERS_MAX,
                f"leaves {number(most[kind])} of what is in flight alone, {number(beside)} beside "
                f"{other}",
                f"usual <= {ANSWERS_MAX}",
                f"signals names {signal}, and it does not lower the window: look at what on_ack "
                "does with it",
                where=f"{BENCH}, after {ROUNDS} round trips",
            )


def resumes(policy: Policy, library: Library) -> Outcome:
    """Checks the window after the application had nothing to send, and after a pause."""
    worst: list[tuple[float, str]] = []
    for segments in WINDOWS:
        bench = bench_at(policy, library, segments)
        for _ in range(WARM_UP):
            bench.round(AN_ACK)
        before = bench.effective_bytes
        bench.app_limited = 1
        for _ in range(IDLE_ACKS):
            bench.now_ns += bench.rtt_ns
            bench.ack(SEGMENT_BYTES, bench.rtt_ns, 0.0)
        bench.app_limited = 0
        bench.now_ns += IDLE_NS
        bench.ack(SEGMENT_BYTES, bench.rtt_ns, 0.0)
        at_once = bench.effective_bytes / before
        worst.append((at_once, f"at {segments} segments, at once"))
        for _ in range(AFTER_ROUNDS):
            bench.round(AN_ACK)
            if bench.effective_bytes > RESUMES_MAX * before:
                break
        worst.append((bench.effective_bytes / before, f"at {segments} segments, later"))
    least = min(one for one in worst if one[1].endswith("later"))
    most = max(one for one in worst if one[1].endswith("at once"))
    return usual(
        "resumes after idle time",
        least[0] >= RESUMES_MIN and most[0] <= RESUMES_MAX,
        f"{number(most[0])} of the window before at once, {number(least[0])} "
        f"{AFTER_ROUNDS} round trips later ({least[1].partition(',')[0]})",
        f"usual <= {RESUMES_MAX:g} at once, >= {RESUMES_MIN} later",
        "idle time is no congestion, and no growth: look for a clock that counts it, and for "
        "growth while event.app_limited is 1",
        where=f"{BENCH}; {IDLE_ACKS} round trips of one segment, then {time_text(IDLE_NS)} of none",
    )


def grows_by_bytes(policy: Policy, library: Library) -> Outcome:
    """Checks that growth depends on the bytes acknowledged, not on the acknowledgments."""
    worst, text = 1.0, "no growth"
    for segments in WINDOWS:
        grown = []
        for an_ack in ACKS:
            bench = WindowBench(policy, library)
            bench.start(segments * SEGMENT_BYTES)
            for _ in range(WARM_UP):
                if bench.segments < 4.0 * segments:
                    bench.round(an_ack)
            before, rounds = bench.segments, 0
            while rounds < ROUNDS and bench.segments < 2.0 * before:
                bench.round(an_ack)
                rounds += 1
            grown.append((bench.segments - before) / max(rounds, 1))
        low, high = sorted(grown)
        if high < 0.1:
            continue
        ratio = high / max(low, 1e-3)
        if ratio >= worst:
            shown = " and ".join(number(one) for one in grown)
            worst, text = ratio, f"{shown} segments a round trip at {segments} segments"
    return usual(
        "grows by bytes",
        worst <= GROWTH_RATIO_MAX,
        text,
        f"usual: equal within a factor of {GROWTH_RATIO_MAX:g}, with an acknowledgment for "
        f"each {ACKS[0]} or {ACKS[1]} segments",
        "a receiver may acknowledge many segments at once: grow by event.acked_bytes, not by a "
        "step for each call",
        where=BENCH,
    )
