"""Joins NCCL's NVTX ranges with the kernels that they launch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from transport.trace.kernel_names import KernelName

# NVTX range -> NCCL's function
FUNCTIONS = {
    f"nccl{one}": one
    for one in (
        *("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AlltoAll", "Gather"),
        *("Scatter", "Send", "Recv"),
    )
} | {"ncclBcast": "Broadcast"}
GROUP_START, GROUP_END = "ncclGroupStart", "ncclGroupEnd"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of NCCL. stream: its number, and the GPU if not 0. launched: thread and time."""

    start_ns: int
    stop_ns: int
    name: KernelName
    stream: str
    launched: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Range:
    """An NVTX range of NCCL. payload: its fields by NCCL's names."""

    start_ns: int
    stop_ns: int
    name: str
    thread: int
    payload: dict[str, int]


@dataclass(slots=True)
class Call:
    """A call of NCCL with its kernels; begin_ns, end_ns: of the call on the CPU."""

    function: str
    begin_ns: int
    end_ns: int
    payload: dict[str, int]
    kernels: list[Kernel] = field(default_factory=list)


def calls_of(ranges: list[Range], kernels: list[Kernel]) -> tuple[list[Call], list[Kernel]]:
    """The calls in the order of their begin, and the kernels of no known call.

    A kernel belongs to the range in which it was launched. One that ncclGroupEnd launches belongs
    to the group's first call of its function without a kernel. A kernel outside of all ranges, as
    of a captured graph, is a call of its own if its name tells the function.
    """
    threads: dict[int, list[tuple[int, int, int, Range | Kernel]]] = {}
    for one in ranges:
        threads.setdefault(one.thread, []).append((one.start_ns, 0, -one.stop_ns, one))
    outside = []
    for kernel in kernels:
        if kernel.launched is None or kernel.launched[0] not in threads:
            outside.append(kernel)
        else:
            thread, at = kernel.launched
            threads[thread].append((at, 1, 0, kernel))
    calls: list[Call] = []
    for entries in threads.values():
        entries.sort(key=lambda entry: entry[:3])
        found, rest = _of_thread(entry[3] for entry in entries)
        calls += found
        outside += rest
    alone = []
    for kernel in outside:
        if kernel.name.function is None:
            alone.append(kernel)
            continue
        at = kernel.launched[1] if kernel.launched is not None else kernel.start_ns
        calls.append(Call(kernel.name.function, at, at, {}, [kernel]))
    calls.sort(key=lambda call: call.begin_ns)
    return calls, alone


def _of_thread(events: Iterable[Range | Kernel]) -> tuple[list[Call], list[Kernel]]:
    """The calls of one thread, from its ranges and launches in the order of time."""
    calls: list[Call] = []
    outside: list[Kernel] = []
    group: list[Call] = []  # calls that the next ncclGroupEnd launches
    depth = 0
    until_ns, own = -1, None  # end of the last range, and its call
    for one in events:
        if isinstance(one, Kernel):
            at = one.launched[1] if one.launched is not None else 0
            call = own if own is not None else _first(group, one)
            if at > until_ns or call is None:
                outside.append(one)
            else:
                call.kernels.append(one)
        elif one.name in FUNCTIONS:
            own = Call(FUNCTIONS[one.name], one.start_ns, one.stop_ns, one.payload)
            if depth == 0:
                group.clear()
            group.append(own)
            calls.append(own)
            until_ns = one.stop_ns
        elif one.name == GROUP_START:
            if depth == 0:
                group.clear()
            depth += 1
            own = None
        elif one.name == GROUP_END:
            depth = max(depth - 1, 0)
            own, until_ns = None, one.stop_ns
    return calls, outside


def _first(group: list[Call], kernel: Kernel) -> Call | None:
    """The first call of a group that has no kernel, of the kernel's function if it tells it."""
    function = kernel.name.function
    fits = [
        one
        for one in group
        if one.function == function
        or (function is None and one.function in ("Send", "Recv", "AlltoAll"))
    ]
    return next((one for one in fits if not one.kernels), fits[0] if fits else None)
