"""A rate over time: how deep a dip was, when the rate was back, and its picture.

A bench says what it did to the network, and when.
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


def _held(rates: Sequence[float], index: int) -> float:
    return float(np.mean(rates[index : index + STEADY]))


def recovered_ns(
    rates: Sequence[float], interval_ns: int, since_ns: int, least: float
) -> int | None:
    """From a moment of the window until a rate was held, to the end of the first of its intervals.

    None: never.
    """
    for index in range(since_ns // interval_ns, len(rates) - STEADY + 1):
        if _held(rates, index) >= least and rates[index] > 0:
            return max((index + 1) * interval_ns - since_ns, 0)
    return None


def dipped_ns(
    rates: Sequence[float], interval_ns: int, since_ns: int, until_ns: int, least: float
) -> int | None:
    """From a moment until the dip after it was over; 0: there was none; None: it never was.

    The rate may fall only some time after the moment: what waits in a queue behind a cut arrives.
    """
    first, end = since_ns // interval_ns, until_ns // interval_ns
    for index in range(first, max(end - STEADY + 1, first)):
        if _held(rates, index) < least:
            over_ns = recovered_ns(rates, interval_ns, index * interval_ns, least)
            whole_ns = index * interval_ns + (over_ns or 0)
            return whole_ns - since_ns if over_ns is not None and whole_ns <= until_ns else None
    return 0


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
