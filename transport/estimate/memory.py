"""The most memory that a GPU needs in a training step, and what it consists of.

Parameters, gradients and Adam's state are as in Rajbhandari et al., "ZeRO" (SC 2020, section 3),
activations in flight as in activations.py. A step peaks either at the loss, where the logits and
their gradients are there, or in backward, where a layer is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

from transport.estimate.activations import (
    kept_activations,
    layer_activations,
    tokens_of,
    working_activations,
)
from transport.estimate.kernels import FP8_BYTES
from transport.estimate.models import Model
from transport.estimate.pipelines import chunks_of, in_flight
from transport.estimate.plan import Plan

# Bytes for each logit besides the logit itself. PyTorch: the logarithm of softmax and the gradients
# before and after it, in 4 bytes each; over split vocabularies each further step makes a copy.
# A compiled loss writes only the gradient, in 2 bytes. Megatron: a copy in 4 bytes, on which
# softmax works in place, and one for its sum. MaxText: only the gradient, in 2 bytes, as XLA fuses
# what is in 4 bytes; so its runs on TPU v6e fit (tests/estimate/test_memory.py).
LOGIT_BYTES = {"pytorch": 12, "compiled": 2, "megatron": 8, "maxtext": 2}
LOGIT_SPLIT_BYTES = {"pytorch": 18, "compiled": 2, "megatron": 8, "maxtext": 2}
# The allocator's share that no tensor uses: the median of seven logs of Megatron with the most that
# was allocated and reserved, 0.7 to 6.2 %.
UNUSED_SHARE = 0.03
# NCCL's buffers: of 10 MiB for each channel of a connection (NVIDIA/nccl issue 1685), two of which
# a ring has regardless of its size (issue 986); 16 channels are usual between nodes.
NCCL_BYTES = 2 * 16 * (10 << 20)
OFFLOADED_LAYERS = 2  # whose kept activations are back from the host at a time
CONTEXT_BYTES = 500e6  # assumed: CUDA's context and its kernels
# By how much published peaks are above their estimates, at most (tests/estimate/test_memory.py): in
# general, and of FSDP with pipeline stages, where estimates miss a part.
ABOVE, ABOVE_STAGES = 0.09, 0.23


@dataclass(frozen=True)
class Memory:
    """Bytes on a GPU of the pipeline stage that needs the most memory, at its peak.

    activations: kept for backward, and those of a layer that is computed again. logits: their
    tensors; 0 if the peak is not at the loss. buffers: gathered parameters, copies of gradients for
    their reduction, and what pipeline stages receive into. unused: reserved by the allocator beyond
    what is allocated. outside: of CUDA and NCCL, which the framework does not count.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float = 0.0
    buffers: float = 0.0
    outside: float = 0.0

    @property
    def allocated(self) -> float:
        """What torch.cuda.max_memory_allocated() counts."""
        states = self.parameters + self.gradients + self.optimizer
        return states + self.activations + self.logits + self.buffers

    @property
    def unused(self) -> float:
        return UNUSED_SHARE * self.allocated

    @property
    def reserved(self) -> float:
        """What torch.cuda.max_memory_reserved() counts."""
        return self.allocated + self.unused

    @property
    def total(self) -> float:
        """What nvidia-smi shows."""
        return self.reserved + self.outside


def above_of(plan: Plan) -> float:
    """By how much of its estimate the memory of a plan may be larger, as published peaks were.

    None of MaxText is published, but runs that fit.
    """
    if plan.framework == "maxtext":
        return 0.0
    return ABOVE_STAGES if plan.keeps_gathered else ABOVE


@dataclass(frozen=True)
class Compiled(Memory):
    """Of a program of XLA, which assigns all buffers before it runs: no allocator, no CUDA."""

    @property
    def unused(self) -> float:
        return 0.0


def memory_of(model: Model, plan: Plan) -> Memory:
    """The memory of the stage that needs most: the first one or, with the logits, the last one."""
    found = [_stage(model, plan, stage) for stage in {0, plan.pipeline - 1}]
    return max(found, key=lambda one: one.total)


def _stage(model: Model, plan: Plan, stage: int) -> Memory:
    chunks = chunks_of(plan, stage)
    is_first, is_last = 0 in chunks, plan.pipeline * plan.interleave - 1 in chunks
    layers = _layers(model, plan, chunks)
    ends = model.vocabulary * model.hidden / plan.tensor
    ends *= is_first + (is_last and not (model.tied and is_first))
    dense = _dense_layers(model, plan, chunks)
    of_experts = model.experts * model.expert_parameters / plan.expert / plan.expert_parts
    experts = (layers - dense) * of_experts
    unsplit = (layers - dense) * model.whole_parameters + dense * model.dense_parameters
    others = unsplit / plan.tensor + ends
    whole = experts + others
    # Experts are split only among the ranks that have the same experts.
    same = "copies" if plan.places_experts else "shard"
    split = experts / plan.group(same).ranks + others / plan.group("shard").ranks
    flying = in_flight(plan, stage) * layers / len(chunks)
    activations, logits = _activations(model, plan, flying, is_last)
    is_xla = plan.framework == "maxtext"
    return (Compiled if is_xla else Memory)(
        parameters=(split if plan.zero == 3 else whole) * plan.value_bytes
        + _fp8_bytes(plan, whole - ends),
        gradients=(split if plan.splits_gradients else whole) * plan.gradient_bytes,
        optimizer=(split if plan.zero >= 1 else whole) * plan.optimizer_bytes,
        activations=activations,
        logits=logits,
        buffers=_buffers(model, plan, whole, ends) + _received(model, plan, stage),
        outside=0.0 if is_xla else CONTEXT_BYTES + NCCL_BYTES * _communicators(plan),
    )


def _fp8_bytes(plan: Plan, linear: float) -> float:
    """Bytes of parameters' copies in FP8 and of their transposes, which Transformer Engine keeps
    from the first microbatch on; PyTorch casts them for each product.

    linear: parameters of the layers of a stage.
    """
    keeps = plan.dtype == "fp8" and plan.framework == "megatron"
    return 2 * FP8_BYTES * linear if keeps else 0.0


def _layers(model: Model, plan: Plan, chunks: tuple[int, ...]) -> int:
    """Layers of chunks; the first chunks have one more if they cannot be equal."""
    each, more = divmod(model.layers, plan.pipeline * plan.interleave)
    return sum(each + (chunk < more) for chunk in chunks)


def _dense_layers(model: Model, plan: Plan, chunks: tuple[int, ...]) -> int:
    """Layers of chunks that have no experts, which are the first ones of all."""
    return sum(
        min(max(model.dense - _layers(model, plan, tuple(range(one))), 0), count)
        for one in chunks
        for count in (_layers(model, plan, (one,)),)
    )


def _activations(model: Model, plan: Plan, flying: float, is_last: bool) -> tuple[float, float]:
    """Bytes of activations, and of logits, when both together are most.

    flying: layers whose activations are kept, each microbatch counted.
    """
    kept = kept_activations(model, plan)
    logits = _logits(model, plan) if is_last else 0.0
    if plan.framework == "maxtext" and plan.kept is not None:
        again = max(working_activations(model, plan) - kept, 0.0)
    else:
        again = layer_activations(model, plan) - kept
    if plan.offload:  # one layer is computed while the next one comes from the host
        again += OFFLOADED_LAYERS * kept
        kept = 0.0
    return (flying * kept, logits) if logits > again else (flying * kept + again, 0.0)


def _logits(model: Model, plan: Plan) -> float:
    """Bytes of the logits' tensors, and of the input of their product and its gradient."""
    more = (LOGIT_BYTES if plan.tensor == 1 else LOGIT_SPLIT_BYTES)[plan.framework]
    each = model.vocabulary / plan.tensor * (plan.value_bytes + more)
    # MaxText splits the input of the logits, too (activation_embed of its base.yml).
    parts = plan.tensor if plan.framework == "maxtext" and plan.sequence else 1
    return tokens_of(model, plan) * (each + 2 * plan.value_bytes * model.hidden / parts)


def _buffers(model: Model, plan: Plan, whole: float, ends: float) -> float:
    """Bytes that data parallelism needs besides parameters and gradients.

    FSDP has the parameters of two layers gathered, those of the embedding and the logits, and the
    gradients of the larger one with the copy that is scattered; with pipeline stages it has all
    parameters of the stage gathered, and its gradients are whole anyway. DDP of PyTorch has buckets
    besides the gradients, unless gradient_as_bucket_view is set.
    """
    if plan.group("data").ranks == 1:
        return 0.0
    if plan.zero == 0:
        has_buckets = plan.framework not in ("megatron", "maxtext")
        return whole * plan.gradient_bytes if has_buckets else 0.0
    if plan.zero < 3:
        return 0.0
    if plan.framework == "maxtext":
        return _matrices(model, plan)
    if plan.keeps_gathered:
        return whole * plan.value_bytes
    layer = model.whole_parameters / plan.tensor
    layer += model.experts * model.expert_parameters / plan.expert / plan.expert_parts
    largest = max(layer, model.vocabulary * model.hidden / plan.tensor)
    gathered = (2 * layer + ends) * plan.value_bytes
    return gathered + largest * (plan.value_bytes + plan.gradient_bytes)


def _matrices(model: Model, plan: Plan) -> float:
    """Bytes of what MaxText gathers, matrix by matrix, with gradients before they are scattered.

    In a layer, one of its largest matrices is used and one on its way; the logits' matrix is alone.
    """
    gathered, scattered = plan.value_bytes, plan.gradient_bytes
    matrix = model.hidden * max(model.ffn * model.experts / plan.expert, model.hidden)
    ends = model.vocabulary * model.hidden
    return max(matrix * (2 * gathered + scattered), ends * (gathered + scattered)) / plan.tensor


def _received(model: Model, plan: Plan, stage: int) -> float:
    """Bytes of the buffers into which a stage receives, beyond activations that are kept anyway.

    PyTorch's stages, which FSDP runs with, have them for every microbatch of a step: for the input
    of each chunk but the first, and for the gradients of the output of each but the last
    (torch.distributed.pipelining, stage.py: _prepare_forward_infra, _create_grad_recv_info).
    Megatron allocates them as they are needed.
    """
    if not plan.keeps_gathered or plan.framework == "megatron":
        return 0.0
    chunks, last = chunks_of(plan, stage), plan.pipeline * plan.interleave - 1
    inputs = plan.microbatches * sum(one > 0 for one in chunks) - in_flight(plan, stage)
    gradients = plan.microbatches * sum(one < last for one in chunks)
    values = tokens_of(model, plan) * model.hidden / (plan.tensor if plan.sequence else 1)
    return (max(inputs, 0) + gradients) * values * plan.value_bytes


def _communicators(plan: Plan) -> int:
    names = ["tensor", "context", "shard", "replicas", "pipeline"]
    names += ["expert", "copies"] if plan.places_experts else []
    names += ["expert parts"] if plan.expert_parts != plan.tensor else []
    return sum(plan.group(name).ranks > 1 for name in names)
