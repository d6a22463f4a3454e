"""Compares ranks with their own earlier iterations, where no other rank does the same work.

Examples are the only rank of a pipeline stage, and a rank of a tree that forwards what it receives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.distinct import distinct
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
    columns, column = distinct(process, kinds, ordinals(process, kinds, window))
    owner = columns[0]
    table = np.full((shape[0], len(owner)), np.nan)
    table[window, column] = values

    order = np.argsort(owner, kind="stable")
    owners, starts = np.unique(owner[order], return_index=True)

    def summed(changes: Array) -> Array:
        """[..., process]: the sum of the changes over the calls of each process."""
        total = np.zeros((len(changes), shape[1]))
        known = np.where(np.isnan(changes), 0.0, changes)[:, order]
        total[:, owners] = np.add.reduceat(known, starts, axis=1)
        return total

    for at in range(shape[0]):
        # The times in windows of a lasting fault must not become the usual times.
        recent = slice(max(at - LASTING, 0), at)
        lasting = late[recent].sum(axis=0) >= LASTING - 1
        if lasting.any():
            table[recent] = np.where((late[recent] & lasting)[:, owner], np.nan, table[recent])
        before = table[max(at + 1 - RECENT - HISTORY_MAX, 0) : max(at + 1 - RECENT, 0)]
        if len(before) < HISTORY_MIN:
            continue
        usual = medians_of(before, HISTORY_MIN)
        noise = 1.4826 * medians_of(np.abs(summed(before - usual)), 1)
        made[at] = summed((table[at] - usual)[None])[0]
        late[at] = made[at] > DEVIATIONS * noise
    return np.where(late, made, 0.0)


def medians_of(values: Array, least: int) -> Array:
    """[column]: the median of the known values (not NaN) of each column; NaN: fewer than `least`.

    As np.nanmedian, which takes many times as long for tables of this size (masked arrays).
    """
    ordered = np.sort(values, axis=0)  # NaN comes last
    count = np.count_nonzero(~np.isnan(values), axis=0)
    columns = np.arange(values.shape[1])
    low = ordered[np.maximum(count - 1, 0) // 2, columns]
    high = ordered[np.minimum(count // 2, len(values) - 1), columns]
    return np.where(count >= least, (low + high) / 2, np.nan)
