"""Compares estimates with measured times that the network need not have been fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transport.estimate.collectives import estimate
from transport.estimate.networks import Network
from transport.estimate.samples import Sample, medians


@dataclass(frozen=True)
class Compared:
    """sample: the median of the repeats. spread: of the repeats, as in samples.medians().

    error: estimate over measurement, minus 1. extrapolated: outside of the network's range.
    """

    sample: Sample
    spread: float
    estimated_ns: float
    error: float
    extrapolated: bool

    def within(self, bound: float) -> bool:
        """Whether the error is at most the larger of the bound and the spread."""
        return abs(self.error) <= max(bound, self.spread)


@dataclass(frozen=True)
class Summary:
    """Absolute errors. within_5, within_15: the share of rows with within(0.05), within(0.15)."""

    median: float
    p95: float
    within_5: float
    within_15: float


def compared(network: Network, measured: Sequence[Sample]) -> list[Compared]:
    """Compares the median of each operation and size with estimate(), or raises ShapeError."""
    made = []
    for one, spread in medians(measured):
        found = estimate(
            network,
            one.operation,
            one.size_bytes,
            one.ranks,
            nodes=one.nodes,
            algorithm=one.algorithm,
        )
        made.append(
            Compared(
                one,
                spread,
                found.time_ns,
                found.time_ns / one.time_ns - 1,
                network.extrapolates(one.operation, one.size_bytes, one.ranks),
            )
        )
    return made


def summary_of(rows: Sequence[Compared]) -> Summary:
    errors = np.abs([row.error for row in rows])
    return Summary(
        float(np.median(errors)),
        float(np.quantile(errors, 0.95)),
        float(np.mean([row.within(0.05) for row in rows])),
        float(np.mean([row.within(0.15) for row in rows])),
    )
