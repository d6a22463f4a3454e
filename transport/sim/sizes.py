"""Distributions of message sizes, given by name or as points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from transport.sim.network import Array

# (bytes, cumulative share), interpolated linearly. These are the numbers that public simulations of
# the papers use.
# Web search: M. Alizadeh et al., Data Center TCP (DCTCP), SIGCOMM 2010; as points in Y. Li et al.,
# HPCC, SIGCOMM 2019.
WEBSEARCH = (
    *((1, 0.0), (10_000, 0.15), (20_000, 0.20), (30_000, 0.30), (50_000, 0.40), (80_000, 0.53)),
    *((200_000, 0.60), (1_000_000, 0.70), (2_000_000, 0.80), (5_000_000, 0.90)),
    *((10_000_000, 0.97), (30_000_000, 1.0)),
)
# Hadoop at Facebook: A. Roy et al., Inside the Social Network's (Datacenter) Network, SIGCOMM 2015;
# as points in HPCC.
HADOOP = (
    *((1, 0.0), (100, 0.01), (200, 0.02), (300, 0.05), (350, 0.15), (400, 0.20), (500, 0.30)),
    *((600, 0.40), (700, 0.50), (1_000, 0.60), (2_000, 0.67), (7_000, 0.70), (30_000, 0.72)),
    *((50_000, 0.82), (80_000, 0.87), (120_000, 0.90), (300_000, 0.95), (1_000_000, 0.975)),
    *((2_000_000, 0.99), (10_000_000, 1.0)),
)
NAMED = {"websearch": WEBSEARCH, "hadoop": HADOOP}


def points_of(given: Any) -> Array:
    """Checks points (bytes, cumulative share) from share 0 to 1; ValueError if they are wrong."""
    if isinstance(given, str):
        if given not in NAMED:
            raise ValueError(
                f"{given!r}: choose one of {', '.join(NAMED)}, or give a list of [bytes, share]"
            )
        return np.array(NAMED[given], np.float64)
    rows = [one for one in given if isinstance(one, Sequence) and len(one) == 2]
    numbers = [x for row in rows for x in row if isinstance(x, int | float)]
    if len(rows) < len(given) or len(numbers) < 2 * len(rows) or not rows:
        raise ValueError("expected a list of [bytes, cumulative share]")
    points = np.array(rows, np.float64)
    if points[0, 1] > 0:
        points = np.concatenate([[[points[0, 0], 0.0]], points])
    if points[-1, 1] != 1.0 or (np.diff(points, axis=0) < 0).any() or points[0, 0] < 1:
        raise ValueError(
            "sizes and shares must not fall; the first size is 1 or more, the last share 1.0"
        )
    return points


def mean_bytes(points: Array) -> float:
    """The mean message size of a distribution."""
    middle = (points[1:, 0] + points[:-1, 0]) / 2
    return float(np.sum(middle * np.diff(points[:, 1])))


def draw(points: Array, count: int, chance: np.random.Generator) -> Array:
    """`count` random sizes in whole bytes, by a distribution."""
    return np.interp(chance.random(count), points[:, 1], points[:, 0]).astype(np.uint64)
