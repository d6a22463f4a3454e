"""A baseline: how long iterations, ranks and messages of a job took when it was well.

A fault that was there from the first iteration of a job, or that slows all ranks alike, shows only
beside another trace of the same job.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import Facts
from transport.diagnose.own_times import own_times_of
from transport.diagnose.slower import (
    DEVIATIONS,
    GROWN_MIN,
    Slowdown,
    pair_means_of,
    times_of,
)
from transport.diagnose.windows import Windows
from transport.errors import InvalidArgumentError

Array = NDArray[Any]

VERSION = 1
FILE_BYTES_MAX = 64 << 20
ITERATIONS_MIN = 5


class BaselineError(InvalidArgumentError):
    """A file is no baseline, or one of another job; the text is one line."""


@dataclass(frozen=True)
class Baseline:
    """iteration_ns: the median; noise_ns: usual deviation. operations: kinds of calls of a rank in
    an iteration, sorted. own_ns: by rank, its own time in an iteration. pair_ns: by sender and
    receiver ("0>1"), the mean time of a message."""

    ranks: int
    operations: tuple[str, ...]
    iterations: int
    iteration_ns: int
    noise_ns: int
    own_ns: dict[str, int]
    pair_ns: dict[str, int]


def baseline_of(facts: Facts, windows: Windows) -> Baseline:
    """The baseline that a trace gives. BaselineError if it is too short."""
    lengths = _lengths(windows)
    if len(lengths) < ITERATIONS_MIN:
        raise BaselineError(
            f"the trace has {len(lengths)} whole iterations after the first one: a baseline takes "
            f"{ITERATIONS_MIN}"
        )
    part = slice(1, windows.count - 1)
    own = np.median(own_times_of(facts, windows)[part], axis=0)
    pairs, means = pair_means_of(facts, windows, part)
    usual = float(np.median(lengths))
    ranks = [str(one.rank) for one in facts.processes]
    return Baseline(
        len(facts.processes),
        _operations(facts),
        len(lengths),
        int(usual),
        int(1.4826 * np.median(np.abs(lengths - usual))),
        {ranks[at]: int(ns) for at, ns in enumerate(own.tolist()) if ns == ns},
        {
            f"{ranks[a]}>{ranks[b]}": int(ns)
            for (a, b), ns in zip(pairs.tolist(), means.tolist(), strict=True)
        },
    )


def as_json(one: Baseline) -> dict[str, Any]:
    return {"weft_baseline": VERSION} | asdict(one)


def read(file: Path) -> Baseline:
    """Reads a baseline; BaselineError in one line if the file is none."""
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise BaselineError(f"{file} is larger than 64 MiB: it is no baseline")
        found = json.loads(file.read_text())
        if found["weft_baseline"] != VERSION:
            raise BaselineError(f"{file} is a baseline of version {found['weft_baseline']!r}")
        own, pairs = (_numbers(found[name]) for name in ("own_ns", "pair_ns"))
        numbers = [found[name] for name in ("ranks", "iterations", "iteration_ns", "noise_ns")]
        if not all(type(one) is int and 0 <= one < 1 << 62 for one in numbers) or numbers[2] < 1:
            raise ValueError
        ranks, iterations, iteration_ns, noise_ns = numbers
        operations = tuple(str(one) for one in found["operations"])
    except OSError as error:
        raise BaselineError(f"{file}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, BaselineError):
            raise
        raise BaselineError(f"{file} is no baseline: make it with weft diagnose --save") from None
    return Baseline(ranks, operations, iterations, iteration_ns, noise_ns, own, pairs)


def _numbers(value: Any) -> dict[str, int]:
    if not all(type(one) is int and 0 <= one < 1 << 62 for one in value.values()):
        raise ValueError
    return {str(name): one for name, one in value.items()}


def slower_than(facts: Facts, windows: Windows, base: Baseline) -> Slowdown | None:
    """By how much the job is slower than its baseline; None: not clearly.

    BaselineError if the baseline is of another job: other ranks, or other operations.
    """
    if base.ranks != len(facts.processes) or base.operations != _operations(facts):
        raise BaselineError(
            f"the baseline is of another job: {base.ranks} ranks and {len(base.operations)} kinds "
            f"of operations, here {len(facts.processes)} and {len(_operations(facts))}, or others"
        )
    lengths = _lengths(windows)
    if len(lengths) < ITERATIONS_MIN:
        return None
    after_ns = float(np.median(lengths))
    before_ns = float(base.iteration_ns * windows.iterations)
    noise_ns = max(base.noise_ns, 1.4826 * float(np.median(np.abs(lengths - after_ns))))
    if after_ns - before_ns < max(GROWN_MIN * before_ns, DEVIATIONS * noise_ns):
        return None
    part = slice(1, windows.count - 1)
    own = np.median(own_times_of(facts, windows)[part], axis=0)
    ranks = [str(one.rank) for one in facts.processes]
    own_before = np.array([base.own_ns.get(one, np.nan) for one in ranks]) * windows.iterations
    pairs, means = pair_means_of(facts, windows, part)
    means_before = np.array(
        [base.pair_ns.get(f"{ranks[a]}>{ranks[b]}", 0) for a, b in pairs.tolist()], np.float64
    )
    return Slowdown(
        1,
        int(windows.starts_ns[1]),
        facts.end_ns,
        before_ns,
        after_ns,
        own - own_before,
        pairs,
        times_of(means_before, means),
        baseline=True,
    )


def _lengths(windows: Windows) -> Array:
    """The lengths of windows, without the first one, which opens connections, and the last one."""
    return np.diff(windows.starts_ns)[1:].astype(np.float64)


def _operations(facts: Facts) -> tuple[str, ...]:
    """The kinds of calls in a job, as text."""
    calls = facts.calls
    names = ("function", "count", "datatype", "ranks")
    rows = zip(*(calls[name].tolist() for name in names), strict=True)
    return tuple(sorted({" ".join(map(str, row)) for row in rows}))
