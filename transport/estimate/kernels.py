"""How long the kernels of a layer run on a GPU: matrix products, attention, and those between them.

A product of m x k and k x n is computed in tiles, one on each streaming multiprocessor (SM) at a
time, in as many waves as there are tiles for each SM; the last wave may be partly idle (NVIDIA,
"Matrix Multiplication Background User's Guide", sections "Tile Quantization" and "Wave
Quantization", https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication).
A tile also takes the time of `depth` more steps of k, to fill its pipeline and to write its result.
A product takes at least the time in which memory delivers its matrices.

A TPU's matrix unit is an array of multipliers that holds a part of one matrix, while rows of the
other one pass ("How to Scale Your Model", jax-ml.github.io/scaling-book, part 2): the two sizes of
the part are rounded up to those of the array, and the rows to 8.

FlashAttention skips the tiles that a causal mask hides, so half of the operations remain, and
backward computes five products instead of two (Dao, "FlashAttention-2", arXiv 2307.08691, section
3.1). The other kernels (norms, residuals, rotary embedding, activation functions) are limited by
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from transport.estimate.activations import tokens_of
from transport.estimate.gpus import Gpu
from transport.estimate.models import Model
from transport.estimate.plan import Plan

# Rows and columns of the tiles that libraries choose from, and the part of the rate of the largest
# that each reaches: it reads more bytes from the L2 cache for each operation.
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.92), (64, 128, 0.75), (128, 64, 0.75))
CAUSAL = 0.5  # the part of attention's operations that a causal mask leaves
FLASH_BACKWARD = 2.5  # a backward pass has five products where a forward pass has two
# Backward reads and writes for a kernel between products: its input, the gradient of its output,
# and that of its input, where forward has input and output.
BACKWARD_MOVED = 1.5
# Bytes of a logit that the loss moves: it is read in 16 bits, and written and read twice in 32.
LOSS_MOVED = 14.0
# Bytes that softmax reads and writes for each value of the attention matrix; a fused kernel also
# writes the values that dropout leaves, and a byte of its mask.
MATRIX_MOVED = 4.0
MASKED_MOVED = 3.0
FP8_BYTES = 1.0
TPU_ROWS = 8  # rows of a TPU's registers


@dataclass(frozen=True)
class Product:
    """`count` matrix products of m x k and k x n values, in one kernel."""

    m: float
    n: float
    k: float
    count: float = 1.0

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.count

    @property
    def backward(self) -> tuple[Product, Product]:
        """The products of a backward pass: gradients of the input, and of the parameters."""
        return (
            Product(self.m, self.k, self.n, self.count),
            Product(self.k, self.n, self.m, self.count),
        )


def product_ns(product: Product, gpu: Gpu, value_bytes: float, is_fp8: bool = False) -> float:
    """The time of a product: of its waves of tiles, or of its matrices' way through memory.

    is_fp8: both matrices have 8 bits, and the result `value_bytes`. What a tile costs beside its
    steps of k takes the same time then, of which more steps are computed.
    """
    known = gpu.kernels
    m, n, k, count = product.m, product.n, product.k, product.count
    flops, reached = gpu.flops, known.products * gpu.clock
    if is_fp8:
        flops, reached = gpu.fp8_flops, reached * (known.fp8 or 1.0)
    peak, depth = flops * reached, known.depth * flops / gpu.flops
    if gpu.array:
        tiled_s = _passed(product, gpu.array) / peak
    else:
        tiled_s = min(
            _waves(ceil(m / rows) * ceil(n / columns) * count, gpu.sms)
            * (2.0 * rows * columns * (k + depth))
            / (peak * share)
            for rows, columns, share in TILES
        )
    read_bytes = FP8_BYTES if is_fp8 else value_bytes
    moved = count * (read_bytes * (m * k + k * n) + value_bytes * m * n)
    memory_s = moved / (gpu.memory_bytes_per_s * known.memory)
    return max(tiled_s, memory_s) * 1e9 + known.launch_ns


def _passed(product: Product, array: int) -> float:
    """The operations of a product with sizes as an array of multipliers has them.

    Rows that pass take at least as long as the array needs to be loaded. Either matrix is held.
    """
    one, other, k = (_up(size, array) for size in (product.m, product.n, product.k))
    rows = max(_up(product.m, TPU_ROWS), array), max(_up(product.n, TPU_ROWS), array)
    return 2.0 * k * product.count * min(rows[0] * other, rows[1] * one)


def _up(size: float, multiple: int) -> float:
    return ceil(size / multiple) * multiple


def cast_ns(values: float, gpu: Gpu, value_bytes: float) -> float:
    """The time to cast values to FP8: they are read, and written also as their transpose, which
    Hopper's products of backward need (Transformer Engine's cast_transpose)."""
    moved = values * (value_bytes + 2 * FP8_BYTES)
    known = gpu.kernels
    return moved / (gpu.memory_bytes_per_s * known.memory) * 1e9 + known.launch_ns


def _waves(tiles: float, sms: int) -> float:
    """Tiles that the busiest SM computes, times the number of SMs; 0 SMs: not known, no waves."""
    return ceil(tiles / sms) * sms if sms else tiles


def layer_products(model: Model, plan: Plan) -> Iterator[Product]:
    """The products of a layer's forward pass of a microbatch on one GPU, without attention's."""
    tokens, hidden, parts = tokens_of(model, plan), model.hidden, plan.tensor
    if model.attention:  # of an unknown form, as latent attention: as one product
        yield Product(tokens, model.attention / hidden / parts, hidden)
    else:
        kv = (model.kv_heads or model.heads) * model.head_size
        yield Product(tokens, (model.attention_width + 2 * kv) / parts, hidden)
        yield Product(tokens, hidden, model.attention_width / parts)
    # The tokens of a GPU go to the experts of all GPUs that share them, and others come. Tensor
    # parallel GPUs have parts of the tokens, and those that share an expert have all of theirs.
    experts, sharing = model.experts / plan.expert, plan.expert_parts
    routed = tokens * model.routed / experts * sharing / parts
    first = (2 if model.gated else 1) * model.ffn
    yield Product(routed, first / sharing, hidden, experts)
    yield Product(routed, hidden, model.ffn / sharing, experts)
    if model.shared:
        yield Product(tokens, model.shared * first / parts, hidden)
        yield Product(tokens, hidden, model.shared * model.ffn / parts)


def head_product(model: Model, plan: Plan) -> Product:
    return Product(tokens_of(model, plan), model.vocabulary / plan.tensor, model.hidden)


def attention_ns(model: Model, plan: Plan, gpu: Gpu) -> tuple[float, float]:
    """Attention's time in a layer's forward and backward pass."""
    tokens, parts, known = tokens_of(model, plan), plan.tensor, gpu.kernels
    if plan.flash:
        flops = CAUSAL * 4.0 * tokens * model.sequence * model.attention_width / parts
        if gpu.array:  # a head is a size of all products
            flops *= _up(model.head_size, gpu.array) / model.head_size
        # Short sequences have few tiles, and more of them are cut by the mask.
        reached = gpu.flops * gpu.clock * model.sequence / (model.sequence + known.flash_tokens)
        # torch.compile does not change the kernel of attention.
        forward, backward = known.flash["megatron" if plan.framework == "megatron" else "pytorch"]
        forward_ns = flops / (reached * forward) * 1e9
        backward_ns = FLASH_BACKWARD * flops / (reached * backward) * 1e9
        return forward_ns + known.launch_ns, backward_ns + known.launch_ns
    sequences = tokens / model.sequence * model.heads / parts
    length, size = model.sequence, model.head_size
    products = (Product(length, length, size, sequences), Product(length, size, length, sequences))
    each = MATRIX_MOVED + (0.0 if model.gated else MASKED_MOVED)
    moved = sequences * length**2 * each * plan.value_bytes / 2
    moved_ns = moved / (gpu.memory_bytes_per_s * known.memory) * 1e9 + known.launch_ns
    value_bytes = plan.value_bytes
    forward_ns = sum(product_ns(one, gpu, value_bytes) for one in products)
    backward_ns = sum(
        product_ns(each, gpu, value_bytes) for one in products for each in one.backward
    )
    return forward_ns + moved_ns, backward_ns + BACKWARD_MOVED * moved_ns


def between_ns(model: Model, plan: Plan, gpu: Gpu) -> float:
    """The time of the kernels between products in a layer's forward pass.

    Bytes for each token and hidden unit, with values of 16 bits: two norms read and write, 8; two
    residuals read twice and write, 12, with dropout's mask 2 more; rotary embedding reads and
    writes queries and keys, (4 + 4 k) w, if gated; the MLP's activation function reads and writes f
    values, 4 f, or gated reads twice, 6 f; each routed expert's tokens are copied there and back,
    8. k: heads of keys as a part of all, f: hidden units of the MLP as a part of the layer's, w:
    the heads' width, likewise.
    """
    w = model.attention_width / model.hidden
    k = (model.kv_heads or model.heads) / model.heads
    f = model.active * model.ffn / model.hidden
    whole = 20.0 + (0.0 if model.gated else 2.0)
    split = ((4.0 + 4.0 * k) * w + 6.0 * f) if model.gated else 4.0 * f
    routed = 8.0 * model.routed if model.experts > 1 else 0.0
    each = whole / (plan.tensor if plan.sequence else 1) + split / plan.tensor + routed
    moved = each * tokens_of(model, plan) * model.hidden * plan.value_bytes / 2
    known = gpu.kernels
    moved *= known.unfused if plan.framework == "pytorch" else 1.0
    kernels = 4 + 2 * model.gated
    return moved / (gpu.memory_bytes_per_s * known.memory) * 1e9 + kernels * known.launch_ns


def loss_ns(model: Model, plan: Plan, gpu: Gpu) -> float:
    """The time of the loss in forward, and in backward: logits in 32 bits are read and written."""
    moved = LOSS_MOVED * tokens_of(model, plan) * model.vocabulary / plan.tensor
    return moved / (gpu.memory_bytes_per_s * gpu.kernels.memory) * 1e9 + gpu.kernels.launch_ns
