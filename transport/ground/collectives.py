"""Sizes of NCCL's datatypes, and how many bytes a collective moves, as nccl-tests counts."""

from __future__ import annotations

ELEMENT_BYTES = {
    "ncclInt8": 1,
    "ncclUint8": 1,
    "ncclFloat8e4m3": 1,
    "ncclFloat8e5m2": 1,
    "ncclFloat16": 2,
    "ncclBfloat16": 2,
    "ncclInt32": 4,
    "ncclUint32": 4,
    "ncclFloat32": 4,
    "ncclInt64": 8,
    "ncclUint64": 8,
    "ncclFloat64": 8,
}
# Collectives whose argument `count` is one rank's part, so the whole buffer is `ranks` times as
# large.
PER_RANK = ("AllGather", "ReduceScatter", "AlltoAll", "AllToAll", "Gather", "Scatter")


def whole_bytes(function: str, bytes_: int, ranks: int) -> int:
    """The size of an operation as nccl-tests states it; `bytes_`: the size of one rank's call."""
    return bytes_ * ranks if function in PER_RANK else bytes_


def bus_factor(function: str, ranks: int) -> float:
    """Bus bandwidth divided by algorithm bandwidth, as in nccl-tests (PERFORMANCE.md).

    function: NCCL's name, or that of estimates and benchmarks, such as all_reduce.
    """
    name = function.replace("_", "").lower()
    if ranks < 2:
        return 1.0
    if name == "allreduce":
        return 2 * (ranks - 1) / ranks
    if name in (one.lower() for one in PER_RANK):
        return (ranks - 1) / ranks
    return 1.0
