"""Decides what a rate over time says: how deep a dip was, when the rate was back, and its picture.

Never measures and never touches a link: a bench says what it did to the network, and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

STEADY = 3  # intervals in a row: one alone may be a burst that had waited

Config = dict[str, Any]


def usual(rates: Sequence[float], interval_ns: int, until_ns: int) -> float:
    """The mean rate before a moment of the window: of single messages the median may be none."""
    before = rates[: max(until_ns // interval_ns, 1)]
    return float(np.mean(before))


def recovered_ns(
    rates: Sequence[float], interval_ns: int, since_ns: int, least: float
) -> int | None:
    """From a moment of the window to the end of the first interval of those that hold `least`.

    None: never. An interval counts from its beginning, so the answer is at most one too long.
    """
    first = since_ns // interval_ns
    for index in range(first, len(rates) - STEADY + 1):
        held = rates[index : index + STEADY]
        if float(np.mean(held)) >= least and held[0] > 0:
            return max((index + 1) * interval_ns - since_ns, 0)
    return None


def silence_ns(rates: Sequence[float], interval_ns: int) -> int:
    """The longest time in which nothing arrived."""
    longest = run = 0
    for rate in rates:
        run = 0 if rate > 0 else run + 1
        longest = max(longest, run)
    return longest * interval_ns


def draw(axes: Any, runs: Sequence[Config], scale: float, unit: str) -> None:
    """One line a contender, of its first round; what was done to the network as dotted lines."""
    shown = set()
    for run in runs:
        if run["contender"] in shown:
            continue
        shown.add(run["contender"])
        step_ms = run["interval_ns"] / 1e6
        rates = [rate * scale for rate in run["timeline_bytes_per_s"]]
        axes.step([index * step_ms for index in range(len(rates))], rates, label=run["contender"])
        for moment_ns in run["events_ns"]:
            axes.axvline(moment_ns / 1e6, linestyle=":", color="grey", linewidth=1)
    axes.set_xlabel("time [ms]")
    axes.set_ylabel(f"rate [{unit}]")
    axes.set_ylim(bottom=0)
    axes.legend()
