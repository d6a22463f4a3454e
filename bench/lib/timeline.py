"""Evaluates and plots a rate over time: the length of dips, and the time to recover.

The benchmark passes the times at which it changed the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# Number of intervals for which a rate must hold: in a single one, a queue may have sent a burst.
STEADY = 3

Config = dict[str, Any]


def usual(rates: Sequence[float], interval_ns: int, until_ns: int) -> float:
    """The mean rate before `until_ns`; not the median, which may be 0 if few messages arrive."""
    before = rates[: max(until_ns // interval_ns, 1)]
    return float(np.mean(before))


def _held(rates: Sequence[float], index: int) -> float:
    return float(np.mean(rates[index : index + STEADY]))


def recovered_ns(
    rates: Sequence[float], interval_ns: int, since_ns: int, least: float
) -> int | None:
    """Time from `since_ns` to the end of the first interval at which the rate is steady again.

    It is steady if STEADY intervals have a mean of `least` or more. None: it is never steady.
    """
    for index in range(since_ns // interval_ns, len(rates) - STEADY + 1):
        if _held(rates, index) >= least and rates[index] > 0:
            return max((index + 1) * interval_ns - since_ns, 0)
    return None


def dipped_ns(
    rates: Sequence[float], interval_ns: int, since_ns: int, until_ns: int, least: float
) -> int | None:
    """Time from a moment until the end of the rate's dip; 0: no dip; None: it did not end.

    The rate may fall only after a while, because data in queues behind a cut still arrives. None
    also if the timeline ends too soon after that moment, as when a busy host makes the cut late.
    """
    first, end = since_ns // interval_ns, until_ns // interval_ns
    if first + STEADY > len(rates):
        return None
    end = min(end, len(rates))
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
    """Plots each contender's first round, with dotted lines at the times of network changes."""
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
