"""The bucket size with which DDP would hide most of its AllReduces, from a trace of a few steps.

The model is that of PyTorch's DDP (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2): a
bucket's AllReduce begins when all its gradients are ready and the previous one has ended. Gradients
are taken to become ready at an even rate, from the first bucket to the end of backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SIZES = tuple(1 << power for power in range(20, 31))  # compared bucket sizes: 1 MiB to 1 GiB
# AllReduces below this share of the largest one sum no gradients but, for example, a loss.
SMALL = 1e-3
BUCKETS_MIN, BUCKETS_MAX = 2, 1_000  # smallest and largest number of buckets of a step
STEPS_MIN = 2


@dataclass(frozen=True)
class Sum:
    """An AllReduce of the trace."""

    size_bytes: float
    begin_ns: float
    end_ns: float


@dataclass(frozen=True)
class Buckets:
    """A step's AllReduces. latency_ns, bytes_per_s: of one AllReduce, fitted.

    exposed_ns: exposed time that the model gives for the buckets of the trace. by_size: (bucket
    size, exposed time) for buckets of other sizes.
    """

    steps: int
    buckets: int
    step_bytes: float
    latency_ns: float
    bytes_per_s: float
    backward_ns: float
    exposed_ns: float
    by_size: tuple[tuple[int, float], ...]

    @property
    def best(self) -> tuple[int, float]:
        """Bucket size with the least exposed time; the smallest of those within 1 %."""
        least = min(exposed for _, exposed in self.by_size)
        slack_ns = 0.01 * self.backward_ns
        return next(one for one in self.by_size if one[1] <= least + slack_ns)


def buckets_of(sums: Sequence[Sum], compute: Array) -> Buckets | None:
    """The buckets of a trace's AllReduces; None: the trace has no steps of DDP.

    compute: [interval, 2], begin and end of the times in which the GPU computes. Steps are found by
    the sizes of their AllReduces, which repeat; the trace must begin with a step.
    """
    least = SMALL * max((one.size_bytes for one in sums), default=0.0)
    ordered = sorted((one for one in sums if one.size_bytes >= least), key=lambda one: one.begin_ns)
    count = period_of([one.size_bytes for one in ordered])
    steps = len(ordered) // count if count else 0
    if count < BUCKETS_MIN or steps < STEPS_MIN:
        return None
    each = [ordered[at * count : (at + 1) * count] for at in range(steps)]
    sizes = np.array([one.size_bytes for one in each[0]])
    took: Array = np.median([[one.end_ns - one.begin_ns for one in step] for step in each], axis=0)
    latency_ns, byte_ns = _fit(sizes, took)
    backward_ns = float(np.median([_ready_ns(step, compute) for step in each]))
    if backward_ns <= 0 or byte_ns <= 0:
        return None
    whole = float(sizes.sum())
    rate = (whole - sizes[0]) / backward_ns  # bytes that become ready in a ns
    cost = latency_ns, byte_ns
    by_size = [(size, exposed_ns(_cut(whole, size), sizes[0], rate, cost)) for size in SIZES]
    return Buckets(
        steps,
        count,
        whole,
        latency_ns,
        1e9 / byte_ns,
        backward_ns,
        exposed_ns(sizes, sizes[0], rate, cost),
        tuple(by_size),
    )


def period_of(sizes: Sequence[float]) -> int:
    """The number of AllReduces after which their sizes repeat; 0: they do not."""
    values = np.array(sizes)
    for period in range(1, min(len(values) // STEPS_MIN, BUCKETS_MAX) + 1):
        if np.array_equal(values[period:], values[:-period]):
            return period
    return 0


def _fit(sizes: Array, took_ns: Array) -> tuple[float, float]:
    """Latency, and ns a byte, by least squares; neither is negative."""
    if len(np.unique(sizes)) < 2:
        return 0.0, float((took_ns / sizes).mean())
    byte_ns, latency_ns = np.polyfit(sizes, took_ns, 1)
    if latency_ns < 0 or byte_ns <= 0:
        return 0.0, float(took_ns.sum() / sizes.sum())
    return float(latency_ns), float(byte_ns)


def _ready_ns(step: Sequence[Sum], compute: Array) -> float:
    """Time in ns from the first bucket's AllReduce to the last gradient of the step.

    The last gradient is ready when the computation before the last bucket's AllReduce ends.
    """
    before = compute[compute[:, 0] < step[-1].begin_ns]
    last_ns = min(float(before[-1, 1]), step[-1].begin_ns) if len(before) else step[-1].begin_ns
    return last_ns - step[0].begin_ns


def _cut(whole: float, size: int) -> Array:
    count = max(int(np.ceil(whole / size)), 1)
    return np.array([float(size)] * (count - 1) + [whole - size * (count - 1)])


def exposed_ns(sizes: Array, first: float, rate: float, cost: tuple[float, float]) -> float:
    """Time in ns from the last gradient to the end of the last AllReduce.

    first: bytes that are ready at time 0. rate: bytes that become ready in a ns. cost: of an
    AllReduce, its latency and its ns a byte.
    """
    ready = np.maximum((np.cumsum(sizes) - first) / rate, 0.0)
    end = -np.inf
    for size, when in zip(sizes.tolist(), ready.tolist(), strict=True):
        end = max(end, when) + cost[0] + cost[1] * size
    return float(end - ready[-1])
