"""Times that a GPU computes in a step of training: from its peak, or as measured on one GPU."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from transport.estimate.activations import (
    attention_share,
    layer_activations,
    repeated_products,
    tokens_of,
)
from transport.estimate.gpus import Gpu
from transport.estimate.kernels import (
    BACKWARD_MOVED,
    Product,
    attention_ns,
    between_ns,
    cast_ns,
    head_product,
    layer_products,
    loss_ns,
    product_ns,
)
from transport.estimate.models import Model
from transport.estimate.plan import Plan, PlanError
from transport.estimate.samples import RESULT_BYTES_MAX
from transport.ground.regular import read_text

BACKWARD = 2.0  # a backward pass has twice the operations of a forward pass
MOVED = 2.0  # each activation is written once and read once
# Bytes that Adam in mixed precision reads and writes for a parameter: gradient, master copy and two
# moments in 4 bytes, read and written, and the parameter written in 2.
STATE_BYTES_MOVED = 4 + 2 * (4 + 4 + 4) + 2
# Times that a file of measurements may leave out, with their defaults.
OPTIONAL = {
    "copy_ns": 0.0,
    "embedding_forward_ns": 0.0,
    "embedding_backward_ns": 0.0,
    "host_ns": 0.0,
    "repeated_ns": 0.0,
}
COPIED = 2.0  # a byte that is copied is read and written
# Sizes of a model that decide the time of a layer; a measured model may differ in other sizes.
SIZES = ("hidden", "heads", "ffn", "vocabulary", "sequence")
TIME_NS_MAX = 1e15
REASONS_MAX = 4  # an error message says of at most this many rows why they do not fit


class ComputationError(ValueError):
    """A file that has no measured computation for the model."""


@dataclass(frozen=True)
class Computation:
    """Times of one microbatch on one GPU.

    forward_ns, backward_ns: of a layer. embedding_*: before the first layer. head_*: logits and
    loss. update_ns: of the optimizer, for each parameter that it updates. copy_ns: of a byte that
    is copied from one place of the GPU's memory to another. host_ns: what the host needs to launch
    the kernels of a microbatch. repeated_ns: of what backward runs again of a layer's forward pass;
    0: its part of forward_ns by operations.
    """

    forward_ns: float
    backward_ns: float
    head_forward_ns: float
    head_backward_ns: float
    update_ns: float
    copy_ns: float = 0.0
    embedding_forward_ns: float = 0.0
    embedding_backward_ns: float = 0.0
    host_ns: float = 0.0
    repeated_ns: float = 0.0


def of_gpu(model: Model, plan: Plan, gpu: Gpu) -> Computation:
    """The times that follow from the GPU's peak and the rate of its memory.

    Without an efficiency, each product's share of the peak follows from its sizes (kernels.py).
    """
    if plan.dtype == "fp8" and not gpu.fp8_flops:
        raise PlanError(
            f"dtype: fp8: the profile of {gpu.name} has no rate in FP8, which is dense.fp8 there"
        )
    if gpu.efficiency is not None:
        return _at_efficiency(model, plan, gpu)
    products, head = list(layer_products(model, plan)), head_product(model, plan)
    forward_ns, backward_ns = attention_ns(model, plan, gpu)
    between = between_ns(model, plan, gpu)
    is_fp8 = plan.dtype == "fp8"
    repeated_ns = 0.0
    if plan.kept is not None:
        products_ns = _products_ns(products, plan, gpu, is_fp8)
        repeated_ns = _repeated_ns(model, plan, products_ns, forward_ns, between)
    forward_ns += between + _products_ns(products, plan, gpu, is_fp8)
    backward_ns += BACKWARD_MOVED * between
    gradients = [each for one in products for each in one.backward]
    backward_ns += _products_ns(gradients, plan, gpu, is_fp8)
    if is_fp8:  # inputs, and gradients of outputs; parameters are cast once a step
        value_bytes = plan.value_bytes
        forward_ns += sum(cast_ns(one.count * one.m * one.k, gpu, value_bytes) for one in products)
        backward_ns += sum(cast_ns(one.count * one.m * one.n, gpu, value_bytes) for one in products)
    memory_bytes_per_s = gpu.memory_bytes_per_s * gpu.kernels.memory
    return Computation(
        forward_ns,
        backward_ns,
        _products_ns([head], plan, gpu) + loss_ns(model, plan, gpu),
        _products_ns(head.backward, plan, gpu) + loss_ns(model, plan, gpu),
        STATE_BYTES_MOVED / memory_bytes_per_s * 1e9,
        COPIED / memory_bytes_per_s * 1e9 * gpu.kernels.copies,
        repeated_ns=repeated_ns,
    )


def _repeated_ns(
    model: Model, plan: Plan, products_ns: float, attention: float, between: float
) -> float:
    """The time of what runs again of a layer: its products, attention, and all between them."""
    again = repeated_products(model, plan.kept or ())
    attended = again.pop("context", None) is not None
    linear = model.layer_flops(1.0) * (1.0 - attention_share(model))
    return products_ns * sum(again.values()) / linear + attention * attended + between


def _products_ns(products: Iterable[Product], plan: Plan, gpu: Gpu, is_fp8: bool = False) -> float:
    return sum(product_ns(one, gpu, plan.value_bytes, is_fp8) for one in products)


def _at_efficiency(model: Model, plan: Plan, gpu: Gpu) -> Computation:
    """The times if all products, attention's among them, reach the same part of the peak."""
    tokens = tokens_of(model, plan)
    moved = MOVED * layer_activations(model, plan)
    flops = model.layer_flops(tokens) / plan.tensor
    if plan.dtype == "fp8":  # linear parts take less, as if they had fewer operations
        attention = 4.0 * model.sequence * model.attention_width * tokens / plan.tensor
        flops = attention + (flops - attention) * gpu.flops / gpu.fp8_flops
    layer_ns = gpu.ns(flops, moved)
    head_ns = gpu.ns(model.head_flops(tokens) / plan.tensor)
    update_ns = STATE_BYTES_MOVED / gpu.memory_bytes_per_s * 1e9
    copy_ns = COPIED / gpu.memory_bytes_per_s * 1e9
    return Computation(
        layer_ns, BACKWARD * layer_ns, head_ns, BACKWARD * head_ns, update_ns, copy_ns
    )


def measured(file: Path, model: Model, plan: Plan) -> Computation:
    """The model's computation from a result of `python -m bench step`.

    Prefers a measurement with the plan's wrapper (DDP or FSDP) on one GPU. ComputationError: the
    file has none for this model. PlanError: the plan splits layers, which were measured whole.
    """
    for name in ("tensor", "context"):
        if getattr(plan, name) > 1:
            raise PlanError(
                f"{name}: {getattr(plan, name)}: the measured GPU computed whole layers: give 1"
            )
    rows = _rows(file)
    wrapped = "alone" if plan.data == 1 else "fsdp" if plan.zero == 3 else "ddp"
    wanted = _wanted(model, plan)
    reasons = []
    for row in sorted(rows, key=lambda row: row.get("parallel") != wrapped):
        kind = row.get("parallel", wrapped)
        other = [
            f"{key} {_given(row, key)}, not {value}"
            for key, value in wanted.items()
            if _given(row, key) != value
        ]
        other += [] if kind in (wrapped, "alone") else [f"wrapped as {kind}"]
        if not other:
            return _computation(row, model)
        reasons.append(f"that of {row.get('model', '?')} has {', '.join(other)}")
    raise ComputationError(
        f"{file} has no computation of {model.name} with microbatches of {plan.micro_batch}: "
        f"{'; '.join(reasons[:REASONS_MAX]) or 'it has no rows'}: python -m bench step measures it "
        "(in the repository, not in the wheel)"
    )


def _wanted(model: Model, plan: Plan) -> dict[str, Any]:
    """The properties of model and plan that decide the time of a layer: name -> value."""
    sizes = {size: getattr(model, size) for size in SIZES}
    kinds = {
        "kv_heads": model.kv_heads or model.heads,
        "gated": model.gated,
        "experts": model.experts,
        "active": model.active,
        "attention": model.attention,
        "shared": model.shared,
        "width": model.attention_width,
        "micro_batch": plan.micro_batch,
        "flash": plan.flash,
        "value_bytes": plan.value_bytes,
        "dtype": plan.dtype,
    }
    return sizes | kinds


def _given(row: dict[str, Any], key: str) -> Any:
    """The row's value for a key; if the row has none, that of GPT-2 in PyTorch."""
    usual = {
        "kv_heads": row.get("heads"),
        "gated": False,
        "experts": 1,
        "active": 1,
        "attention": 0,
        "shared": 0,
        "width": row.get("hidden"),
        "flash": True,
        "value_bytes": 2,
        "dtype": "bf16",
    }
    return row.get(key, usual.get(key))


def _computation(row: dict[str, Any], model: Model) -> Computation:
    names = [one.name for one in fields(Computation)]
    times = {name: _time({**OPTIONAL, **row}, name) for name in names}
    layers = row.get("layers", model.layers)
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 1:
        raise ComputationError(f"layers: {layers!r}: must be a number of at least 1")
    times["host_ns"] *= model.layers / layers
    if times["forward_ns"] + times["backward_ns"] == 0:
        raise ComputationError("forward_ns, backward_ns: both are 0, but a layer takes time")
    return Computation(**times)


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(read_text(file, RESULT_BYTES_MAX))
        rows = [row for row in found["rows"] if isinstance(row, dict) and "forward_ns" in row]
        if not isinstance(found["rows"], list) or (found["rows"] and not rows):
            raise TypeError
    except OSError as error:
        raise ComputationError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ComputationError(
            f"{file} is not a result of python -m bench step: give its JSON"
        ) from None
    return rows


def _time(row: dict[str, Any], key: str) -> float:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ComputationError(f"{key}: expected a number, not {value!r}")
    if not 0 <= value <= TIME_NS_MAX:
        raise ComputationError(f"{key}: {value}: must be 0 to {TIME_NS_MAX:g}")
    return float(value)
