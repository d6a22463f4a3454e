"""How likely what was seen is by chance, and by how much values vary."""

from __future__ import annotations

from math import exp, lgamma, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A place is doubted if one of those of the job would look like it with at least this probability.
CHANCE_MAX = 0.01


def at_least(times: int, tries: int, share: float) -> float:
    """The probability of at least `times` successes in `tries` tries with probability `share`."""
    if times <= 0:
        return 1.0
    if share <= 0 or times > tries:
        return 0.0
    if share >= 1:
        return 1.0

    def part(k: int) -> float:
        ways = lgamma(tries + 1) - lgamma(k + 1) - lgamma(tries - k + 1)
        return exp(ways + k * log(share) + (tries - k) * log(1 - share))

    return min(1.0, sum(part(k) for k in range(times, tries + 1)))


def deviation_of(series: NDArray[Any]) -> float:
    """The standard deviation of successive values, which a step does not change; 0: not known.

    series: [time] or [time, place], of which that of a usual place. The median difference of two
    values of a normal distribution is 0.954 standard deviations.
    """
    if len(series) < 2 or np.isnan(series).all():
        return 0.0
    return float(np.nanmedian(np.abs(np.diff(series, axis=0)))) / 0.954


def stepped_up(
    early: NDArray[Any], late: NDArray[Any], least: float, above_min: float
) -> NDArray[np.bool_]:
    """[place] whether its values stepped up between two parts of a series, whose moment is known.

    early, late: [time, place]. least: the smallest step of the median. above_min: the least share
    of pairs of values, one of each part, of which the later is larger.
    """
    grown = np.median(late, axis=0) - np.median(early, axis=0) >= least
    above = (late[:, None] > early[None]).mean(axis=(0, 1)) >= above_min
    return np.asarray(grown & above)
