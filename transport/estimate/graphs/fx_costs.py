"""Floating-point operations of ATen's matrix products, convolutions and attention.

Counts are those of torch.utils.flop_counter: two for each multiplication with its addition; here,
attention with a causal mask counts half.
"""

from __future__ import annotations

from math import prod
from typing import Any

from transport.estimate.graphs.fx_text import Ref, Statement
from transport.estimate.hlo.shapes import Array

# Operation -> the place of the left factor, whose last dimension is summed over.
PRODUCTS = {
    **dict.fromkeys(("mm", "bmm", "matmul", "linear", "mv", "dot", "_scaled_mm", "_grouped_mm"), 0),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "_addmm_activation"), 1),
}
# Attention -> the place of the queries, and of is_causal; keys and values follow the queries.
ATTENTION = {
    "scaled_dot_product_attention": (0, 5),
    "_scaled_dot_product_flash_attention": (0, 4),
    "_scaled_dot_product_flash_attention_for_cpu": (0, 4),
    "_scaled_dot_product_efficient_attention": (0, 6),
    "_scaled_dot_product_cudnn_attention": (0, 6),
    "_scaled_dot_product_flash_attention_backward": (1, 11),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (1, 7),
    "_scaled_dot_product_efficient_attention_backward": (1, 11),
    "_scaled_dot_product_cudnn_attention_backward": (1, 14),
}


def flops_of(name: str, one: Statement, shapes: dict[str, Array]) -> int | None:
    """Operations of an ATen operation without its namespace; None: it has no products.

    KeyError: a shape that is needed is not known.
    """
    if name in PRODUCTS:
        out = _out(one)
        left = _shape(one, PRODUCTS[name], shapes)
        return 2 * out.elements * (left.dims[-1] if left.dims else 1)
    if name in ATTENTION:
        return _attention(name, one, shapes)
    if name in ("convolution", "_convolution", "conv1d", "conv2d", "conv3d"):
        source, weights = (_shape(one, place, shapes) for place in (0, 1))
        is_transposed = name.startswith(("conv", "_conv")) and _argument(one, 6) is True
        size = source.elements if is_transposed else _out(one).elements
        return 2 * size * prod(weights.dims[1:])
    if name == "convolution_backward":
        gradient, source, weights = (_shape(one, place, shapes) for place in (0, 1, 2))
        size = source.elements if _argument(one, 7) is True else gradient.elements
        mask = _argument(one, 10)
        wanted = sum(bool(each) for each in mask[:2]) if isinstance(mask, list) else 2
        return wanted * 2 * size * prod(weights.dims[1:])
    return None


def _attention(name: str, one: Statement, shapes: dict[str, Array]) -> int:
    """Two products in forward; in backward five, one of them is that of forward again."""
    place, mask = ATTENTION[name]
    query, key, value = (_shape(one, place + at, shapes) for at in range(3))
    if min(len(query.dims), len(key.dims), len(value.dims)) < 2:
        raise KeyError(one.name)
    pairs = query.elements // max(query.dims[-1], 1) * key.dims[-2]
    of_keys, of_values = (3, 2) if place else (1, 1)
    count = 2 * pairs * (of_keys * query.dims[-1] + of_values * value.dims[-1])
    is_causal = one.keywords.get("is_causal", _argument(one, mask)) is True
    return count // 2 if is_causal else count


def _out(one: Statement) -> Array:
    if one.shape is None:
        raise KeyError(one.name)
    return one.shape


def _argument(one: Statement, place: int) -> Any:
    return one.arguments[place] if place < len(one.arguments) else None


def _shape(one: Statement, place: int, shapes: dict[str, Array]) -> Array:
    found = _argument(one, place)
    if not isinstance(found, Ref):
        raise KeyError(one.name)
    return shapes[found.name]
