"""Memory of a GPU in training: parameters, gradients, the optimizer's state, activations.

Activations follow Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
Models" (2022), equations 1 to 4; flash attention does not keep the attention matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

from transport.estimate.models import Model
from transport.estimate.plan import Plan

ADAM_BYTES = 12  # state of one parameter: a master copy and two moments, in 4 bytes each
LAYER_VALUES = 34  # bytes of a layer's activations for each token and hidden unit, in 16 bits
SPLIT_VALUES = 24  # part of LAYER_VALUES that tensor parallelism splits; with `sequence`: all
MATRIX_VALUES = 5  # bytes for each pair of tokens and head: attention's weights, dropout, its mask
INPUT_VALUES = 2  # the input of a layer, which is all that recomputation keeps


@dataclass(frozen=True)
class Memory:
    """Bytes on a GPU of the first pipeline stage, which needs the most memory."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.activations


def memory_of(model: Model, plan: Plan) -> Memory:
    layers = -(-model.layers // plan.pipeline)
    experts = layers * model.experts * model.expert_parameters / plan.expert / plan.tensor
    others: float = layers * model.attention_parameters + model.vocabulary * model.hidden
    if plan.pipeline == 1 and not model.tied:
        others += model.vocabulary * model.hidden
    others /= plan.tensor
    whole = experts + others
    # Experts are split only among the data parallel ranks that have the same experts.
    split = experts / (plan.data / plan.expert) + others / plan.data
    return Memory(
        parameters=(split if plan.zero == 3 else whole) * plan.value_bytes,
        gradients=(split if plan.zero >= 2 else whole) * plan.gradient_bytes,
        optimizer=(split if plan.zero >= 1 else whole) * ADAM_BYTES,
        activations=_activations(model, plan, layers),
    )


def layer_activations(model: Model, plan: Plan) -> float:
    """Bytes of the activations of a layer, of one microbatch on one GPU."""
    tokens = plan.micro_batch * model.sequence / plan.context
    width = plan.value_bytes / 2
    values = tokens * model.hidden * width
    if plan.sequence:
        layer = values * LAYER_VALUES / plan.tensor
    else:
        layer = values * (LAYER_VALUES - SPLIT_VALUES + SPLIT_VALUES / plan.tensor)
    if not plan.flash:
        layer += MATRIX_VALUES * width * model.heads / plan.tensor * tokens * model.sequence
    return layer


def _activations(model: Model, plan: Plan, layers: int) -> float:
    layer = layer_activations(model, plan)
    in_flight = float(min(plan.microbatches, plan.pipeline))
    if plan.interleave > 1:
        in_flight *= 1 + (plan.pipeline - 1) / (plan.pipeline * plan.interleave)
    if plan.recompute:
        tokens = plan.micro_batch * model.sequence / plan.context
        kept = tokens * model.hidden * plan.value_bytes / 2 * INPUT_VALUES
        return in_flight * layers * kept + layer
    return in_flight * layers * layer
