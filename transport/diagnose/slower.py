"""Finds that a job's iterations became longer and stayed so, and what in them became longer.

This needs no idea of the fault: a slowdown that no rule explains is still one. Groups of ranks that
became slower together are told by their own earlier iterations, as no median of all ranks shows
them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose import places
from transport.diagnose.chance import deviation_of, stepped_up
from transport.diagnose.distinct import distinct
from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding
from transport.diagnose.measures import windows_of_edges
from transport.diagnose.own_times import own_beside, own_times_of, silent_of
from transport.diagnose.slow import SLOW_ADVICE
from transport.diagnose.windows import Windows
from transport.ground.units import percent, time_text

Array = NDArray[Any]

SIDE_MIN = 3  # iterations before a change, and after it
FIRST_MAX = 1.05  # a first iteration that is longer than this times the next one is unlike others
GROWN_MIN = 0.05  # a change by less than this share of an iteration is none
# It is also more than this many usual deviations within the two parts; more of them for one of many
# ranks.
DEVIATIONS, DEVIATIONS_OF_RANKS, DEVIATIONS_EACH = 4.0, 6.0, 3.0
ABOVE_MIN = 0.95  # share of pairs of iterations, one of each part, of which the later is longer
OWN_SHARE = 0.06  # a rank is slower if its own time grew by this share of an iteration
# With ranks that stepped up go those that did so by this part of it at the same moment, and take
# longer than before in this share of pairs of iterations.
ALIKE_SHARE, ALIKE_ABOVE_MIN = 0.5, 0.9
# Ranks explain a slower job if their own time grew by this part of what its iterations did, and
# that of others by less than that part of it.
SLOW_PART, CALM_PART = 0.5, 0.25
CALM_SHARE = 0.03  # ranks whose own time grew by less are not
CLEAR_SHARE = 0.9  # of the ranks, as many are clearly slower or clearly not
PAIR_TIMES = 1.15  # a pair is slower if its messages take this many times as long
SPLITS_MAX, PART_MAX = 512, 512  # of a long trace: moments that are tried, values that are compared
NAMED_MAX = 4
PHASE, PHASES_MIN = 1.25, 0.6  # an iteration that is so much longer is a phase; the rest of them
RANKS_MIN = 4  # fewer ranks have no median to be compared with
RISEN_MAX = 0.34  # of the ranks: more of them are a group, or the job
SLOW_TIMES = 1.5  # a pair that explains why the job is slower takes this many times as long
SHARE_MIN, PURITY_MIN = 0.7, 0.6  # of the excess, and of its pairs, that a NIC must explain
GROUP_MIN = 2  # a single rank would have stood out from the others, unless it has no trace
PAIRS_MIN = 4
# A job is unsteady if at least three iterations take this many times as long as a quick quarter of
# them, their messages this many times, and that costs the job this share of its time. One iteration
# is enough if it takes this many times as long, and its messages half as long again.
UNSTEADY_MIN, LONGER, BUSIER, UNSTEADY_SHARE = 3, 1.1, 1.2, 0.08
BUSIER_TOGETHER = 1.09  # or the messages of all longer iterations, compared with the others
STALLED = 3.0
NO_PLACE = "No rank, NIC or link explains it."

QUERY = (
    "SELECT o.process, o.sequence, min(o.begin_ns) AS begin_ns, max(o.end_ns) AS end_ns "
    "FROM operations o GROUP BY ALL ORDER BY begin_ns"
)


@dataclass(frozen=True, eq=False)
class Slowdown:
    """A change of the iterations' length.

    first: the first longer iteration. before_ns, after_ns: median lengths. own_ns: [process] by how
    much the rank's own time in an iteration grew, between operations; nan: not known.
    pair_times: [pair] how many times as long messages take as before; pairs: their processes.
    """

    first: int
    from_ns: int
    to_ns: int
    before_ns: float
    after_ns: float
    own_ns: Array
    pairs: Array
    pair_times: Array
    baseline: bool = False  # whether "before" is another trace

    @property
    def times(self) -> float:
        return self.after_ns / self.before_ns

    @property
    def slower_ranks(self) -> Array:
        return np.flatnonzero(self.own_ns >= SLOW_PART * (self.after_ns - self.before_ns))

    @property
    def calm_ranks(self) -> Array:
        return np.flatnonzero(self.own_ns <= CALM_PART * (self.after_ns - self.before_ns))

    @property
    def slower_pairs(self) -> Array:
        return np.flatnonzero(self.pair_times > PAIR_TIMES)


def change_of(
    lengths: Array, least: float = 0.0, noise_min: float = 0.0
) -> tuple[int, float, float] | None:
    """Where a series steps up for good: the first longer value, and the medians of both parts.

    None: nowhere. least: the smallest step; 0: GROWN_MIN of the earlier part. noise_min: by how
    much values differ at least, as those of like series do; a short series may not show it.
    """
    best: tuple[int, float, float] | None = None
    smallest = np.inf
    if not _may_step(lengths, least):
        return None
    splits = np.linspace(SIDE_MIN, len(lengths) - SIDE_MIN, SPLITS_MAX).astype(int)
    for at in np.unique(splits).tolist():
        before, after = (
            part if least else without_phases(part) for part in (lengths[:at], lengths[at:])
        )
        low, high = float(np.median(before)), float(np.median(after))
        within = np.concatenate([np.abs(before - low), np.abs(after - high)])
        noise = max(1.4826 * float(np.median(within)), 1e-3 * abs(low), noise_min)
        deviations = DEVIATIONS_OF_RANKS if least else DEVIATIONS
        clear = deviations * noise / sqrt(min(len(before), len(after)))  # as medians of so many
        if least:
            clear = max(clear, DEVIATIONS_EACH * noise)
        if high - low < max(least or GROWN_MIN * low, clear):
            continue
        above = float((_some(after)[:, None] > _some(before)[None, :]).mean())
        if above >= ABOVE_MIN and (rest := _apart(lengths, at, low, high)) < smallest:
            best, smallest = (at, low, high), rest
    return best


def _some(values: Array) -> Array:
    """At most PART_MAX of the values, evenly spaced."""
    return values[:: -(-len(values) // PART_MAX)]


def _may_step(lengths: Array, least: float) -> bool:
    """Whether some beginning and some end of a series differ by half of a step: a quick look, as
    most series have none."""
    if len(lengths) < 2 * SIDE_MIN:
        return False
    sizes = [SIDE_MIN]
    while 2 * sizes[-1] <= len(lengths) - SIDE_MIN:
        sizes.append(2 * sizes[-1])
    least = least or GROWN_MIN * float(np.median(lengths))
    heads = min(float(np.median(lengths[:size])) for size in sizes)
    tails = max(float(np.median(lengths[-size:])) for size in sizes)
    return tails - heads >= least / 2


def _apart(lengths: Array, at: int, low: float, high: float) -> float:
    """By how much the lengths differ from two levels, in sum."""
    return float(np.abs(lengths[:at] - low).sum() + np.abs(lengths[at:] - high).sum())


def without_phases(lengths: Array) -> Array:
    """The lengths without those of longer iterations, as of checkpoints and evaluations, if these
    are the lesser part."""
    kept = lengths[lengths <= PHASE * np.median(lengths)]
    return kept if len(kept) >= max(PHASES_MIN * len(lengths), SIDE_MIN) else lengths


def slowdown_of(facts: Facts, windows: Windows) -> Slowdown | None:
    """The lasting slowdown of a job, if there is one.

    The last window, which the trace cuts off, does not count, nor does the first one if opening
    connections made it longer than the next.
    """
    lengths = np.diff(windows.starts_ns).astype(np.float64)
    skipped = int(len(lengths) < 2 or lengths[0] > FIRST_MAX * lengths[1])
    found = change_of(lengths[skipped:])
    if found is None:
        return None
    at, before_ns, after_ns = found
    first = at + skipped
    early, late = slice(1, first), slice(first, windows.count - 1)
    own = own_times_of(facts, windows)
    pairs, before = pair_means_of(facts, windows, early)
    _, after = pair_means_of(facts, windows, late)
    return Slowdown(
        first,
        int(windows.starts_ns[first]),
        facts.end_ns,
        before_ns,
        after_ns,
        np.median(own[late], axis=0) - np.median(own[early], axis=0),
        pairs,
        times_of(before, after),
    )


def risen_ranks(facts: Facts, windows: Windows) -> list[Finding]:
    """The ranks whose own time stepped up, beside that of the others in the same iterations.

    Iterations may differ, and some ranks may always do more; each rank is compared with itself. Of
    a large group, all must step up at once, by times that are not compared with others.
    """
    if windows.count < 2 * SIDE_MIN + 2:
        return []
    beside = own_beside(facts, windows)[1:-1]
    # Too little is known of silent ranks, unless others became slower with them.
    known = np.setdiff1d(np.flatnonzero(~np.isnan(beside).any(axis=0)), silent_of(facts))
    if len(known) < RANKS_MIN:
        return []
    own, usual_ns = own_times_of(facts, windows)[1:-1], windows.usual_ns
    steps = _steps_of(beside, known, usual_ns)
    # Beside the median, which a large group moves, only some of its ranks may have stepped up.
    group = _steps_at_once(own, known, usual_ns)
    if group and set(steps) <= set(group):
        steps = group
    elif len(steps) > RISEN_MAX * len(known):
        return []
    steps = {one: step for one, step in steps.items() if _rose_itself(own[:, one], step)}
    if not steps or not _explain(steps, np.diff(windows.starts_ns)[1:].astype(np.float64)):
        return []
    _add_alike(own, known, steps)
    first = min(step[0] for step in steps.values()) + 1
    for one, step in _steps_of(beside, silent_of(facts), usual_ns).items():
        if abs(step[0] + 1 - first) <= SIDE_MIN:
            steps[one] = step
    return [_risen(facts, windows, steps, first)]


Step = tuple[int, float, float]


def _risen(facts: Facts, windows: Windows, steps: dict[int, Step], first: int) -> Finding:
    """The finding of ranks that stepped up. first: the window from which on."""
    ones = np.array(sorted(steps))
    growth = float(np.median([high - low for _, low, high in steps.values()]))
    names, each_ns = facts.named(ones), growth / windows.iterations
    return Finding(
        "non_communication_slow",
        places.of_ranks(facts, ones),
        int(windows.starts_ns[first]),
        facts.end_ns,
        0.9,
        True,
        f"From iteration {first * windows.iterations + 1} on, {names} took "
        f"{time_text(each_ns)} an iteration longer "
        f"between operations than before ({percent(growth / windows.usual_ns, 0)} of it), compared "
        "with the other ranks in the same iterations.",
        QUERY,
        "Check clocks, power and errors of its GPU (nvidia-smi -q), its host, and its share of "
        "the work.",
        lost_ns=int(growth * (windows.count - first)),
        weight=growth,
    )


def _steps_of(own: Array, ones: Array, usual_ns: float) -> dict[int, Step]:
    """Those of some ranks whose own time stepped up, and how."""
    least, noise = OWN_SHARE * usual_ns, deviation_of(own)
    steps = ((one, change_of(own[:, one], least, noise)) for one in ones.tolist())
    return {one: step for one, step in steps if step is not None}


def _rose_itself(own: Array, step: Step) -> bool:
    """Whether a rank's own time rose by half of its step beside the others, whose time may have
    fallen, as where longer messages leave less between operations."""
    at, low, high = step
    return float(np.median(own[at:]) - np.median(own[:at])) >= ALIKE_SHARE * (high - low)


def _explain(steps: dict[int, Step], lengths: Array) -> bool:
    """Whether ranks that stepped up explain why the job became slower, if it did: at the same
    moment, and by half of it."""
    found = change_of(lengths)
    if found is None:
        return True
    at, before_ns, after_ns = found
    ranks_at = int(np.median([step[0] for step in steps.values()]))
    growth = float(np.median([high - low for _, low, high in steps.values()]))
    return abs(ranks_at - at) <= SIDE_MIN and growth >= ALIKE_SHARE * (after_ns - before_ns)


def _add_alike(own: Array, known: Array, steps: dict[int, Step]) -> None:
    """Adds the ranks that stepped up with the others, by less: when is known of these."""
    at = int(np.median([step[0] for step in steps.values()]))
    least = ALIKE_SHARE * float(np.median([high - low for _, low, high in steps.values()]))
    early, late = own[:at, known], own[at:, known]
    for row in np.flatnonzero(stepped_up(early, late, least, ALIKE_ABOVE_MIN)).tolist():
        step = (at, float(np.median(early[:, row])), float(np.median(late[:, row])))
        steps.setdefault(int(known[row]), step)


def _steps_at_once(own: Array, known: Array, usual_ns: float) -> dict[int, Step]:
    """The steps of a large group of ranks, if they are at one moment and the other ranks are calm;
    empty: they are not."""
    steps = _steps_of(own, known, usual_ns)
    rest = np.setdiff1d(known, list(steps))
    if len(steps) < GROUP_MIN or not len(rest):
        return {}
    moments = [step[0] for step in steps.values()]
    at = int(np.median(moments))
    grown = np.median(own[at:, rest], axis=0) - np.median(own[:at, rest], axis=0)
    calm = bool((np.abs(grown) <= CALM_SHARE * usual_ns).all())
    return steps if calm and max(moments) - min(moments) <= SIDE_MIN else {}


def unsteady(facts: Facts, windows: Windows, paused: Collection[tuple[int, int]] = ()) -> str:
    """What to say of a job some of whose iterations take longer, as do their messages; "": nothing.

    In a checkpoint or an evaluation no message takes longer. paused: begin and end of pauses of
    processes, in ns, which explain longer iterations.
    """
    if windows.count < UNSTEADY_MIN + 5 or not len(facts.edges["source"]):
        return ""
    lengths = np.diff(windows.starts_ns)[1:].astype(np.float64)
    busy = np.zeros(windows.count)
    np.add.at(busy, windows_of_edges(facts, windows), facts.edges["busy_ns"].astype(np.float64))
    # Messages at the edge of an iteration may belong to the one beside it.
    busy = np.convolve(np.pad(busy[1:-1], 1, mode="edge"), np.ones(3) / 3, mode="valid")
    usual, usual_busy = float(np.quantile(lengths, 0.25)), float(np.quantile(busy, 0.25))
    long = (lengths > LONGER * usual) & (busy > BUSIER * usual_busy)
    stalled = (lengths > STALLED * usual) & (busy > 1.5 * usual_busy)
    if long.sum() < UNSTEADY_MIN:
        # Messages vary from iteration to iteration: those of all longer ones together say more.
        every = lengths > LONGER * usual
        apart = np.median(busy[every]) / np.median(busy[~every]) if every.any() else 0.0
        long = every if apart > BUSIER_TOGETHER else long
    explained = np.zeros(windows.count, bool)
    for span in paused:
        first, last = windows.of(np.array(span))
        explained[first : last + 1] = True
    long, stalled = long & ~explained[1:-1], stalled & ~explained[1:-1]
    lost_ns = float((lengths - usual)[long].sum())
    few = long.sum() < UNSTEADY_MIN and not stalled.any()
    if few or _is_phase(long) or lost_ns < UNSTEADY_SHARE * lengths.sum():
        return ""
    return (
        f"{int(long.sum())} of {windows.text_of(len(lengths))} "
        f"{'takes' if long.sum() == 1 else 'take'} {time_text(lost_ns / long.sum())} "
        f"longer than the usual {time_text(usual)}, which cost "
        f"{percent(lost_ns / float(lengths.sum()))} of the job's time, and their messages take "
        f"longer. {NO_PLACE}"
    )


def lost_share(windows: Windows) -> float:
    """The share of the job's time by which iterations are longer than the quick quarter of them."""
    lengths = np.diff(windows.starts_ns)[1:].astype(np.float64)
    if not len(lengths):
        return 0.0
    usual = float(np.quantile(lengths, 0.25))
    return float((lengths - usual)[lengths > LONGER * usual].sum() / lengths.sum())


def _is_phase(long: Array) -> bool:
    """Whether the longer iterations are every so many, as those of an evaluation are."""
    apart = np.diff(np.flatnonzero(long))
    return len(apart) >= 2 and int(apart.min()) > 1 and bool((apart % apart.min() == 0).all())


def slower_place(facts: Facts, windows: Windows, found: Slowdown) -> Finding | None:
    """The NIC whose messages became slower when the job did, if it explains most of that."""
    if len(found.pairs) < PAIRS_MIN:
        return None
    excess = np.log(np.maximum(found.pair_times, 1.0))
    bad = found.pair_times > SLOW_TIMES
    every = places.nics(facts, found.pairs[:, 0], found.pairs[:, 1])
    best = places.explain(places.Candidates(every), np.where(bad, excess, 0.0), bad)
    if best is None or best.share < SHARE_MIN or best.purity < PURITY_MIN or bad.sum() < 2:
        return None
    worst = int(excess.argmax())
    shown = f"{facts.name(int(found.pairs[worst, 0]))} to {facts.name(int(found.pairs[worst, 1]))}"
    return Finding(
        "communication_slow",
        best.place,
        found.from_ns,
        found.to_ns,
        round(min(0.95, 0.4 + 0.6 * best.share), 2),
        True,
        f"Messages of {int(bad.sum())} of {len(bad)} pairs of ranks take longer than before, the "
        f"most {found.pair_times[worst]:.1f} times ({shown}). {best.place.name} explains "
        f"{percent(best.share, 0)} of it; {since(windows, found)}.",
        QUERY,
        SLOW_ADVICE["nic"],
        weight=float(excess[bad].sum()),
        more={"share": best.share},
    )


def times_of(before: Array, after: Array) -> Array:
    """How many times as long something takes as before; 1 where one of the two is not known."""
    return np.where((before > 0) & (after > 0), after / np.maximum(before, 1), 1.0)


def pair_means_of(facts: Facts, windows: Windows, part: slice) -> tuple[Array, Array]:
    """The pairs of processes that send, and the mean time of their messages in some windows."""
    edges = facts.edges
    if not len(edges["source"]):
        return np.zeros((0, 2), np.int64), np.zeros(0)
    inside = np.zeros(windows.count, bool)
    inside[part] = True
    mine = inside[windows_of_edges(facts, windows)]
    pairs, pair = distinct(edges["source"], edges["target"])
    total, count = np.zeros(pairs.shape[1]), np.zeros(pairs.shape[1])
    np.add.at(total, pair[mine], edges["busy_ns"][mine].astype(np.float64))
    np.add.at(count, pair[mine], edges["messages"][mine].astype(np.float64))
    return pairs.T, total / np.maximum(count, 1)


def slower_group(
    facts: Facts, windows: Windows, found: Slowdown, absent: Collection[int] = ()
) -> Finding | None:
    """The ranks that became slower together, if the others clearly did not. absent: ranks without a
    trace, of which one is enough."""
    slow, calm = found.slower_ranks, found.calm_ranks
    clear = len(slow) + len(calm) >= CLEAR_SHARE * len(facts.processes)
    least = 1 if all(facts.processes[one].rank in absent for one in slow.tolist()) else GROUP_MIN
    if len(slow) < least or not len(calm) or not clear:
        return None
    names = facts.named(slow)
    growth = float(np.median(found.own_ns[slow]))
    lost_ns = int((found.after_ns - found.before_ns) * (windows.count - found.first))
    return Finding(
        "non_communication_slow",
        places.of_ranks(facts, slow),
        found.from_ns,
        found.to_ns,
        0.9,
        True,
        f"{names} took {time_text(growth / windows.iterations)} an iteration longer between "
        "operations than before "
        f"({percent(growth / found.before_ns, 0)} of it), the other {len(calm)} ranks did not; "
        f"{since(windows, found)}.",
        QUERY,
        "See what these ranks have in common: hosts, clocks and power of their GPUs (nvidia-smi "
        "-q), their share of the work.",
        lost_ns=lost_ns,
        weight=growth,
    )


def since(windows: Windows, found: Slowdown) -> str:
    when = "compared with the baseline" if found.baseline else "since then"
    before, after = (
        time_text(one / windows.iterations) for one in (found.before_ns, found.after_ns)
    )
    return f"{when}, one iteration takes {after} instead of {before}"


def text_of(facts: Facts, windows: Windows, found: Slowdown) -> str:
    """What became longer, for a slowdown that no finding explains."""
    usual = time_text(found.before_ns / windows.iterations)
    if found.baseline:
        parts = [f"iterations take {found.times:.2f} times as long as in the baseline ({usual})"]
    else:
        parts = [
            f"from iteration {windows.iteration_of(found.first)} on, iterations take "
            f"{found.times:.2f} times as long ({usual} before)"
        ]
    slow, known = found.slower_ranks, int((~np.isnan(found.own_ns)).sum())
    if known and len(slow) == known:
        growth = float(np.median(found.own_ns[slow])) / windows.iterations
        parts.append(f"all ranks take {time_text(growth)} longer between operations")
    elif len(slow):
        parts.append(f"{facts.named(slow)} take longer between operations")
    worst = found.slower_pairs
    if len(worst):
        worst = worst[np.argsort(-found.pair_times[worst])]
        shown = "; ".join(
            f"{facts.name(int(found.pairs[at, 0]))} to {facts.name(int(found.pairs[at, 1]))} "
            f"{found.pair_times[at]:.1f} times"
            for at in worst[:NAMED_MAX].tolist()
        )
        parts.append(
            f"messages of {len(worst)} of {len(found.pairs)} pairs of ranks take longer ({shown})"
        )
    elif len(found.pairs) and not len(slow):
        parts.append("neither a rank's own time nor messages became clearly longer")
    return "; ".join(parts) + f". {NO_PLACE}"
