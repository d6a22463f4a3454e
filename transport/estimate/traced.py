"""The part of a step's communication that is exposed, from a trace of weft.

A trace of weft records when NCCL communicates, and not when the GPU computes. The caller therefore
gives the time that a step computes, as `python -m bench step` measures it on one GPU. The rest of a
step is exposed communication, at most all of its communication; what then remains is idle time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transport.estimate.overlap import length, union
from transport.estimate.times import difference_ns
from transport.ground.units import percent, time_text
from transport.trace.layout import TraceError
from transport.trace.operation_times import OPERATION_TIMES
from transport.trace.store import Store

Array = NDArray[np.float64]

STEPS_MIN = 3
PERIOD_MAX = 10_000  # maximum number of operations of a step
MULTIPLE_STEPS_MIN = 5  # fewer steps can begin at evenly spaced times by chance
MULTIPLES_MAX = 256  # maximum number of equal operations of a step
EVEN = 0.2  # steps are even if the standard deviation of their times over the mean is at most this
FASTER = (2, 4, None)  # networks whose gain is estimated: how many times as fast; None: infinitely
# Kind of imported tables -> what to give instead if they do not tell what is needed.
OTHER = "the files of PyTorch's profiler, or a trace of weft,"
WANTED = {
    "kineto": "the files of PyTorch's profiler",
    "nccl-log": "a trace of weft",
    "flight": OTHER,
    "chakra": OTHER,
    "inspector": f"logs that were written with NCCL_INSPECTOR_DUMP_VERBOSE=1, {OTHER}",
    "nsys": f"exports with CUDA kernels (nsys profile --trace=cuda,nvtx), {OTHER}",
}
# Kinds that are used as a trace of weft is, if they tell when NCCL's kernels ran.
WITH_KERNELS = ("inspector", "nsys")
# Each operation of each rank: from its first channel's begin to its last channel's end; without
# channels from the begin of its kernels to the time at which their end was recorded.
_OPERATIONS = f"""
WITH {OPERATION_TIMES}
SELECT o.process, coalesce(p.rank, -1), o.function, coalesce(o.bytes, 0)::DOUBLE, o.comm,
  (coalesce(n.begin_ns, k.begin_ns) - coalesce(p.first_ns, 0))::DOUBLE,
  (coalesce(n.end_ns, k.end_ns) - coalesce(p.first_ns, 0))::DOUBLE
FROM operations o JOIN processes p ON p.process = o.process
LEFT JOIN network n ON n.process = o.process AND n.operation = o.id AND n.end_ns > n.begin_ns
LEFT JOIN kernel k ON k.process = o.process AND k.operation = o.id AND k.end_ns > k.begin_ns
WHERE o.function IS NOT NULL ORDER BY o.process, o.begin_ns, o.id
"""


@dataclass(frozen=True)
class Step:
    """A step of one rank, in ns: medians over its steps.

    rank: in the job; None: not known. parts: function -> time of its operations, the longest first.
    exposed_ns, hidden_ns, idle_ns: None: the caller did not give what a step computes.
    """

    rank: int | None
    steps: int
    operations: int
    step_ns: float
    communication_ns: float
    parts: dict[str, float]
    exposed_ns: float | None = None
    hidden_ns: float | None = None
    idle_ns: float | None = None


@dataclass(frozen=True)
class Gain:
    """By how much a network that is `times` as fast would shorten a step, in ns, and as shares.

    times: None: infinitely fast, so that communication takes no time.
    At least: each exposed moment becomes shorter, and hidden communication stays hidden. At most:
    what communication saves is taken from its exposed part alone. If it is not known what is
    exposed, at least nothing of the communication is, and at most all.
    """

    times: int | None
    least_ns: float
    most_ns: float
    least_share: float
    most_share: float

    @property
    def network(self) -> str:
        return "infinitely fast" if self.times is None else f"{self.times} times as fast"

    @property
    def time_text(self) -> str:
        return _span(time_text(self.least_ns), time_text(self.most_ns))

    @property
    def share_text(self) -> str:
        return _span(percent(self.least_share), percent(self.most_share))

    def rest_text(self, step_ns: float) -> str:
        """What is left of a step of step_ns."""
        return _span(time_text(step_ns - self.most_ns), time_text(step_ns - self.least_ns))


def _span(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


@dataclass(frozen=True)
class _Operation:
    kind: tuple[str, float, int]
    begin_ns: float
    end_ns: float


def steps_of(
    store: Store, alone_ns: float | None, per_step: int | None = None
) -> tuple[list[Step], list[str]]:
    """A step of each rank, and notes. alone_ns: what a step takes without communication.

    per_step: operations of a step; None: found from what repeats. TraceError if no rank has steps,
    or if steps are shorter than alone_ns.
    """
    ranks: dict[tuple[int, int], list[_Operation]] = {}
    untimed = 0
    for process, rank, function, size, comm, begin_ns, end_ns in store.rows(_OPERATIONS):
        if begin_ns is None or end_ns is None:
            untimed += 1
            continue
        one = _Operation((function, size, comm), begin_ns, end_ns)
        ranks.setdefault((process, rank), []).append(one)
    found, without, uneven = [], 0, 0
    for (_, rank), operations in ranks.items():
        period, even = _period(operations, per_step)
        step = _step(rank if rank >= 0 else None, operations, period) if period else None
        # Communication longer than a step overlaps the next repetition: these are no steps.
        if step is None or step.communication_ns > step.step_ns:
            without += 1
            continue
        uneven += not even
        found.append(step if alone_ns is None else _split(step, alone_ns))
    notes = []
    if untimed:
        notes.append(
            f"{untimed} operations have neither channels nor kernels, so they are left out: "
            "record kernels with weft trace record --kernels"
        )
    if not found:
        raise TraceError(_nothing(len(ranks), untimed))
    if without:
        notes.append(f"{without} ranks have no steps: operations do not repeat, or repeats overlap")
    if uneven:
        notes.append(
            f"steps of {uneven} ranks begin at uneven times: if they are not whole steps, give the "
            "number of operations of a step (--operations)"
        )
    return sorted(found, key=lambda one: -1 if one.rank is None else one.rank), notes


def unfit(store: Store) -> str:
    """Why the trace does not tell how long computation and communication take; "": it may."""
    kinds = store.rows("SELECT DISTINCT split_part(trace, ' ', 1) FROM processes")
    ((timed,),) = store.rows("SELECT count(*) FROM kernels WHERE time_ns IS NOT NULL")
    for (kind,) in kinds:
        wanted = WANTED.get(kind)
        if wanted is not None and (kind not in WITH_KERNELS or not timed):
            return (
                f"tables that were imported ({kind}), which do not tell when "
                f"{'operations ran' if kind in WITH_KERNELS else 'the GPU computes'}: "
                f"give {wanted} instead"
            )
    return ""


def gains_of(steps: Sequence[Step]) -> list[Gain]:
    """What faster networks would take from a step, by medians over its ranks."""
    if not steps:
        return []
    step_ns = float(np.median([one.step_ns for one in steps]))
    communication_ns = float(np.median([one.communication_ns for one in steps]))
    known = [one.exposed_ns for one in steps if one.exposed_ns is not None]
    exposed_ns = float(np.median(known)) if known else None
    made = []
    for times in FASTER:
        part = 1.0 if times is None else 1 - 1 / times
        least_ns, most_ns = 0.0, communication_ns * part
        if exposed_ns is not None:
            least_ns, most_ns = exposed_ns * part, min(exposed_ns, most_ns)
        made.append(Gain(times, least_ns, most_ns, least_ns / step_ns, most_ns / step_ns))
    return made


def _nothing(ranks: int, untimed: int) -> str:
    if ranks:
        return (
            f"no rank has {STEPS_MIN} steps or more of the same operations: trace more steps (in "
            "a scenario of weft sim, raise `repeats`)"
        )
    if untimed:
        return "no operation has channels or kernels: record with weft trace record --kernels"
    return "the trace has no operations of NCCL"


def _period(operations: list[_Operation], per_step: int | None) -> tuple[int, bool]:
    """The number of operations of a step (0: there are no steps), and whether steps are even.

    The shortest repetition may be one of several equal operations of a step, as buckets are. A step
    is then the shortest multiple that begins at even times.
    """
    kinds = [one.kind for one in operations]
    if per_step is not None:
        return (per_step if _repeats(kinds, per_step) >= STEPS_MIN else 0), True
    base = period_of(kinds)
    if base == 0:
        return 0, True
    most = min(_repeats(kinds, base) // MULTIPLE_STEPS_MIN, MULTIPLES_MAX)
    multiples = range(1, max(most, 1) + 1)
    unevenness = [_unevenness(operations, base * each) for each in multiples]
    for each, one in zip(multiples, unevenness, strict=True):
        if one <= EVEN:
            return base * each, True
    return base * multiples[int(np.argmin(unevenness))], False


def _unevenness(operations: list[_Operation], period: int) -> float:
    """The standard deviation of the times between the begins of steps, divided by their mean."""
    steps = _repeats([one.kind for one in operations], period)
    starts = [one.begin_ns for one in operations[len(operations) - steps * period :: period]]
    each = np.diff(np.array(starts))
    return float(each.std() / max(each.mean(), 1.0))


def period_of(kinds: Sequence[tuple[str, float, int]]) -> int:
    """The number of operations after which the last half of them repeats; 0: they do not."""
    names = {kind: at for at, kind in enumerate(dict.fromkeys(kinds))}
    numbers = np.array([names[kind] for kind in kinds])
    last = numbers[len(numbers) // 2 :]
    for period in range(1, min(len(last) // STEPS_MIN, PERIOD_MAX) + 1):
        if np.array_equal(last[period:], last[:-period]):
            return period
    return 0


def _step(rank: int | None, operations: list[_Operation], period: int) -> Step:
    steps = _repeats([one.kind for one in operations], period)
    mine = operations[len(operations) - steps * period :]
    each = [mine[at * period : (at + 1) * period] for at in range(steps)]
    starts = np.array([one[0].begin_ns for one in each])
    step_ns = float(np.median(np.diff(starts)))
    communication_ns = float(np.median([_length(one) for one in each]))
    names = {one.kind[0] for one in each[0]}
    parts = {
        name: float(np.median([_length([op for op in one if op.kind[0] == name]) for one in each]))
        for name in names
    }
    parts = dict(sorted(parts.items(), key=lambda one: -one[1]))
    return Step(rank, steps, period, step_ns, communication_ns, parts)


def _repeats(kinds: list[tuple[str, float, int]], period: int) -> int:
    """Number of times that the last `period` operations come in a row, counted from the end."""
    last = kinds[-period:]
    count = 1
    while kinds[-(count + 1) * period : -count * period] == last:
        count += 1
    return count


def _length(operations: list[_Operation]) -> float:
    return length(union([(one.begin_ns, one.end_ns) for one in operations]))


def _split(known: Step, alone_ns: float) -> Step:
    beyond_ns = difference_ns(known.step_ns, alone_ns)
    if beyond_ns < 0:
        raise TraceError(
            f"rank {known.rank}: a step takes {time_text(known.step_ns)}, less than the "
            f"{time_text(alone_ns)} that its computation takes"
        )
    exposed_ns = min(beyond_ns, known.communication_ns)
    return Step(
        known.rank,
        known.steps,
        known.operations,
        known.step_ns,
        known.communication_ns,
        known.parts,
        exposed_ns,
        known.communication_ns - exposed_ns,
        beyond_ns - exposed_ns,
    )
