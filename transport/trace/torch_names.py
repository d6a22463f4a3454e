"""PyTorch's names of collectives and datatypes, as its profiler (Kineto) writes them."""

from __future__ import annotations

import re

# NCCL's function -> its names in PyTorch's trace: the event's name without "nccl:", and the event's
# argument `Collective name`
COLLECTIVES = {
    "AllReduce": ("all_reduce", "allreduce"),
    "AllGather": ("_all_gather_base", "_allgather_base"),
    "ReduceScatter": ("_reduce_scatter_base", "_reduce_scatter_base"),
    "Broadcast": ("broadcast", "broadcast"),
    "Reduce": ("reduce", "reduce"),
    "AlltoAll": ("all_to_all", "all_to_all"),
    "AllToAll": ("all_to_all", "all_to_all"),
    "Gather": ("gather", "gather"),
    "Scatter": ("scatter", "scatter"),
    "Send": ("send", "send"),
    "Recv": ("recv", "recv"),
}
# An event's argument `Collective name`, in lower case without underscores -> NCCL's function
FUNCTIONS = {
    "allreduce": "AllReduce",
    "allreducecoalesced": "AllReduce",
    "allgather": "AllGather",
    "allgatherbase": "AllGather",
    "allgathersingle": "AllGather",
    "allgatherintotensor": "AllGather",
    "allgatherintotensorcoalesced": "AllGather",
    "allgathercoalesced": "AllGather",
    "reducescatter": "ReduceScatter",
    "reducescatterbase": "ReduceScatter",
    "reducescattersingle": "ReduceScatter",
    "reducescattertensor": "ReduceScatter",
    "reducescattertensorcoalesced": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "alltoall": "AlltoAll",
    "alltoallv": "AlltoAll",
    "alltoallbase": "AlltoAll",
    "alltoallsingle": "AlltoAll",
    "gather": "Gather",
    "scatter": "Scatter",
    "send": "Send",
    "recv": "Recv",
    "barrier": "Barrier",
    "allreducebarrier": "Barrier",
}
DATATYPES = {
    "ncclInt8": "Char",
    "ncclUint8": "Byte",
    "ncclInt32": "Int",
    "ncclUint32": "UInt32",
    "ncclInt64": "Long",
    "ncclUint64": "UInt64",
    "ncclFloat16": "Half",
    "ncclFloat32": "Float",
    "ncclFloat64": "Double",
    "ncclBfloat16": "BFloat16",
    "ncclFloat8e4m3": "Float8_e4m3fn",
    "ncclFloat8e5m2": "Float8_e5m2",
}
# Other names of NCCL's types, in lower case. PyTorch passes some of its types to NCCL as others of
# the same size.
_TYPES = {
    **{nccl.lower().removeprefix("nccl"): nccl for nccl in DATATYPES},
    **{name.lower(): nccl for nccl, name in DATATYPES.items()},
    "bool": "ncclUint8",
    "float8_e4m3": "ncclFloat8e4m3",
    # Names that C++ gives the types, as in `Input type`.
    "signed char": "ncclInt8",
    "unsigned char": "ncclUint8",
    "unsigned int": "ncclUint32",
    "long int": "ncclInt64",
    "long long": "ncclInt64",
    "unsigned long": "ncclUint64",
}
PAIR = re.compile(r"(send|recv) (\d{1,9})\s*(?:->|<-)\s*(\d{1,9})")
RANKS_WRITTEN = 30  # maximum number of ranks in a text; a longer list is shortened


def function_of(name: str) -> str | None:
    """NCCL's function, from an event's argument `Collective name` or its name without "nccl:"."""
    word = name.split(" ", 1)[0]
    return FUNCTIONS.get(word.replace("_", "").lower())


def nccl_type(name: str) -> str:
    """NCCL's name of a datatype: ncclInt8 for Int8, Char or ncclChar; other names as they are."""
    word = name.lower().removeprefix("torch.").removeprefix("c10::").removeprefix("nccl")
    return _TYPES.get(word, name)


def peers_of(name: str) -> dict[str, int]:
    """The argument with the other rank, from the name of a range: "nccl:send 0->1"."""
    found = PAIR.search(name[:200])
    if found is None:
        return {}
    return {"Dst Rank" if found[1] == "send" else "Src Rank": int(found[3])}


def ranks_text(ranks: list[int]) -> str:
    """The ranks of a group as text, as in PyTorch's `Process Group Ranks`."""
    if len(ranks) <= RANKS_WRITTEN:
        return str(ranks)
    first = ", ".join(map(str, ranks[: RANKS_WRITTEN - 1]))
    return f"[{first}, ..., {ranks[-1]}]"


def elements(function: str, count: int, ranks: int) -> tuple[int, int]:
    """Elements of a rank's input and of its output, from the count of NCCL's call."""
    whole = count * max(ranks, 1)
    if function in ("AllGather", "Gather"):
        return count, whole
    if function in ("ReduceScatter", "Scatter"):
        return whole, count
    if function in ("AlltoAll", "AllToAll"):
        return whole, whole
    return count, count
