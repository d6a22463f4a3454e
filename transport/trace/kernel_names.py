"""What names of NCCL's kernels tell: function, algorithm, and the datatype of reductions."""

from __future__ import annotations

import re
from dataclasses import dataclass

KERNEL = re.compile(r"nccl(?:Dev)?Kernel_?(\w*)")
# Words for algorithms in names of kernels, in the order in which NCCL joins them (NVLS_TREE).
ALGORITHMS = ("COLLNET", "NVLS", "PAT", "TREE", "DIRECT", "CHAIN", "RING")
FUNCTIONS = {
    one.upper(): one
    for one in (
        *("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AlltoAll"),
        *("Gather", "Scatter"),
    )
}
_REDUCTIONS = ("AllReduce", "ReduceScatter", "Reduce")
# Words for datatypes: those since NCCL 2.19, then those of C++ that earlier versions used.
_TYPES = {
    "I8": "ncclInt8",
    "U8": "ncclUint8",
    "I32": "ncclInt32",
    "U32": "ncclUint32",
    "I64": "ncclInt64",
    "U64": "ncclUint64",
    "F16": "ncclFloat16",
    "F32": "ncclFloat32",
    "F64": "ncclFloat64",
    "BF16": "ncclBfloat16",
    "F8E4M3": "ncclFloat8e4m3",
    "F8E5M2": "ncclFloat8e5m2",
    "INT8_T": "ncclInt8",
    "UINT8_T": "ncclUint8",
    "INT32_T": "ncclInt32",
    "UINT32_T": "ncclUint32",
    "INT64_T": "ncclInt64",
    "UINT64_T": "ncclUint64",
    "HALF": "ncclFloat16",
    "FLOAT": "ncclFloat32",
    "DOUBLE": "ncclFloat64",
    "__NV_BFLOAT16": "ncclBfloat16",
}


@dataclass(frozen=True, slots=True)
class KernelName:
    """function: None for SendRecv, which may be sends, receives or an AlltoAll.

    algorithm: "" if not told. RING may also be NVLS, CollNet or PAT, and the kernel may use another
    protocol than that of its name, because NCCL runs several in one kernel
    (src/device/generate.py, best_kernel). datatype: of reductions, else None.
    """

    function: str | None
    algorithm: str
    datatype: str | None


def kernel_name(name: str) -> KernelName | None:
    """Parses the name of a kernel, demangled or short; None: it is no kernel of NCCL."""
    found = KERNEL.match(name)
    if found is None:
        return None
    text = found[1].upper()
    words = text.split("_")
    function = FUNCTIONS.get(words[0])
    algorithm = "_".join(word for word in ALGORITHMS if word in words)
    datatype = None
    if function in _REDUCTIONS:
        ends = (type_ for word, type_ in _TYPES.items() if f"_{word}_" in f"{text}_")
        datatype = next(ends, None)
    return KernelName(function, algorithm if function else "", datatype)
