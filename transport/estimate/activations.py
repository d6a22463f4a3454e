"""Bytes of a layer's activations: what backward needs, and what of it recomputation keeps.

Each tensor is counted as in Korthikanti et al., "Reducing Activation Recomputation in Large
Transformer Models" (arXiv 2205.05198, section 4), in bytes for each token and hidden unit, with
values of 16 bits. a: heads, s: tokens of a sequence, h: hidden units; k: heads of keys and values
as a part of a; f: hidden units of the MLP as a part of h. Heads are taken to have h values in all;
if they have others, what is of attention has so many times as much.

| tensor                                       | GPT      | gated (Llama)          | split   |
|----------------------------------------------|----------|------------------------|---------|
| inputs of two norms, of attention, of the MLP| 8        | 8                      | (SP)    |
| masks of two dropouts                        | 2        | none                   | (SP)    |
| queries; keys and values                     | 2 + 4k   | 2 + 4k                 | TP      |
| attention's output                           | 2        | 2                      | TP      |
| around the MLP's activation function         | 2f + 2f  | 8f: gate, up, the      | TP      |
|                                              |          | gate's SiLU, a product |         |
| attention's matrix, without FlashAttention   | 5 as / h | 2 as / h: no dropout   | TP      |

TP: split by tensor parallelism; (SP): only with sequence parallelism. With k = 1 and f = 4 the
sums are the paper's: 10 + 24/t + 5as/(ht), and (34 + 5as/h)/t with sequence parallelism. Grouped
queries make k smaller. FlashAttention keeps no matrix (Dao et al. 2022, section 3), only a sum for
each row, which is below 0.1 % and left out. A kernel that fuses SwiGLU, as Megatron's and that of
torch.compile do, computes the SiLU again: 6f. Each of several experts' tokens is copied to its
experts and back: 4 for each routed expert, and f counts all active experts. GPUs that share an
expert have all of its inputs.
"""

from __future__ import annotations

from transport.estimate.models import Model
from transport.estimate.plan import Plan

SHARED = 8  # inputs of norms, of attention and of the MLP
MASKS = 2  # of two dropouts, a byte for each value
MATRIX, MATRIX_GATED = 5, 2  # the matrix with its dropout and mask, and without
BORDER = 2  # a tensor between layers, which is all that full recomputation keeps


def layer_activations(model: Model, plan: Plan) -> float:
    """Bytes of all activations of a layer, of one microbatch on one GPU."""
    shared = SHARED + (0 if model.gated else MASKS)
    split = (4 + 4 * _kv_share(model)) * _width_share(model) + _around_mlp(model, plan)
    whole = _bytes(model, plan, shared, split)
    return whole + (0.0 if plan.flash else _matrix(model, plan))


def kept_activations(model: Model, plan: Plan) -> float:
    """Bytes of a layer's activations that are kept until backward.

    Selective recomputation of attention keeps all but the matrix (Korthikanti et al., section 5:
    34/t); of operators, what torchtitan's policy for torch.utils.checkpoint keeps: the layer's
    input, attention's output and every other matrix product, which are those of the queries, the
    values, the MLP's first one and its last one; full recomputation keeps the layer's input.
    """
    if plan.recompute:
        return _bytes(model, plan, BORDER, 0.0)
    if plan.kept is not None:
        return _bytes(model, plan, *_kept_by_maxtext(model, plan.kept))
    if plan.selective == "operators":
        first = 2 * _ffn_share(model)
        values = 2 * _kv_share(model) if model.gated else 4 * _kv_share(model)
        attention = (2 + values + 2) * _width_share(model)
        return _bytes(model, plan, BORDER + (2 if model.gated else 0), attention + first)
    whole = layer_activations(model, plan)
    if plan.selective == "attention" and not plan.flash:
        whole -= _matrix(model, plan)
    return whole


def working_activations(model: Model, plan: Plan) -> float:
    """Bytes of a layer's activations that are there at once while XLA computes it again.

    Attention and the MLP one after the other: XLA orders instructions so that little is alive.
    """
    attention = _bytes(model, plan, 2 * BORDER, 4 + 4 * _kv_share(model))
    attention += 0.0 if plan.flash else _matrix(model, plan)
    return max(attention, _bytes(model, plan, 3 * BORDER, _around_mlp(model, plan)))


def repeated_passes(model: Model, plan: Plan) -> float:
    """The part of a layer's forward pass that backward runs again, by its operations."""
    if plan.recompute:
        return 1.0
    if plan.kept is not None:
        return sum(repeated_products(model, plan.kept).values()) / model.layer_flops(1.0)
    whole = model.layer_flops(1.0)
    if plan.selective == "attention":
        return attention_share(model)
    if plan.selective == "operators":
        # The products that are not kept: of keys and of attention's output, and the MLP's second.
        hidden, width = model.hidden, model.attention_width
        keys = hidden * width * _kv_share(model) if model.gated else 0.0
        second = model.active * model.hidden * model.ffn if model.gated else 0.0
        products = 2.0 * (keys + hidden * width + second) / whole
        # Without FlashAttention its matrix is not kept, and backward needs it.
        return products + (0.0 if plan.flash else attention_share(model))
    return 0.0


def _kept_by_maxtext(model: Model, kept: tuple[str, ...]) -> tuple[float, float]:
    """Bytes for each token and hidden unit that MaxText keeps: whole, and split.

    Not the MLP's last product, also if its policy names it: jax.checkpoint saves what backward
    needs, which is not this one.
    """
    w, first = _width_share(model), (2 if model.gated else 1) * _ffn_share(model)
    kv = w * _kv_share(model)
    widths = {"query_proj": w, "key_proj": kv, "value_proj": kv, "context": w, "mlpwi": first}
    whole = BORDER + 2 * ("out_proj" in kept)
    return whole, 2 * sum(width for name, width in widths.items() if name in kept)


def repeated_products(model: Model, kept: tuple[str, ...]) -> dict[str, float]:
    """Parts of a layer that run again in backward -> their operations for a token in forward.

    kept: as in Plan. XLA removes the MLP's last product from what runs again, as backward does not
    need its result.
    """
    hidden, w = model.hidden, _width_share(model)
    parameters = {
        "query_proj": w,
        "key_proj": w * _kv_share(model),
        "value_proj": w * _kv_share(model),
        "context": 2.0 * model.sequence / hidden * w,
        "out_proj": w,
        "mlpwi": (2 if model.gated else 1) * _ffn_share(model),
    }
    return {name: 2.0 * hidden**2 * one for name, one in parameters.items() if name not in kept}


def attention_share(model: Model) -> float:
    """The part of a layer's operations that are attention's, without its parameters."""
    return 4.0 * model.sequence * model.attention_width / model.layer_flops(1.0)


def weights_share(model: Model) -> float:
    """The part of a backward pass that makes the gradients of parameters; attention has none."""
    return (1.0 - attention_share(model)) / 2


def tokens_of(model: Model, plan: Plan) -> float:
    """Tokens of a microbatch on one GPU."""
    return plan.micro_batch * model.sequence / plan.context


def _bytes(model: Model, plan: Plan, shared: float, split: float) -> float:
    parts = plan.tensor if plan.sequence else 1
    values = tokens_of(model, plan) * model.hidden * plan.value_bytes / 2
    return values * (shared / parts + split / plan.tensor)


def _matrix(model: Model, plan: Plan) -> float:
    each = MATRIX_GATED if model.gated else MATRIX
    pairs = tokens_of(model, plan) * model.sequence * model.heads / plan.tensor
    return each * pairs * plan.value_bytes / 2


def _around_mlp(model: Model, plan: Plan) -> float:
    gated = 8 if plan.framework == "pytorch" else 6
    # Those that share an expert gather its inputs, of which other tensor parallel ranks have parts.
    gathered = plan.expert_parts if plan.sequence or plan.tensor == 1 else 1
    routed = 2 * (1 + gathered) * model.routed if model.experts > 1 else 0
    return (gated if model.gated else 4) * _ffn_share(model) + routed


def _kv_share(model: Model) -> float:
    return (model.kv_heads or model.heads) / model.heads


def _width_share(model: Model) -> float:
    return model.attention_width / model.hidden


def _ffn_share(model: Model) -> float:
    return model.active * model.ffn / model.hidden
