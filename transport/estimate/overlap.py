"""The part of a step's communication that computation hides, from PyTorch's profiler.

The definitions are those of Holistic Trace Analysis (pytorch.org/blog/trace-analysis-for-masses):
a GPU computes while a kernel runs that is not NCCL's, and communicates while one of NCCL's does.
The overlap is the part of the time of communication in which the GPU computes as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.estimate.buckets import Buckets, Sum, buckets_of
from transport.estimate.times import difference_ns
from transport.ground.collectives import ELEMENT_BYTES
from transport.trace.json_stream import JsonError, read_object
from transport.trace.layout import TraceError
from transport.trace.torch_names import function_of, nccl_type

Array = NDArray[np.float64]

NCCL = re.compile(r"nccl(?:Dev)?Kernel_?([A-Za-z]*)")
NAME = "Collective name"
MEMORY = ("gpu_memcpy", "gpu_memset")
EVENTS_MAX = 20_000_000
NUMBER_MAX = 1 << 60  # larger times and counts are treated as missing


@dataclass(frozen=True)
class Part:
    """One kind of communication. exposed_ns: its time while the GPU computes nothing."""

    name: str
    kernels: int
    ns: float
    exposed_ns: float


@dataclass(frozen=True)
class Overlap:
    """Times of one file, in ns. span_ns: from the first kernel to the end of the last.

    compute_ns, communication_ns, both_ns: while the GPU computes, communicates, does both.
    memory_ns: while it copies and does neither. parts: by operation, the most exposed first.
    buckets: of DDP; None: the trace has no steps of it.
    """

    file: str
    span_ns: float
    compute_ns: float
    communication_ns: float
    both_ns: float
    memory_ns: float
    parts: tuple[Part, ...]
    buckets: Buckets | None
    notes: tuple[str, ...]

    @property
    def exposed_ns(self) -> float:
        return difference_ns(self.communication_ns, self.both_ns)

    @property
    def idle_ns(self) -> float:
        busy = self.compute_ns + self.communication_ns - self.both_ns + self.memory_ns
        return difference_ns(self.span_ns, busy)

    @property
    def overlap(self) -> float:
        """The part of communication that computation hides; 0 without communication."""
        return self.both_ns / self.communication_ns if self.communication_ns else 0.0


def overlap_of(file: Path) -> Overlap:
    """Reads a trace, plain or gzip. TraceError if it is not one, or has no kernels."""
    spans: dict[str, list[tuple[float, float]]] = {"compute": [], "memory": []}
    named: dict[str, list[tuple[float, float]]] = {}
    notes: list[str] = []
    sums: list[Sum] = []
    for kernel in _kernels(file, notes):
        is_nccl = kernel.kind == "nccl"
        (named.setdefault(kernel.name, []) if is_nccl else spans[kernel.kind]).append(kernel.span)
        if kernel.size_bytes > 0 and function_of(kernel.name) == "AllReduce":
            sums.append(Sum(kernel.size_bytes, *kernel.span))
    compute, memory = (union(spans[kind]) for kind in ("compute", "memory"))
    communication = union([span for each in named.values() for span in each])
    if not len(compute) and not len(communication):
        raise TraceError(f"{file} has no GPU kernels: record with ProfilerActivity.CUDA")
    every = np.concatenate([compute, communication, memory])
    parts = [_part(name, each, compute) for name, each in named.items()]
    busy = union([tuple(one) for one in np.concatenate([compute, communication]).tolist()])
    return Overlap(
        str(file),
        float(every[:, 1].max() - every[:, 0].min()),
        length(compute),
        length(communication),
        shared(communication, compute),
        difference_ns(length(memory), shared(memory, busy)),
        tuple(sorted(parts, key=lambda one: -one.exposed_ns)),
        buckets_of(sums, compute),
        tuple(notes),
    )


def _part(name: str, spans: list[tuple[float, float]], compute: Array) -> Part:
    """One kind of communication, of kernels with these spans."""
    own = union(spans)
    exposed_ns = difference_ns(length(own), shared(own, compute))
    return Part(name, len(spans), length(own), exposed_ns)


@dataclass(frozen=True)
class Kernel:
    """A kernel or a copy. kind: nccl, compute or memory. name, size_bytes: of NCCL's operation.

    span: its begin and end, in ns. size_bytes: the input of one rank; 0: not known.
    """

    kind: str
    span: tuple[float, float]
    name: str = ""
    size_bytes: float = 0.0


def _kernels(file: Path, notes: list[str]) -> Iterator[Kernel]:
    """Each kernel and copy on the GPU in a trace file."""
    seen, has_events = 0, False
    try:
        for key, event in read_object(file, "traceEvents"):
            has_events = has_events or key == "traceEvents"
            found = _kernel(event) if key == "traceEvents" else None
            if found is None:
                continue
            seen += 1
            if seen > EVENTS_MAX:
                notes.append(f"only the first {EVENTS_MAX} kernels were read")
                return
            yield found
    except JsonError as error:
        if not (has_events and error.ends_early):
            raise TraceError(f"{file} is no trace of PyTorch's profiler: {error}") from None
        notes.append("the file ends early: what is missing counts as idle")
    if not has_events:
        raise TraceError(f"{file} is no trace of PyTorch's profiler: it has no traceEvents")


def _kernel(event: Any) -> Kernel | None:
    if not isinstance(event, dict) or event.get("ph") != "X":
        return None
    name, category, args = event.get("name"), event.get("cat"), event.get("args")
    if not isinstance(name, str) or category not in ("kernel", *MEMORY):
        return None
    begin, took = (_number(event.get(key)) for key in ("ts", "dur"))
    if not (math.isfinite(begin) and math.isfinite(took)):
        return None
    span = begin * 1e3, (begin + max(took, 0.0)) * 1e3
    if category in MEMORY:
        return Kernel("memory", span)
    match = NCCL.match(name)
    if match is None:
        return Kernel("compute", span)
    known = args if isinstance(args, dict) else {}
    told = known.get(NAME)
    said = told if isinstance(told, str) and told else match[1] or name
    width = ELEMENT_BYTES.get(nccl_type(str(known.get("dtype"))) or "", 0)
    count = _number(known.get("In msg nelems"))
    size = count * width if math.isfinite(count) else 0.0
    return Kernel("nccl", span, said, size)


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or not -NUMBER_MAX < value < NUMBER_MAX:
        return math.nan
    return float(value)


def union(spans: list[Any]) -> Array:
    """[interval, 2]: the union of spans as intervals in order that do not touch."""
    if not spans:
        return np.zeros((0, 2))
    ordered = np.array(sorted(spans), np.float64).reshape(-1, 2)
    ends = np.maximum.accumulate(ordered[:, 1])
    first = np.concatenate([[True], ordered[1:, 0] > ends[:-1]])
    starts = np.flatnonzero(first)
    return np.stack([ordered[starts, 0], ends[np.append(starts[1:], len(ends)) - 1]], axis=1)


def length(intervals: Array) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def shared(one: Array, other: Array) -> float:
    """The length of the intersection of two unions."""
    both = union([tuple(each) for each in np.concatenate([one, other]).tolist()])
    return difference_ns(length(one) + length(other), length(both))
