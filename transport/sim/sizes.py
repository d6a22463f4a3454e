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
# Storage at Alibaba, 2019: as points in the traffic generator that HPCC's authors published.
ALISTORAGE = (
    *((1, 0.0), (4_000, 0.2293), (8_000, 0.6921), (16_000, 0.8061), (32_000, 0.9047)),
    *((64_000, 0.9353), (128_000, 0.9677), (256_000, 0.9753), (2_000_000, 1.0)),
)
# Remote procedure calls at Google, 2008: the points of the same generator at powers of two.
GOOGLE_RPC = (
    *((1, 0.0), (3, 0.064883), (32, 0.097324), (64, 0.155271), (128, 0.351573), (256, 0.497901)),
    *((512, 0.784921), (1_024, 0.8632), (2_048, 0.908862), (4_096, 0.934955)),
    *((8_192, 0.964309), (16_384, 0.984694), (32_768, 0.990402), (65_536, 0.993256)),
    *((131_072, 0.997129), (262_144, 0.998453), (524_288, 0.999498), (1_047_917, 0.999758)),
    *((2_034_108, 0.999884), (3_983_524, 0.99995), (8_231_141, 0.999985), (15_158_197, 1.0)),
)
NAMED = {
    "websearch": WEBSEARCH,
    "hadoop": HADOOP,
    "alistorage": ALISTORAGE,
    "google_rpc": GOOGLE_RPC,
}


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
