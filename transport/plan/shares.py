"""Judges the paths to one peer by their counters, and says which share each should carry.

A path that is not usable gets nothing. A path whose loss or round trip is far above the others'
loses half of its share at each step. A path that is well again regains its share step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# A path is slow if its round trip is more than SLOW_FACTOR times the median of the usable paths and
# exceeds this median by more than SLOW_NS.
SLOW_FACTOR = 3.0
SLOW_NS = 500_000
LOSSY_SHARE = 0.02  # a path is lossy only if it loses this share of its segments
LOSSY_FACTOR = 4.0  # a path is lossy only if it loses this many times what the median path loses
SEGMENTS_MIN = 20  # with fewer segments sent in a step, a path's loss is not judged
# A slow or lossy path keeps this part of its share, so that it can still be measured.
LEAST = 1 / 16
BACK = 1.5  # a well path's share grows by this factor in each step


@dataclass(frozen=True)
class Seen:
    """The counters of the paths at one step: totals, round trips (0: none), usable or not."""

    sent: Sequence[int]
    lost: Sequence[int]
    rtt_ns: Sequence[int]
    usable: Sequence[bool]


@dataclass(frozen=True)
class Change:
    """A path's new state and share of the traffic."""

    path: int
    state: str
    was: str
    share: float


class Judge:
    """The shares of the paths to one peer. planned: their shares while all are well."""

    def __init__(self, planned: Sequence[float]) -> None:
        self._planned = np.asarray(planned, float) / max(float(np.sum(planned)), 1e-12)
        self._part = np.ones(len(planned))  # part of its planned weight that each path has
        self._states = ["well"] * len(planned)
        self._before: Seen | None = None

    @property
    def weights(self) -> Array:
        """Weights of the paths, the largest 1. All equal if no path is usable."""
        weights: Array = self._planned * self._part
        most = float(weights.max(initial=0.0))
        return weights / most if most > 0 else np.ones(len(weights))

    def step(self, seen: Seen) -> list[Change]:
        """Takes the current counters; returns the paths whose state changed."""
        states = self._judged(seen)
        self._before = seen
        for path, state in enumerate(states):
            if state == "dead":
                self._part[path] = 0.0
            elif state != "well":
                self._part[path] = max(self._part[path] / 2, LEAST)
            else:
                self._part[path] = min(max(self._part[path], LEAST) * BACK, 1.0)
        changes = [
            Change(path, state, was, 0.0)
            for path, (state, was) in enumerate(zip(states, self._states, strict=True))
            if state != was
        ]
        self._states = states
        weights = self.weights
        total = float(weights.sum())
        return [
            Change(one.path, one.state, one.was, float(weights[one.path]) / total)
            for one in changes
        ]

    def _judged(self, seen: Seen) -> list[str]:
        usable = np.asarray(seen.usable, bool)
        rtt = np.asarray(seen.rtt_ns, float)
        measured = usable & (rtt > 0)
        median = float(np.median(rtt[measured])) if measured.any() else 0.0
        loss = self._loss(seen)
        typical = float(np.median(loss[usable])) if usable.any() else 0.0
        states = []
        for path in range(len(usable)):
            if not usable[path]:
                states.append("dead")
            elif loss[path] > max(LOSSY_SHARE, LOSSY_FACTOR * typical):
                states.append("lossy")
            elif measured[path] and rtt[path] > max(SLOW_FACTOR * median, median + SLOW_NS):
                states.append("slow")
            else:
                states.append("well")
        return states

    def _loss(self, seen: Seen) -> Array:
        """The share of its segments that each path lost since the last step."""
        if self._before is None or len(self._before.sent) != len(seen.sent):
            return np.zeros(len(seen.sent))
        sent = np.asarray(seen.sent, float) - np.asarray(self._before.sent, float)
        lost = np.asarray(seen.lost, float) - np.asarray(self._before.lost, float)
        return np.where(sent >= SEGMENTS_MIN, lost / np.maximum(sent, 1), 0.0)
