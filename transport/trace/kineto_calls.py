"""Puts together the events of one collective in traces of PyTorch's profiler.

A call of a collective is an operator of PyTorch (`c10d::allreduce_`), in it the record of the call
(`record_param_comms`), in it a named range (`nccl:all_reduce`), in it the launch of the kernel, all
on one thread. Versions before 2.2 have sizes only as the shapes of the tensors (`record_shapes`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

from transport.trace.torch_names import peers_of

Event = dict[str, Any]
INTO, OUT, SIZE = "In msg nelems", "Out msg nelems", "Group size"
PEERS = ("Dst Rank", "Src Rank", "Root Rank")
# Operators whose first two tensors are the output and the input.
OUTPUT_FIRST = (
    *("c10d::_allgather_base_", "c10d::_reduce_scatter_base_", "c10d::alltoall_base_"),
    *("c10d::allgather_into_tensor_", "c10d::reduce_scatter_tensor_"),
)
LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "hipLaunch", "hipExtLaunch")
_NO_TENSORS = ("", "Scalar", "ScalarList", "GenericList")
ELEMENTS_MAX = 1 << 62


def args_of(event: Event) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def time_of(event: Event, name: str) -> float:
    """The field of this name in microseconds; infinity if it is not a valid number."""
    value = event.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e16:
        return math.inf
    return value


def tensors(args: dict[str, Any]) -> list[tuple[int, str]]:
    """Elements and datatype of each tensor in `Input Dims`; the datatype "" is not told."""
    shapes = args.get("Input Dims", args.get("Input dims"))
    types = args.get("Input type")
    if not isinstance(shapes, list):
        return []
    if not isinstance(types, list) or len(types) != len(shapes):
        types = ["TensorList" if shape else "" for shape in shapes]
    found = []
    for shape, type_ in zip(shapes, types, strict=True):
        if not isinstance(type_, str) or type_ in _NO_TENSORS:
            continue
        in_list = type_ == "TensorList"
        if in_list and (not isinstance(shape, list) or not shape):
            continue
        parts = shape if in_list and isinstance(shape[0], list) else [shape]
        counts = [_elements(one) for one in parts]
        if any(one is None for one in counts):
            return []
        found.append((sum(one or 0 for one in counts), "" if in_list else type_))
    return found


def _elements(shape: Any) -> int | None:
    """The elements of a tensor of this shape; None: it is no shape."""
    if not isinstance(shape, list) or len(shape) > 64:
        return None
    if any(type(one) is not int or not 0 <= one < ELEMENTS_MAX for one in shape):
        return None
    count = prod(shape)
    return count if count < ELEMENTS_MAX else None


def describe(call: Event, around: Iterable[Event]) -> None:
    """Adds what a call's arguments lack: elements, datatype, group size, and the peer.

    around: the record and the operator that the call is in, the innermost first.
    """
    args = args_of(call)
    if not any(name in args for name in PEERS):
        args.update(peers_of(str(call.get("name", ""))))
    if INTO in args:
        return
    own: list[tuple[int, str]] = tensors(args)
    for one in around:
        found = tensors(args_of(one))
        if one.get("name") in OUTPUT_FIRST and len(found) >= 2:
            own = own or [found[1]]
            args[OUT] = found[0][0]
        own = own or found
    if not own:
        return
    args[INTO] = sum(count for count, _ in own)
    kinds = {kind for _, kind in own}
    if len(kinds) == 1 and "" not in kinds:
        args.setdefault("dtype", kinds.pop())
    _add_size(call, args)


def _add_size(call: Event, args: dict[str, Any]) -> None:
    """The size of the group is how many times the whole buffer is as large as a rank's part."""
    name = str(call.get("name", ""))
    ends = args[INTO], args.get(OUT)
    if "gather" in name:
        part, whole = ends
    elif "scatter" in name:
        whole, part = ends
    else:
        return
    if part and whole and whole % part == 0:
        args.setdefault(SIZE, whole // part)


def matched(
    calls: list[Event], around: list[Event], launches: Iterable[tuple[Any, Any, float, int]]
) -> dict[int, Event]:
    """Completes the calls' arguments; returns the launches' correlations -> their calls.

    around: events that can contain a call. launches: process, thread, time and correlation.
    """
    threads: dict[tuple[Any, Any], list[tuple[float, float, int, Any]]] = {}
    for rank, events in ((0, around), (1, calls)):
        for one in events:
            begin, took = time_of(one, "ts"), time_of(one, "dur")
            if math.isfinite(begin) and math.isfinite(took):
                entry = (begin, -(begin + took), rank, one)
                threads.setdefault(_thread(one.get("pid"), one.get("tid")), []).append(entry)
            elif rank == 1:
                describe(one, ())
    for pid, tid, time, correlation in launches:
        entries = threads.get(_thread(pid, tid))
        if entries is not None:
            entries.append((time, -time, 2, correlation))
    found: dict[int, Event] = {}
    for entries in threads.values():
        found.update(_nested(sorted(entries, key=lambda entry: entry[:3])))
    return found


def _thread(pid: Any, tid: Any) -> tuple[str, str]:
    return (str(pid), str(tid))


def _nested(entries: list[tuple[float, float, int, Any]]) -> Iterator[tuple[int, Event]]:
    """Yields the launches of one thread with the calls that they are in."""
    open_: list[tuple[float, int, Event]] = []
    inside: dict[int, Event] = {}  # id of an event around a call -> the call
    for begin, minus_end, kind, one in entries:
        while open_ and open_[-1][0] < begin:
            open_.pop()
        if kind < 2:
            if kind == 1:
                outer = [event for _, rank, event in reversed(open_) if rank == 0]
                # Shapes of an event around several calls are not those of one of them.
                describe(one, [event for event in outer if id(event) not in inside])
                inside |= {id(event): one for event in outer}
            open_.append((-minus_end, kind, one))
            continue
        for _, rank, event in reversed(open_):
            call = event if rank == 1 else inside.get(id(event))
            if call is not None:
                yield one, call
                break
