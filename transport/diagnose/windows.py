"""Cuts a trace into windows: as a rule, one for each iteration of the job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.distinct import rows_by
from transport.diagnose.facts import Facts
from transport.diagnose.own_pauses import MESSAGES_MIN, own_pauses
from transport.ground.units import time_text

Array = NDArray[Any]

PERIOD_MAX = 512  # maximum number of operations of an iteration
# A window of a real job lasts at least this: schedulers of hosts and GPUs delay a rank for up to
# tens of ms, now and then, which says nothing about the rank.
WINDOW_MIN_NS = 250_000_000
# An iteration is the shortest period that repeats at least this well, relative to the best period.
LIKE = 0.9
ROUGHLY = 0.6  # the same, if there would be fewer than FEW iterations
FEW = 8
# Operations that are all alike, as buckets of gradients, are several to an iteration if the times
# between them repeat after so many of them: they then differ by less than this part of what
# neighbours differ by, which is at least this share of such a time.
ALIKE_MAX, ALIKE, UNEVEN = 16, 0.25, 0.1
ITERATIONS_MIN = 6  # fewer windows than this are not made of several


@dataclass(frozen=True, eq=False)
class Windows:
    """Window w is from starts_ns[w] until starts_ns[w + 1]; the last one ends with the trace.

    operations: number of operations of an iteration. iterations: how many each window has, except
    the last one. anchor: the kind of call that begins an iteration, as in Facts.kinds; -1: none.
    repeats: how many calls of this kind an iteration has. skipped: how many of them come before the
    first iteration.
    """

    starts_ns: Array
    end_ns: int
    operations: int
    iterations: int = 1
    anchor: int = -1
    repeats: int = 1
    skipped: int = 0

    @property
    def count(self) -> int:
        return len(self.starts_ns)

    def of(self, times_ns: Array) -> Array:
        """The window of each time; times before the first one belong to it."""
        return np.maximum(np.searchsorted(self.starts_ns, times_ns, side="right") - 1, 0)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Begin of window `first` and end of window `last`."""
        end = self.starts_ns[last + 1] if last + 1 < self.count else self.end_ns
        return int(self.starts_ns[first]), int(end)

    def text_of(self, count: int) -> str:
        """A number of windows in words, as "3 iterations"."""
        if self.iterations == 1:
            return f"{count} iterations"
        each = f"{self.iterations} iterations, about {time_text(self.usual_ns)}"
        return f"{count} windows ({each} each)"

    def iteration_of(self, window: int) -> str:
        """The first iteration of a window and the number of all, as "13 of 60", counted from 1."""
        return f"{window * self.iterations + 1} of {self.count * self.iterations}"

    @property
    def usual_ns(self) -> int:
        """The median length of the windows, without the last one, which the trace may cut off."""
        if self.count < 2:
            return max(self.end_ns - int(self.starts_ns[0]), 1) if self.count else 1
        return max(int(np.median(np.diff(self.starts_ns))), 1)


def is_pause(facts: Facts, lasted_ns: int) -> bool:
    """Whether a time without progress is long enough to say anything: in real jobs, schedulers stop
    a process for tens of ms, however short its iterations are."""
    return facts.simulated or lasted_ns >= WINDOW_MIN_NS


def judged_windows_of(facts: Facts) -> Windows:
    """The windows in which slowness is judged; those of a real job have WINDOW_MIN_NS or more."""
    each = windows_of(facts)
    if facts.simulated:
        return each
    several = -(-WINDOW_MIN_NS // each.usual_ns)
    return replace(each, starts_ns=each.starts_ns[::several], iterations=several)


def period_of(kinds: Array, like: float = LIKE) -> int:
    """The number of operations after which a sequence of kinds of operations repeats."""
    most = min(len(kinds) // 2, PERIOD_MAX)
    if most < 1:
        return max(len(kinds), 1)
    alike = np.array([np.mean(kinds[at:] == kinds[:-at]) for at in range(1, most + 1)])
    return int(np.flatnonzero(alike >= like * alike.max())[0]) + 1


def windows_of(facts: Facts) -> Windows:
    """The windows of a job, from the operations of the process that called most.

    Of several such processes, the one with the latest call is taken, as groups of ranks that do not
    communicate with each other may progress at different speeds.
    """
    calls = facts.calls
    if not len(calls["process"]):
        return Windows(np.zeros(0, np.int64), facts.end_ns, 1)
    counts = np.bincount(calls["process"])
    latest = np.zeros(len(counts), np.int64)
    np.maximum.at(latest, calls["process"], begun_ns(calls).astype(np.int64))
    busiest = int(np.where(counts == counts.max(), latest, -1).argmax())
    mine = np.flatnonzero(calls["process"] == busiest)
    kinds = facts.kinds[mine]
    if not facts.has_operations:
        known = own_pauses(begun_ns(calls)[mine].astype(np.int64), calls["end_ns"][mine])
        if known is not None:
            return Windows(known.starts_ns, facts.end_ns, known.operations)
    period = period_of(kinds)
    if not (calls["kind"] == "collective").any():
        # Messages repeat many times within an iteration, so a window holds several repetitions.
        period *= -(-MESSAGES_MIN // period)
    # An iteration begins with the collective of most ranks, which divides the calls of all ranks.
    divides = np.where(calls["kind"] == "collective", calls["ranks"], 0)
    first = int(divides[mine[:period]].argmax())
    times, anchor = moments(calls)[mine][first::period], int(kinds[first])
    repeats = int((kinds[:period] == anchor).sum())
    if len(times) < FEW:
        shorter = _steps(kinds, divides[mine], period)
        if shorter is not None:
            begins, period = shorter
            times, anchor, repeats = moments(calls)[mine][begins], int(kinds[begins[0]]), 1
    several, begin = (1, 0) if period > 1 else _alike(np.diff(times).astype(np.float64))
    skipped = begin * repeats
    times, period, repeats = times[begin::several], period * several, repeats * several
    if not divides.any():
        anchor = -1  # messages repeat many times within an iteration
    starts_ns = np.unique(np.maximum.accumulate(times))
    return Windows(starts_ns, facts.end_ns, period, anchor=anchor, repeats=repeats, skipped=skipped)


def _alike(lengths: Array) -> tuple[int, int]:
    """After how many windows their lengths repeat, and the first that begins an iteration.

    An iteration begins after the longest of its windows, which has the most computation in it.
    """
    most = min(ALIKE_MAX, len(lengths) // ITERATIONS_MIN)
    if most < 2:
        return 1, 0
    apart = [float(np.median(np.abs(lengths[at:] - lengths[:-at]))) for at in range(1, most + 1)]
    if apart[0] < UNEVEN * float(np.median(lengths)) or min(apart) > ALIKE * apart[0]:
        return 1, 0
    several = int(np.flatnonzero(np.array(apart) <= ALIKE * apart[0])[0]) + 1
    whole = lengths[: len(lengths) // several * several].reshape(-1, several)
    return several, (int(np.median(whole, axis=0).argmax()) + 1) % several


def own_windows_of(facts: Facts, windows: Windows) -> Array:
    """[call] the window of each call, counted by its own process's iterations.

    Processes that do not wait for each other begin an iteration at different times, so that a
    process's call, by its time, would belong to the one window or to the next. By time are those of
    processes without the call that begins iterations, or that made it another number of times.
    """
    calls = facts.calls
    found = windows.of(moments(calls))
    if windows.anchor < 0 or not windows.count:
        return found
    is_anchor = facts.kinds == windows.anchor
    begun = begun_ns(calls)
    for _, mine in rows_by(calls["process"]):
        mine = mine[np.argsort(begun[mine], kind="stable")]
        anchors = np.flatnonzero(is_anchor[mine])
        begins = anchors[windows.skipped :: windows.repeats]
        mine_of = np.maximum(np.searchsorted(begins, np.arange(len(mine)), side="right") - 1, 0)
        mine_of //= windows.iterations
        if abs(int(mine_of.max(initial=0)) + 1 - windows.count) <= 1:
            found[mine] = np.minimum(mine_of, windows.count - 1)
    return found


def _steps(kinds: Array, divides: Array, period: int) -> tuple[Array, int] | None:
    """Where iterations begin that a trace repeats only roughly, and their number of operations.

    A checkpoint or an evaluation every few steps makes the exact period several steps long. An
    operation that is called once in each step, and has most ranks, begins the steps. None: there is
    no shorter period.
    """
    short = period_of(kinds, ROUGHLY)
    if 2 * short > period:
        return None
    head = kinds[:short]
    once = [at for at in range(short) if (head == head[at]).sum() == 1 and divides[at] > 0]
    if not once:
        return None
    anchor = max(once, key=lambda at: (int(divides[at]), -at))
    begins = np.flatnonzero(kinds == kinds[anchor])
    usual = len(kinds) / short
    return (begins, short) if ROUGHLY * usual <= len(begins) <= usual / ROUGHLY else None


def moments(calls: dict[str, Array]) -> Array:
    """The moment of each call's operation: the median of when its ranks began it.

    Ranks that only receive do not count if others send, as they may have called it long before.
    """
    instance, sends = calls["instance"], calls["arrival_ns"] >= 0
    sent = np.zeros(int(instance.max(initial=-1)) + 1, bool)
    sent[instance[sends]] = True
    counted = sends | ~sent[instance]
    made = np.zeros(len(sent), np.int64)
    made[instance[counted]] = medians(instance[counted], begun_ns(calls)[counted])
    found: Array = made[instance]
    return found


def medians(groups: Array, values: Array) -> Array:
    """For each row, the median of the values of all rows of its group."""
    if not len(groups):
        return values.astype(np.float64)
    order = np.lexsort((values, groups))
    _, starts, counts = np.unique(groups[order], return_index=True, return_counts=True)
    ranked = values[order].astype(np.float64)
    low, high = starts + (counts - 1) // 2, starts + counts // 2
    made = np.zeros(len(groups))
    made[order] = np.repeat((ranked[low] + ranked[high]) / 2, counts)
    return made


def begun_ns(calls: dict[str, Array]) -> Array:
    """When each call began its work: its first message, or the call if it sent none."""
    arrival = calls["arrival_ns"]
    return np.where(arrival >= 0, arrival, calls["begin_ns"])
