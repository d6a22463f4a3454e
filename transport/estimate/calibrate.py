"""Fits a network's latencies and rates to measured times of operations.

The model is that of collectives.py, with one protocol or several, and with or without a time for
launches. The fit minimizes the squared logarithm of estimate over measurement, so that small and
large operations count alike; of these variants of the model, the one with the least BIC (Schwarz
1978) is taken. Intervals come from fits to resampled measurements (Efron 1979).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.estimate.collectives import ALGORITHMS, estimate, terms
from transport.estimate.networks import Link, Network, Protocol, Range
from transport.estimate.samples import Sample, medians

Array = NDArray[np.float64]

PROTOCOLS_MAX = 3
SAMPLES_MIN = 4
RESAMPLED = 40
LEAST_NS = 1.0  # a smaller fitted latency counts as 0
LOW, HIGH = -14.0, 30.0  # bounds of the logarithms of fitted times (ns, ns a byte)
ONE_RANK_COUNT = (
    "all measurements have the same number of steps, so the latency of a call cannot be told from "
    "that of its steps: for more ranks, estimated latencies are too high"
)


class FitError(ValueError):
    """The measurements do not determine a network."""


@dataclass(frozen=True)
class Number:
    """A fitted number and its 95 % interval."""

    name: str
    unit: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Fit:
    """errors: estimate over measurement, minus 1, of each sample; spreads: of its repeats.

    notes: what the measurements do not determine.
    """

    network: Network
    numbers: tuple[Number, ...]
    samples: tuple[Sample, ...]
    errors: tuple[float, ...]
    spreads: tuple[float, ...]
    notes: tuple[str, ...]


def fit(measured: Sequence[Sample], name: str, source: str, seed: int = 1) -> Fit:
    """Fits collectives and, separately, pairwise operations. FitError: too few measurements."""
    rows = list(medians(measured))
    samples = [one for one, _ in rows]
    collective = [one for one in samples if ALGORITHMS[one.operation] != ("pairs",)]
    pairs = [one for one in samples if ALGORITHMS[one.operation] == ("pairs",)]
    if len(collective) < SAMPLES_MIN and len(pairs) < SAMPLES_MIN:
        raise FitError(
            f"the measurements have {len(samples)} different operations and sizes: at least "
            f"{SAMPLES_MIN} are needed"
        )
    numbers: list[Number] = []
    fitted: dict[str, Link | None] = {}
    for kind, ones in (("collectives", collective), ("pairs", pairs)):
        fitted[kind] = None
        if len(ones) >= SAMPLES_MIN:
            fitted[kind], more = _fitted(kind, ones, np.random.default_rng(seed))
            numbers += more
    between = fitted["collectives"] or fitted["pairs"]
    assert between is not None
    network = Network(name, source, between, pairs=fitted["pairs"])
    kept = [one for one in samples if one in collective or fitted["pairs"] is not None]
    errors = [_estimated_ns(network, one) / one.time_ns - 1 for one in kept]
    sizes = [one.size_bytes for one in kept]
    ranks = [one.ranks for one in kept]
    size = np.abs(errors)
    calibrated = Range(
        (int(min(sizes)), int(max(sizes))),
        (min(ranks), max(ranks)),
        float(np.median(size)),
        float(np.quantile(size, 0.95)),
        tuple(sorted({one.operation for one in kept})),
    )
    spreads = [spread for one, spread in rows if one in kept]
    is_known = any(one.name.endswith("of a call") for one in numbers)
    notes = () if is_known else (ONE_RANK_COUNT,)
    network = Network(
        name, source, between, pairs=fitted["pairs"], calibrated=calibrated, notes=notes
    )
    return Fit(network, tuple(numbers), tuple(kept), tuple(errors), tuple(spreads), notes)


def _estimated_ns(network: Network, one: Sample) -> float:
    return estimate(
        network, one.operation, one.size_bytes, one.ranks, nodes=one.nodes, algorithm=one.algorithm
    ).time_ns


def _fitted(
    kind: str, samples: Sequence[Sample], rng: np.random.Generator
) -> tuple[Link, list[Number]]:
    steps, moved, times = _features(samples)
    one_count = np.unique(np.where(np.isinf(steps), -1, steps), axis=0).shape[0] == 1
    best, least = np.zeros(0), np.inf
    for count in range(1, PROTOCOLS_MAX + 1):
        for launches in (False, True):
            if len(samples) < 3 * count + launches + 1:
                continue
            starts = _starts(steps, moved, times, count, launches)
            found, cost = _least(steps, moved, times, starts, one_count)
            error = max(cost / len(samples), 1e-12)
            bic = len(samples) * np.log(error) + len(found) * np.log(len(samples))
            if bic < least:
                best, least = found, bic
    resampled = []
    for _ in range(RESAMPLED):
        rows = rng.integers(0, len(samples), len(samples))
        again, _ = _least(steps[rows], moved[rows], times[rows], [best], one_count)
        resampled.append(np.exp(again))
    return _link(best), _numbers(kind, np.exp(best), np.array(resampled), one_count)


def _features(samples: Sequence[Sample]) -> tuple[Array, Array, Array]:
    """By sample and algorithm: steps, and bytes of the busiest link, both infinite if the sample
    cannot be of the algorithm; and the measured time of each sample, in ns."""
    most = max(len(ALGORITHMS[one.operation]) for one in samples)
    steps, moved = np.full((len(samples), most), np.inf), np.full((len(samples), most), np.inf)
    for row, one in enumerate(samples):
        for column, algorithm in enumerate(ALGORITHMS[one.operation]):
            if one.algorithm not in (None, algorithm):
                continue
            found = terms(one.operation, algorithm, one.ranks, one.nodes, one.size_bytes)
            steps[row, column] = found.inside_steps + found.between_steps
            moved[row, column] = max(found.inside_bytes, found.between_bytes)
    return steps, moved, np.array([one.time_ns for one in samples])


def _model(logs: Array, steps: Array, moved: Array) -> Array:
    """[sample]: the modelled time, of its fastest algorithm and protocol.

    logs: logarithms of base_ns, step_ns and ns a byte of each protocol, then that of the launch
    time if it is fitted.
    """
    protocols, launch = _split(np.exp(logs))
    base, step, byte = protocols.T
    each = base + steps[:, :, None] * step + moved[:, :, None] * byte
    found: Array = np.maximum(each.min(axis=(1, 2)), launch)
    return found


def _split(numbers: Array) -> tuple[Array, float]:
    """[protocol, 3]: base_ns, step_ns and ns a byte; and the time of a launch, 0: not fitted."""
    count = len(numbers) // 3 * 3
    return numbers[:count].reshape(-1, 3), float(numbers[count:].sum())


def _starts(steps: Array, moved: Array, times: Array, count: int, launches: bool) -> list[Array]:
    """Starting points of the fit (logarithms), from the smallest and the largest operation."""
    order = np.argsort(moved.min(axis=1))
    small, large = order[0], order[-1]
    fewest = np.maximum(steps.min(axis=1), 1)
    step = times[small] / fewest[small]
    byte = times[large] / np.maximum(moved[large].min(), 1)
    made = []
    for latency in (0.1, 0.5):
        for slower in (1.5, 4.0):
            rows = [
                [
                    latency * times[small] * slower**at,
                    (1 - latency) * step * slower**at,
                    byte * slower ** (count - 1 - at),
                ]
                for at in range(count)
            ]
            numbers = [*np.array(rows).ravel(), *([times.min()] if launches else [])]
            made.append(np.log(np.maximum(numbers, 1e-6)))
    return made


def _least(
    steps: Array, moved: Array, times: Array, starts: Sequence[Array], one_count: bool
) -> tuple[Array, float]:
    """The best fit from several starts, and its sum of squared logarithms.

    one_count: all samples have the same number of steps, so the latency of a call is held at 0.
    """
    from scipy.optimize import least_squares

    measured = np.log(times)

    def residuals(logs: Array) -> Array:
        found: Array = np.log(_model(logs, steps, moved)) - measured
        return found

    upper = np.full(starts[0].shape, HIGH)
    if one_count:
        upper[: len(upper) // 3 * 3 : 3] = LOW + 1e-3
    made: list[Any] = [
        least_squares(
            residuals, np.clip(start, LOW + 1e-4, upper - 1e-4), bounds=(LOW, upper), max_nfev=400
        )
        for start in starts
    ]
    best = min(made, key=lambda one: float(one.cost))
    return np.asarray(best.x), float(2 * best.cost)


def _link(logs: Array) -> Link:
    rows, launch_ns = _split(np.exp(logs))
    fastest = float(rows[:, 2].min())
    protocols = [
        Protocol(f"fitted {at + 1}", _latency(base), _latency(step), fastest / float(byte))
        for at, (base, step, byte) in enumerate(rows[np.argsort(-rows[:, 2])].tolist())
    ]
    return Link(1e9 / fastest, tuple(protocols), launch_ns)


def _latency(ns: float) -> float:
    return ns if ns >= LEAST_NS else 0.0


def _numbers(kind: str, best: Array, resampled: Array, one_count: bool) -> list[Number]:
    low, high = np.quantile(resampled, [0.025, 0.975], axis=0)
    made = []
    rows, launch_ns = _split(best)
    if launch_ns:
        made.append(Number(f"{kind}: launch", "ns", launch_ns, float(low[-1]), float(high[-1])))
    for number, at in enumerate(np.argsort(-rows[:, 2]).tolist(), start=1):
        for column, (what, unit) in enumerate(
            (("latency of a call", "ns"), ("latency of a step", "ns"), ("rate", "B/s"))
        ):
            if one_count and column == 0:
                continue
            value, least, most = (float(each[3 * at + column]) for each in (best, low, high))
            if unit == "B/s":
                value, least, most = 1e9 / value, 1e9 / most, 1e9 / least
            made.append(Number(f"{kind}, protocol {number}: {what}", unit, value, least, most))
    return made
