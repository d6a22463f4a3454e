"""Compares ranks that have too few peers in their role with their own earlier iterations.

In a pipeline with one rank a stage, no other rank does the same work.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import ordinals

Array = NDArray[Any]

FEW_PEERS = 3  # fewer ranks have no median that one late rank would not move
DEVIATIONS = 6.0  # a rank is late if it needs so many usual deviations more than before
LASTING = 6  # a rank that is late in all but one of so many windows has a fault
RECENT = 3  # the usual time leaves out the latest windows, to notice a fault that lasts
HISTORY_MIN, HISTORY_MAX = 2, 50  # fewest and most windows whose median is the usual time


def grown(window: Array, kinds: Array, values: Array, count: int) -> Array:
    """[window]: by how much a rank needed more time for its calls than in earlier windows.

    window, kinds, values: of each call, its window, its kind, and the time that the rank spent on
    its own before it. The n-th call of a kind in a window is compared with the n-th call of that
    kind in other windows. 0 where the rank needed no more than usual, beyond doubt.
    """
    keys = np.stack([kinds, ordinals(kinds, window)], axis=1)
    _, column = np.unique(keys, axis=0, return_inverse=True)
    column = column.ravel()
    table = np.full((count, int(column.max(initial=-1)) + 1), np.nan)
    table[window, column] = values
    late, made = np.zeros(count, bool), np.zeros(count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # calls that no earlier window has
        for at in range(count):
            # Windows of a fault that lasts must not become usual.
            recent = slice(max(at - LASTING, 0), at)
            if late[recent].sum() >= LASTING - 1:
                table[recent][late[recent]] = np.nan
            before = table[max(at + 1 - RECENT - HISTORY_MAX, 0) : max(at + 1 - RECENT, 0)]
            if (~np.isnan(before)).any(axis=1).sum() < HISTORY_MIN:
                continue
            usual = np.nanmedian(before, axis=0)
            noise = 1.4826 * float(np.median(np.abs(np.nansum(before - usual, axis=1))))
            made[at] = np.nansum(table[at] - usual)
            late[at] = made[at] > DEVIATIONS * noise
    return np.where(late, made, 0.0)
