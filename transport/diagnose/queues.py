"""Tells by round-trip times whether the paths that lose packets lead through full queues."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.paths import GROWN_RATIO, Paths

Array = NDArray[Any]

# A queue is full if a path's round-trip time is this many times that of others.
QUEUED_RATIO = 1.5
QUEUED_LATER = 2  # a full queue may show only in the RTTs of this many time windows after a loss
# Round trips that grow by this, beside those of other paths, tell of a queue: a bad cable delays
# no packet that it does not lose.
WAITS = 1.1


def are_full(paths: Paths, span: slice, mine: Array, lossy: Array) -> bool | None:
    """Whether lossy paths of a place had much longer round-trip times than others, or than before.

    The others are paths of the same pair or, if there are none, paths that cross as many links.
    mine, lossy: [path] whether it is of the place, and whether it lost packets. None: the
    round-trip times of the lossy paths are not known.
    """
    rtt = _longest_rtt(paths, span)
    seen = np.flatnonzero(mine & lossy & ~np.isnan(rtt))
    if not seen.size:
        return None
    grown = (rtt / _shortest_rtt(paths, span.start))[seen]
    grown = grown[~np.isnan(grown)]
    if grown.size and float(np.median(grown)) > GROWN_RATIO:
        return True
    _, pair = np.unique(paths.pair, return_inverse=True)
    length = np.array([len(one) for one in paths.links])
    others = np.flatnonzero(~mine & ~np.isnan(rtt))
    usual = _medians_by(pair, others, rtt)[seen]
    usual = np.where(np.isnan(usual), _medians_by(length, others, rtt)[seen], usual)
    ratios = (rtt[seen] / usual)[~np.isnan(usual)]
    return bool(ratios.size) and float(np.median(ratios)) > QUEUED_RATIO


def grew(paths: Paths, span: slice, mine: Array) -> bool:
    """Whether packets take longer than before `span` on those paths of a place that lose some,
    beside all other paths.

    mine: [path] whether it is of the place.
    """
    lossy = mine & paths.lost[span].any(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # paths that were never sampled
        grown = np.nanmedian(paths.rtt_ns[span], axis=0) / _shortest_rtt(paths, span.start)
        beside = float(np.nanmedian(grown[lossy]) / np.nanmedian(grown[~mine]))
    return bool(beside >= WAITS)


def _medians_by(group: Array, rows: Array, values: Array) -> Array:
    """[path] the median of the values of those of some paths that are of its group; NaN: none."""
    order = rows[np.lexsort((values[rows], group[rows]))]
    found, starts, counts = np.unique(group[order], return_index=True, return_counts=True)
    made = np.full(int(group.max(initial=-1)) + 1, np.nan)
    middle = values[order[starts + (counts - 1) // 2]] + values[order[starts + counts // 2]]
    made[found] = middle / 2
    return made[group]


def _longest_rtt(paths: Paths, span: slice) -> Array:
    """[path]: the longest round-trip time in `span` and the windows after it; NaN: not known.

    A lost packet has no round-trip time, so a full queue shows in packets that come later. The
    next sample after these windows counts as well: real processes write one a second.
    """
    stop = span.stop + QUEUED_LATER
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        rtt: Array = np.nanmax(paths.rtt_ns[span.start : stop], axis=0)
    later = paths.rtt_ns[stop:]
    if len(later):
        next_one = later[(~np.isnan(later)).argmax(axis=0), np.arange(later.shape[1])]
        rtt = np.fmax(rtt, next_one)
    return rtt


def _shortest_rtt(paths: Paths, stop: int) -> Array:
    """[path]: the shortest round-trip time before window `stop`, as a queue that lasts must not
    become usual; NaN: not known."""
    rtt: Array = np.fmin.reduce(paths.rtt_ns[:stop], axis=0, initial=np.nan)
    return rtt
