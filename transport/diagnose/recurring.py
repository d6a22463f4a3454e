"""Finds ranks that come late now and then, over the whole job, and with which period.

A pause for a garbage collection, a checkpoint or a data loader is in one iteration of many, so no
three consecutive windows show it. Other load of a host makes all ranks late now and then; so a rank
counts only if it is late far more often than chance would have it (binomial test, one for each
rank).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose import places
from transport.diagnose.chance import at_least
from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, graded
from transport.diagnose.measures import Lateness
from transport.diagnose.own_times import own_beside, own_times_of
from transport.diagnose.stragglers import LATE_QUERY, LATE_SHARE
from transport.diagnose.windows import Windows
from transport.ground.units import percent, time_text

Array = NDArray[Any]

TIMES_MIN = 3  # a rank is late again and again if it is late in at least this many iterations
# Of a stage whose Sends wait for each other, less is known than of others: what it usually takes is
# this quantile of its own times, and not their median.
USUAL = 0.7
LONG_SHARE = 0.25  # no timeout of a packet delays a rank by this share of an iteration
CHANCE_MAX = 1e-3  # the probability that one of the ranks is late so often by chance
HALF = 0.5  # a rank is compared with times at which others are at least this part as late
COST_MIN = 0.01  # share of the job's time that it must cost
STEADY = 0.1  # times between pauses that differ by less than this share are a period
ALONE_MAX = 4  # more ranks than this are one finding


@dataclass(frozen=True)
class Period:
    """What repeats: every `steps` iterations, or every `ns`; both 0: neither."""

    steps: int = 0
    ns: int = 0

    @property
    def text(self) -> str:
        if self.steps == 1:
            return "in each iteration"
        if self.steps:
            return f"in every {_nth(self.steps)} iteration"
        return f"every {time_text(self.ns, 2)}" if self.ns else "without a period"


def _nth(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }".replace(" ", "")


def period_of(iterations: Array, times_ns: Array) -> Period:
    """The period of events, given the iteration and the time of each; a few may be missing."""
    if len(iterations) < TIMES_MIN:
        return Period()
    steps = np.diff(iterations)
    least = int(steps.min())
    if least >= 1 and (steps % least == 0).all() and float((steps == least).mean()) >= 0.5:
        return Period(steps=least)
    apart = np.diff(times_ns).astype(np.float64)
    usual = float(np.median(apart))
    whole = np.maximum(np.round(apart / max(usual, 1.0)), 1.0)
    if (np.abs(apart / whole - usual) <= STEADY * usual).all() and float((whole == 1).mean()) > 0.5:
        return Period(ns=int(usual))
    return Period()


def recurring(facts: Facts, windows: Windows, lateness: Lateness) -> list[Finding]:
    """A finding for each rank that is late again and again, the costliest first.

    windows, lateness: of single iterations. The first and the last one do not count.
    """
    if windows.count < TIMES_MIN + 2 or len(facts.processes) < 2:
        return []
    inner = slice(1, windows.count - 1)
    if (facts.calls["kind"] != "collective").any():
        lateness = replace(lateness, own=_beyond_usual(facts, windows))
    own = lateness.own[inner]
    late = own > LATE_SHARE * windows.usual_ns
    long = own > LONG_SHARE * windows.usual_ns
    late &= long | ~troubled(facts, windows)[inner]
    times, events = late.sum(axis=0), int(late.sum())
    judged_ns = int(windows.starts_ns[-1] - windows.starts_ns[1])
    cost_ns = np.where(late, own, 0.0).sum(axis=0)
    found = []
    for one in np.argsort(-cost_ns, kind="stable").tolist():
        if cost_ns[one] < COST_MIN * judged_ns:
            continue
        # Twice is enough if it is long, and if no rank is ever late otherwise.
        mine = late[:, one]
        alone = times[one] == events >= 2 and long[mine, one].all()
        as_late = late & (own >= HALF * np.median(own[mine, one]))
        if alone or (times[one] >= TIMES_MIN and _beyond_chance(one, as_late, windows)):
            found.append(one)
    if len(found) > ALONE_MAX:
        return [_finding(facts, windows, lateness, np.array(sorted(found)), late)]
    made = [_finding(facts, windows, lateness, np.array([one]), late) for one in found]
    if not made or facts.has_operations:
        return made
    total_ns = own_times_of(facts, windows)[inner].sum(axis=0)
    return [_doubted(each, one, total_ns, cost_ns) for each, one in zip(made, found, strict=True)]


def _doubted(found: Finding, one: int, total_ns: Array, cost_ns: Array) -> Finding:
    """The finding of a rank; as a suspicion if it took no longer than others over the whole job.

    Where nothing tells a program's iterations, its windows may have parts of them, and what a rank
    does once an iteration is twice in some of its windows and not at all in others.

    total_ns: [process] of its own. cost_ns: [process] that it cost when it was late.
    """
    others = np.delete(total_ns, one)
    others = others[~np.isnan(others)]
    if not len(others) or total_ns[one] - np.median(others) >= HALF * cost_ns[one]:
        return found
    text = " Over the whole job it did not take longer by itself than the others."
    return replace(graded(found, False), evidence=found.evidence + text)


def _beyond_chance(one: int, late: Array, windows: Windows) -> bool:
    """Whether a rank is late so often, and so evenly, that chance hardly explains it.

    late: [iteration, process] where a rank is about as late as this one, or later.
    """
    ranks, at = late.shape[1], np.flatnonzero(late[:, one])
    chance: float = ranks * at_least(len(at), int(late.sum()), 1 / ranks)
    if period_of(at, windows.starts_ns[1:-1][at]).steps > 1:
        chance *= 2 / len(late)  # about the probability that three moments are equally far apart
    return chance <= CHANCE_MAX


def _beyond_usual(facts: Facts, windows: Windows) -> Array:
    """[window, process]: by how much a rank of a pipeline took longer on its own than it usually
    does, beside the other ranks."""
    own = own_beside(facts, windows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # ranks of which nothing is known
        more: Array = np.nan_to_num(own - np.nanquantile(own[1:-1], USUAL, axis=0))
    return np.maximum(more, 0)


def troubled(facts: Facts, windows: Windows) -> Array:
    """[window, process]: whether it or its peers had timeouts then, which delay a rank as well."""
    downs = facts.downs
    made = np.zeros((windows.count, len(facts.processes)), bool)
    known = np.isin(downs["what"], ("timeout", "path_down"))
    window = windows.of(downs["time_ns"][known])
    for end in ("source", "target"):
        at = downs[end][known]
        good = at >= 0
        made[window[good], at[good]] = True
    made[1:] |= made[:-1].copy()
    return made


def _finding(
    facts: Facts, windows: Windows, lateness: Lateness, ones: Array, late: Array
) -> Finding:
    own = lateness.own[1 : windows.count - 1][:, ones]
    mine = late[:, ones]
    at = np.flatnonzero(mine.any(axis=1)) + 1
    period = period_of(at, windows.starts_ns[at])
    each_ns = float(np.median(own[mine]))
    cost_ns = int(np.where(mine, own, 0.0).max(axis=1).sum())
    judged_ns = int(windows.starts_ns[-1] - windows.starts_ns[1])
    gpu = lateness.gpu[1 : windows.count - 1][:, ones]
    in_gpu = float(gpu[mine].sum()) > 0.5 * float(own[mine].sum())
    names = facts.named(ones)
    return Finding(
        "non_communication_slow",
        places.of_ranks(facts, ones),
        int(windows.starts_ns[at[0]]),
        windows.span(int(at[-1]), int(at[-1]))[1],
        0.97,
        True,
        f"{names} came late in {len(at)} of {windows.count - 2} iterations, {period.text}, by "
        f"{time_text(each_ns)} (median); the others waited {percent(cost_ns / judged_ns)} of the "
        "job's time.",
        LATE_QUERY,
        _advice(period, in_gpu),
        lost_ns=cost_ns,
        weight=each_ns,
        more={"gpu": in_gpu, "period_iterations": period.steps, "period_ns": period.ns},
    )


def _advice(period: Period, in_gpu: bool) -> str:
    if period.steps > 1 or period.ns:
        return (
            "See what this rank alone does with this period: garbage collection, logging, a "
            "checkpoint, a data loader that waits."
        )
    if in_gpu:
        return (
            "Check clocks, power and errors of its GPU (nvidia-smi -q), and its share of the work."
        )
    return "Look at its host: py-spy dump, the data loader, and other load on its cores."
