"""How long the instructions of an HLO program compute: operations of products, bytes of the rest.

An instruction takes the longer of two times: that of its matrix products and convolutions at the
GPU's rate, and that of the bytes that it reads and writes at the rate of its memory (roofline:
Williams, Waterman, Patterson, CACM 2009). Operations count as XLA counts them
(xla/service/hlo_cost_analysis.cc): two for each multiplication with its addition.
"""

from __future__ import annotations

import re
from collections import Counter
from math import prod

from transport.estimate.gpus import Gpu
from transport.estimate.hlo.shapes import Array, Shape, arrays, bytes_of_shape
from transport.estimate.hlo.text import (
    Computation,
    Instruction,
    Module,
    check_depth,
    number_of,
)

# Instructions that move no data, or whose data others count.
FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "reshape", "after-all"),
    *("partition-id", "replica-id", "opt-barrier", "add-dependency", "domain", "while", "call"),
    *("conditional", "get-dimension-size", "rng-get-state", "infeed", "outfeed"),
    *("send", "recv", "send-done", "recv-done"),
}
PRODUCTS = ("dot", "ragged-dot", "convolution")
FUSIONS = ("fusion", "fusion-start")
# Opcode of other front ends, whose attributes state what text of HLO does not: flops, the bytes
# that are moved, or the time in ns.
GIVEN = "given"
ENDS = ("-done", "-update")
SLICES = {"slice", "dynamic-slice", "gather"}
GEMM = re.compile(r"__cublas\$(?!triangular)")
CONVOLUTION = re.compile(r"__cudnn\$conv\w*")
# Custom calls that mark shardings and placements: they do nothing when the program runs.
MARKS = re.compile(
    r"Sharding|SPMD\w*|xla\.sdy\.\w+|annotate_device_placement|MoveTo\w+|AllocateBuffer|"
    r"AsyncCollective\w+|ConcatBitcast|PinToDevice\w*|LayoutConstraint|AssumeGatherIndicesInBound"
)
_CONTRACTED = re.compile(r'lhs_contracting_dimensions\\?"\s*:\s*\[([^\]]*)\]')
_NUMBER = re.compile(r"[0-9]{1,4}")
_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")


class Costs:
    """The times of the instructions of a module on a GPU.

    unknown: targets of custom calls whose operations are not known. broken: (kind, computation,
    name) of products whose dimension numbers do not fit their operands.
    """

    def __init__(self, module: Module, gpu: Gpu) -> None:
        self._module, self._gpu = module, gpu
        self.unknown: set[str] = set()
        self.broken: set[tuple[str, str, str]] = set()
        # Of computations that fusions call: operations; bytes written, and read of parameters.
        self._products: dict[str, dict[str, int]] = {}
        self._fused: dict[str, tuple[int, dict[int, int]]] = {}

    def ns(self, one: Instruction, within: Computation) -> float:
        """The time of an instruction, without computations that it calls; a fusion's as a whole."""
        if one.opcode == GIVEN and "ns" in one.attributes:
            return float(one.attributes["ns"])
        flops = sum(self.flops(one, within).values())
        return max(self._gpu.ns(flops), self._gpu.ns(0, self.moved_bytes(one, within)))

    def products_ns(self, flops: dict[str, int]) -> float:
        return self._gpu.ns(sum(flops.values()))

    def flops(self, one: Instruction, within: Computation) -> dict[str, int]:
        """Operations of matrix products and convolutions, by type of the first operand."""
        if one.opcode == GIVEN:
            given = int(one.attributes.get("flops", "0"))
            arrays_of = [_first(within.named[name].shape).dtype for name in one.operands]
            kind = next((dtype for dtype in arrays_of if dtype != "token"), "bf16")
            return {kind: given} if given else {}
        if one.opcode in FUSIONS:
            return self._of_computation(self._module.called(one, "calls"))
        count = _product(one, within)
        if count is None and one.opcode in PRODUCTS:
            self.broken.add((one.opcode, within.name, one.name))
        if one.opcode == "custom-call":
            target = one.attributes.get("custom_call_target", "")
            count = _called_product(one, within, target)
            if count is None and not MARKS.fullmatch(target):
                self.unknown.add(target)
        if not count:
            return {}
        return {_first(within.named[one.operands[0]].shape).dtype: count}

    def _of_computation(self, computation: Computation, depth: int = 0) -> dict[str, int]:
        if computation.name not in self._products:
            check_depth(computation, depth)
            found: Counter[str] = Counter()
            for one in computation.instructions:
                if one.opcode in FUSIONS:
                    called = self._module.called(one, "calls")
                    found.update(self._of_computation(called, depth + 1))
                elif one.opcode in (*PRODUCTS, "custom-call"):
                    found.update(self.flops(one, computation))
            self._products[computation.name] = dict(found)
        return self._products[computation.name]

    def moved_bytes(self, one: Instruction, within: Computation) -> int:
        """Bytes that an instruction reads and writes in the GPU's memory."""
        if one.opcode in FREE or one.opcode.endswith(ENDS):
            return 0
        if one.opcode == GIVEN and "bytes" in one.attributes:
            return int(one.attributes["bytes"])
        if one.opcode == "custom-call" and MARKS.fullmatch(
            one.attributes.get("custom_call_target", "")
        ):
            return 0
        sizes = [bytes_of_shape(within.named[name].shape) for name in one.operands]
        if one.opcode in FUSIONS:
            return self._fused_bytes(self._module.called(one, "calls"), sizes)
        out = bytes_of_shape(one.shape)
        if one.opcode in SLICES:
            return 2 * out
        if one.opcode == "copy-start":
            return 2 * sum(sizes)
        if one.opcode in ("dynamic-update-slice", "scatter") and len(sizes) > 1:
            return 2 * (sizes[1] if one.opcode == "dynamic-update-slice" else sum(sizes[1:]))
        return out + sum(sizes)

    def _fused_bytes(self, body: Computation, sizes: list[int]) -> int:
        """Bytes that a fusion reads and writes. sizes: bytes of its operands."""
        if body.name not in self._fused:
            self._fused[body.name] = _written_bytes(body), _sliced_bytes(body)
        written, sliced = self._fused[body.name]
        return written + sum(min(size, sliced.get(at, size)) for at, size in enumerate(sizes))


def _sliced_bytes(body: Computation) -> dict[int, int]:
    """Number of each parameter of a fusion that is only sliced -> bytes of the slices."""
    users: dict[str, list[tuple[Instruction, bool]]] = {}
    for one in body.instructions:
        for place, name in enumerate(one.operands):
            users.setdefault(name, []).append((one, place == 0))
    found = {}
    for one in body.instructions:
        number = number_of(one.literal) if one.opcode == "parameter" else None
        parts = [_part_bytes(user, is_first) for user, is_first in users.get(one.name, [])]
        if number is not None and None not in parts:
            found[number] = sum(part or 0 for part in parts)
    return found


def _part_bytes(user: Instruction, is_first: bool) -> int | None:
    """Bytes that an instruction takes of an operand; None: all. An update in place takes none."""
    if user.opcode in SLICES and is_first:
        return bytes_of_shape(user.shape)
    return 0 if user.opcode == "dynamic-update-slice" and is_first else None


def _written_bytes(body: Computation) -> int:
    """Bytes that a fusion writes; of an update in place, the update."""
    root = body.root
    assert root is not None
    results = [body.named[name] for name in root.operands] if root.opcode == "tuple" else [root]
    total = 0
    for one in results:
        is_update = one.opcode == "dynamic-update-slice" and len(one.operands) > 1
        total += bytes_of_shape(body.named[one.operands[1]].shape if is_update else one.shape)
    return total


def _product(one: Instruction, within: Computation) -> int | None:
    """The operations of a dot or a convolution; None: neither, or its dimensions are wrong."""
    if one.opcode not in PRODUCTS:
        return None
    left, right = (_first(within.named[name].shape) for name in one.operands[:2])
    if one.opcode == "convolution":
        return _convolution(one, _first(one.shape), right)
    out = _first(one.shape)
    contracted = _contracted(left, one.attributes.get("lhs_contracting_dims", ""))
    if contracted is None or (one.opcode == "dot" and not _is_dot(one, out, left, right)):
        return None
    return 2 * out.elements * contracted


def _is_dot(one: Instruction, out: Array, left: Array, right: Array) -> bool:
    """Whether a dot's dimension numbers fit its operands, and its result has their elements."""
    texts = [
        one.attributes.get(f"{side}_{kind}_dims", "")
        for kind in ("contracting", "batch")
        for side in ("lhs", "rhs")
    ]
    sizes = [_contracted(array, text) for array, text in zip((left, right) * 2, texts, strict=True)]
    if None in sizes or sizes[0] != sizes[1] or sizes[2] != sizes[3]:
        return False
    contracted, batch = sizes[0] or 0, sizes[2] or 0
    each = contracted * contracted * batch
    return left.elements * right.elements == out.elements * each or not each


def _called_product(one: Instruction, within: Computation, target: str) -> int | None:
    """The operations of a custom call of cuBLAS or cuDNN; None: not known."""
    config = _CONTRACTED.search(one.attributes.get("backend_config", ""))
    if GEMM.match(target) and config is not None and one.operands:
        left = _first(within.named[one.operands[0]].shape)
        contracted = _contracted(left, config[1])
        return None if contracted is None else 2 * _first(one.shape).elements * contracted
    if not CONVOLUTION.fullmatch(target) or len(one.operands) < 2:
        return None
    result = _first(one.shape)
    left, right = (_first(within.named[name].shape) for name in one.operands[:2])
    if "BackwardFilter" in target:
        return _convolution(one, right, result)
    return _convolution(one, left if "BackwardInput" in target else result, right)


def _convolution(one: Instruction, out: Array, kernel: Array) -> int | None:
    """Two operations for each output and each weight that it depends on."""
    labels = _LABELS.fullmatch(one.attributes.get("dim_labels", ""))
    place = labels[2].find("o") if labels is not None else -1
    if not 0 <= place < len(kernel.dims):
        return None
    weights = prod(size for at, size in enumerate(kernel.dims) if at != place)
    return 2 * out.elements * weights


def _contracted(array: Array, text: str) -> int | None:
    """The product of an array's dimensions with the numbers in a text, such as {1,2}.

    None: the array has no such dimensions.
    """
    numbers = [one.strip(' "\\') for one in text.strip("{} ").split(",") if one.strip()]
    if not all(_NUMBER.fullmatch(one) for one in numbers):
        return None
    places = [int(one) for one in numbers]
    if len(set(places)) < len(places) or any(at >= len(array.dims) for at in places):
        return None
    return prod(array.dims[at] for at in places)


def _first(shape: Shape) -> Array:
    return next(arrays(shape), Array("token", ()))
