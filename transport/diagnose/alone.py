"""Compares ranks with their own earlier iterations, where no other rank does the same work.

Examples are the only rank of a pipeline stage, and a rank of a tree that forwards what it receives.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import ordinals

Array = NDArray[Any]

FEW_PEERS = 3  # with fewer ranks, one late rank moves the median that it is compared with
DEVIATIONS = 6.0  # a rank is late if its time exceeds its usual time by this many deviations
LASTING = 6  # a rank that is late in all but one of this many time windows has a fault
RECENT = 3  # this many latest time windows do not count as usual, to notice a lasting fault
HISTORY_MIN, HISTORY_MAX = 4, 50  # least and most past time windows whose median is the usual time


def grown(
    window: Array, process: Array, kinds: Array, values: Array, shape: tuple[int, int]
) -> Array:
    """[window, process]: by how much a process needed more time for its calls than it did before.

    window, process, kinds, values: of each call, its window, its process, its kind, and the time
    that the process spent on its own before it. shape: numbers of windows and of processes. The
    n-th call of a kind in a window is compared with the n-th call of that kind in other windows. 0
    unless the excess over the usual time is clear (DEVIATIONS).
    """
    late, made = np.zeros(shape, bool), np.zeros(shape)
    if not len(window):
        return made
    keys = np.stack([process, kinds, ordinals(process, kinds, window)], axis=1)
    columns, column = np.unique(keys, axis=0, return_inverse=True)
    owner = columns[:, 0]
    table = np.full((shape[0], len(owner)), np.nan)
    table[window, column.ravel()] = values

    def summed(changes: Array) -> Array:
        """[..., process]: the sum of the changes over the calls of each process."""
        total = np.zeros((len(changes), shape[1]))
        np.add.at(total.T, owner, np.nan_to_num(changes).T)
        return total

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # medians of calls without earlier ones
        for at in range(shape[0]):
            # The times in windows of a lasting fault must not become the usual times.
            recent = slice(max(at - LASTING, 0), at)
            lasting = late[recent].sum(axis=0) >= LASTING - 1
            if lasting.any():
                table[recent] = np.where((late[recent] & lasting)[:, owner], np.nan, table[recent])
            before = table[max(at + 1 - RECENT - HISTORY_MAX, 0) : max(at + 1 - RECENT, 0)]
            if len(before) < HISTORY_MIN:
                continue
            enough = (~np.isnan(before)).sum(axis=0) >= HISTORY_MIN
            usual = np.where(enough, np.nanmedian(before, axis=0), np.nan)
            noise = 1.4826 * np.median(np.abs(summed(before - usual)), axis=0)
            made[at] = summed((table[at] - usual)[None])[0]
            late[at] = made[at] > DEVIATIONS * noise
    return np.where(late, made, 0.0)
