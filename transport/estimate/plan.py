"""The plan that spreads a model over GPUs, and the groups of GPUs that talk to each other.

Ranks are numbered as in Megatron-LM (tp-cp-ep-dp-pp): tensor, context and data parallel ranks are
next to each other in this order, pipeline stages are farthest apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transport.estimate.models import Model

SELECTIVE = ("", "attention", "operators")
RANKS_MAX = 1 << 20  # largest number of GPUs of a job
# Value of --recompute -> fields of a plan: nothing is recomputed, and more and more.
RECOMPUTES: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"selective": "attention"},
    "selective-op": {"selective": "operators"},
    "full": {"recompute": True},
}
# Outputs of a layer's parts that MaxText's remat_policy may keep, on the chip or in the host's
# memory; the layer's input is always kept (MaxText/layers/models.py and configs/base.yml,
# github.com/AI-Hypercomputer/maxtext). context: of attention.
KEEPABLE = ("query_proj", "key_proj", "value_proj", "context", "out_proj", "mlpwi", "mlpwo")
_PROJECTIONS = ("query_proj", "key_proj", "value_proj")
_DOTS = (*_PROJECTIONS, "out_proj")
# Value of --recompute -> what MaxText's remat_policy of this name keeps.
REMATS: dict[str, tuple[str, ...]] = {
    "maxtext-full": (),
    "maxtext-save_out_proj": ("out_proj",),
    "maxtext-save_qkv_proj": _PROJECTIONS,
    "maxtext-save_dot_except_mlp": _DOTS,
    "maxtext-save_dot_except_mlpwi": (*_DOTS, "mlpwo"),
    "maxtext-save_dot_with_context_except_mlp": (*_DOTS, "context"),
    "maxtext-minimal": (*_DOTS, "mlpwi", "mlpwo"),
    "maxtext-minimal_flash": KEEPABLE,
}
SCHEDULES = ("1f1b", "zero-bubble", "dualpipe")
DTYPES = ("bf16", "fp8")  # of the matrix products of a layer's linear parts
FRAMEWORKS = ("pytorch", "compiled", "megatron", "maxtext")
ADAM_BYTES = 12  # state of one parameter: a master copy and two moments, in 4 bytes each


class PlanError(ValueError):
    """A plan that does not fit its model or its number of GPUs.

    cause: the rule, in the same words for every plan that it refuses.
    """

    def __init__(self, text: str, cause: str = "") -> None:
        super().__init__(text)
        self.cause = cause or text


@dataclass(frozen=True)
class Group:
    """A communicator: `ranks` GPUs, `stride` apart."""

    ranks: int
    stride: int

    def nodes(self, gpus_per_node: int) -> int:
        """Over how many nodes the group is spread."""
        on_a_node = max(min(gpus_per_node // self.stride, self.ranks), 1)
        return -(-self.ranks // on_a_node)


@dataclass(frozen=True)
class Plan:
    """Degrees of parallelism, and the settings that decide how many bytes are sent and kept.

    zero: 0: gradients are summed (DDP). 1, 2: the optimizer's state, and gradients, are split: they
    are scattered and parameters gathered. 3: parameters too (FSDP): they are gathered for each
    pass. interleave: model chunks of a pipeline stage. bucket_bytes: gradients per operation.
    value_bytes: of parameters and activations; gradient_bytes: of gradients as they are sent.
    recompute: each layer's forward pass runs again in backward. flash: the attention matrix stays
    on the chip (FlashAttention) instead of going through memory. sequence: activations between
    tensor parallel parts are split, too (Korthikanti et al., arXiv 2205.05198).
    selective: instead of `recompute`, what runs again: "attention" (its matrix), "operators" (every
    other product), or nothing. kept: instead of both, what MaxText keeps of a layer, of KEEPABLE;
    all else but the MLP's last product runs again; None: not MaxText's way. shard: ranks that ZeRO
    splits among, next to each other; the others are replicas of them (HSDP); 0: all. schedule: of
    the pipeline. overlap: operations of tensor parallelism run in parts beside the products that
    they depend on. overlap_context: keys and values go around beside attention. overlap_gather:
    ZeRO 1 and 2 gather parameters beside the next forward pass instead of after the optimizer.
    framework: whose kernels and buffers count in memory. dtype: of the products of linear parts of
    a layer; logits, attention and all else have 16 bits. expert_tensor: GPUs that share each
    expert, as Megatron's --expert-tensor-parallel-size; 0: as many as share the other layers.
    optimizer_bytes: state of a parameter. offload: what is kept of layers waits for backward in
    the host's memory. sum_once: replicas of a shard sum gradients after the last microbatch only.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    interleave: int = 1
    expert: int = 1
    context: int = 1
    zero: int = 0
    micro_batch: int = 1
    global_batch: int = 1
    bucket_bytes: int = 25 << 20
    value_bytes: int = 2
    gradient_bytes: int = 2
    recompute: bool = False
    flash: bool = True
    sequence: bool = False
    selective: str = ""
    shard: int = 0
    schedule: str = "1f1b"
    overlap: bool = False
    overlap_context: bool = False
    framework: str = "pytorch"
    dtype: str = "bf16"
    kept: tuple[str, ...] | None = None
    overlap_gather: bool = False
    expert_tensor: int = 0
    optimizer_bytes: int = ADAM_BYTES
    offload: bool = False
    sum_once: bool = False

    @property
    def splits_gradients(self) -> bool:
        """Whether gradients are scattered after each microbatch, and kept in parts.

        With pipeline stages they are kept whole until the last microbatch.
        """
        return self.zero >= 2 and self.pipeline == 1

    @property
    def keeps_gathered(self) -> bool:
        """Whether FSDP gathers parameters once a step: with pipeline stages, as torchtitan does."""
        return self.zero == 3 and self.pipeline > 1

    @property
    def gpus(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def microbatches(self) -> int:
        """Microbatches of a step for each data parallel replica."""
        return self.global_batch // (self.data * self.micro_batch)

    @property
    def replicas(self) -> int:
        """Ranks that have the same part of the model: data and context parallel ones."""
        return self.data * self.context

    @property
    def expert_parts(self) -> int:
        """GPUs that share each expert."""
        return self.expert_tensor or self.tensor

    @property
    def places_experts(self) -> bool:
        """Whether experts have groups of their own, other than those of the other layers."""
        return self.expert > 1 or self.expert_parts != self.tensor

    def group(self, name: str) -> Group:
        """The communicator of a kind of parallelism.

        data: ranks that have the same part of the model and sum its gradients, context parallel
        ones among them. shard: those of them that ZeRO splits it among; copies of it: replicas.
        expert parts: ranks that share each expert; expert: that share the experts; copies: that
        have the same experts, or parts of them. They follow each other in this order
        (Megatron-LM, megatron/core/parallel_state.py).
        """
        # DualPipe's GPUs have two stages each, and each stage is on two GPUs.
        same = self.replicas * (2 if self.schedule == "dualpipe" else 1)
        shard, of_experts = self.shard or same, self.expert_parts * self.expert
        ranks, stride = {
            "tensor": (self.tensor, 1),
            "context": (self.context, self.tensor),
            "data": (same, self.tensor),
            "shard": (shard, self.tensor),
            "replicas": (same // shard, self.tensor * shard),
            "expert parts": (self.expert_parts, 1),
            "expert": (self.expert, self.expert_parts),
            "copies": (self.tensor * same // of_experts, of_experts),
            "pipeline": (self.pipeline, self.tensor * self.replicas),
        }[name]
        return Group(ranks, stride)

    def is_away(self, one: int, other: int, gpus_per_node: int) -> bool:
        """Whether two pipeline stages are on different nodes, which stages fill in order."""
        each = self.tensor * self.replicas
        return one * each // gpus_per_node != other * each // gpus_per_node

    def check(self, model: Model) -> None:
        """Raises PlanError, with what to change, if the plan does not fit."""
        self._check_values()
        if self.global_batch % (self.data * self.micro_batch):
            raise PlanError(
                f"global_batch: {self.global_batch}: must be a multiple of data x micro_batch, "
                f"{self.data * self.micro_batch}",
                f"data does not divide the batch of {self.global_batch:,} sequences",
            )
        chunks = self.pipeline * self.interleave
        if chunks > model.layers:
            raise PlanError(
                f"pipeline: {model.layers} layers cannot be split into {chunks} chunks: give at "
                "most one chunk for each layer",
                f"more pipeline stages than the {model.layers} layers",
            )
        if self.interleave > 1 and self.microbatches % self.pipeline:
            raise PlanError(
                f"interleave: {self.microbatches} microbatches must be a multiple of the "
                f"{self.pipeline} stages"
            )
        if model.heads % self.tensor:
            raise PlanError(
                f"tensor: {self.tensor}: must divide the {model.heads} heads",
                f"tensor does not divide the {model.heads} heads",
            )
        self._check_sizes(model)
        if self.expert > 1 and model.experts == 1:
            raise PlanError(f"expert: {self.expert}: {model.name} has no experts")
        self._check_expert_tensor(model)
        if model.experts % self.expert or self._stage_gpus % (self.expert * self.expert_parts):
            parts = self.expert_parts != self.tensor
            of, count = "data x context", self.replicas
            if parts:
                of, count = "data x context x tensor / expert_tensor", self._expert_ranks
            raise PlanError(
                f"expert: {self.expert}: must divide the {model.experts} experts and {of}, {count}",
                f"expert does not divide the {model.experts} experts and {of}",
            )
        self._check_shard()
        self._check_schedule()

    def _check_values(self) -> None:
        """Raises PlanError if a field alone, or the number of GPUs, is impossible."""
        for name in (
            *("data", "tensor", "pipeline", "interleave", "expert", "context"),
            *("micro_batch", "global_batch", "bucket_bytes", "optimizer_bytes"),
        ):
            if getattr(self, name) < 1:
                raise PlanError(f"{name}: {getattr(self, name)}: must be at least 1")
        if self.gpus > RANKS_MAX:
            raise PlanError(
                f"data: {self.gpus:,} GPUs in all (data x tensor x pipeline x context): at most "
                f"{RANKS_MAX:,}"
            )
        if self.zero not in (0, 1, 2, 3):
            raise PlanError(f"zero: {self.zero}: must be 0 to 3")
        if self.overlap_gather and self.zero not in (1, 2):
            raise PlanError(
                f"overlap_gather: ZeRO {self.zero} gathers nothing after the optimizer: needs zero "
                "of 1 or 2"
            )
        if unknown := set(self.kept or ()) - set(KEEPABLE):
            raise PlanError(f"kept: {', '.join(sorted(unknown))}: must be of {KEEPABLE}")
        if self.offload and self.kept is None:
            raise PlanError(
                "offload: needs recompute of maxtext-full or another of MaxText's policies, which "
                "say what is kept"
            )
        if self.kept is not None and (self.recompute or self.selective):
            raise PlanError("kept: cannot be combined with recompute or selective")
        for name, known in (
            ("selective", SELECTIVE),
            ("framework", FRAMEWORKS),
            ("dtype", DTYPES),
            ("schedule", SCHEDULES),
        ):
            if getattr(self, name) not in known:
                raise PlanError(f"{name}: {getattr(self, name)!r}: must be one of {known}")

    @property
    def _stage_gpus(self) -> int:
        """GPUs of a pipeline stage."""
        return self.tensor * self.replicas

    @property
    def _expert_ranks(self) -> int:
        """Ranks of a pipeline stage that may have experts of their own, or copies of them."""
        return self._stage_gpus // self.expert_parts

    def _check_expert_tensor(self, model: Model) -> None:
        """Raises PlanError if experts cannot be shared by `expert_tensor` GPUs."""
        if self.expert_parts == self.tensor:
            return
        parts = self.expert_tensor
        if model.experts == 1:
            raise PlanError(f"expert_tensor: {parts}: {model.name} has no experts: give 0")
        if self._stage_gpus % parts:
            raise PlanError(
                f"expert_tensor: {parts}: must divide the {self._stage_gpus} GPUs of a pipeline "
                "stage"
            )
        if model.ffn % parts:
            raise PlanError(
                f"expert_tensor: {parts}: must divide the hidden size of an expert, {model.ffn}"
            )
        if self.tensor > 1 and not self.sequence:
            raise PlanError(
                f"expert_tensor: {parts}: with other than the {self.tensor} GPUs of tensor, each "
                "must send its own tokens: give --sequence-parallel"
            )

    def _check_shard(self) -> None:
        """Raises PlanError if ZeRO cannot split among `shard` ranks."""
        if self.sum_once and not self.shard:
            raise PlanError("sum_once: needs shard: replicas of what it splits sum gradients")
        if not self.shard:
            return
        if self.zero == 0:
            raise PlanError(f"shard: {self.shard}: needs zero of 1 to 3, which splits")
        if self.shard < 1 or self.replicas % self.shard:
            raise PlanError(f"shard: {self.shard}: must divide data x context, {self.replicas}")
        if self.places_experts:
            raise PlanError(f"shard: {self.shard}: cannot be combined with expert or expert_tensor")

    def _check_schedule(self) -> None:
        """Raises PlanError if the pipeline cannot run the schedule."""
        if self.schedule == "1f1b":
            return
        if self.pipeline == 1:
            raise PlanError(f"schedule: {self.schedule}: needs pipeline stages: give pipeline")
        if self.interleave > 1:
            raise PlanError(f"interleave: {self.interleave}: only the schedule 1f1b interleaves")
        if self.schedule == "dualpipe" and (
            self.pipeline % 2 or self.microbatches % 2 or self.microbatches < 2 * self.pipeline
        ):
            raise PlanError(
                f"schedule: dualpipe: needs an even number of stages, not {self.pipeline}, and of "
                f"microbatches, not {self.microbatches}, at least two for each stage",
                "dualpipe needs an even number of stages, and two microbatches for each of them",
            )

    def _check_sizes(self, model: Model) -> None:
        """Raises PlanError if the model's own sizes do not fit each other, or the plan."""
        if model.hidden % model.heads:
            raise PlanError(f"heads: {model.heads}: must divide the hidden size, {model.hidden}")
        if model.heads % (model.kv_heads or model.heads):
            raise PlanError(f"kv_heads: {model.kv_heads}: must divide the {model.heads} heads")
        if model.routed > model.experts:
            raise PlanError(f"active: {model.active}: must be at most the {model.experts} experts")
        if model.routed < 1:
            raise PlanError(f"active: {model.active}: must be more than the {model.shared} shared")
        if model.sequence % self.context:
            raise PlanError(
                f"context: {self.context}: must divide the sequence, {model.sequence}",
                f"context does not divide the sequence of {model.sequence:,} tokens",
            )

    def unchecked(self) -> list[str]:
        """What of the plan at most ten published runs have, those of bench/reference.

        Others, as tensor and pipeline parallelism, are checked with dozens of held-out runs.
        """
        found = ["expert"] if self.expert > 1 else []
        found += ["expert_tensor"] if self.expert_parts != self.tensor else []
        found += [f"schedule {self.schedule}"] if self.schedule != "1f1b" else []
        return found + (["overlap_context"] if self.overlap_context else [])
