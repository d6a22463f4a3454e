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
FRAMEWORKS = ("pytorch", "compiled", "megatron")


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
    they depend on. overlap_context: keys and values go around beside attention. framework: whose
    kernels and buffers count in memory. dtype: of the products of linear parts of a layer; logits,
    attention and all else have 16 bits.
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

    def group(self, name: str) -> Group:
        """The communicator of a kind of parallelism.

        data: ranks that have the same part of the model and sum its gradients, context parallel
        ones among them. shard: those of them that ZeRO splits it among; copies of it: replicas.
        expert: ranks that share the experts; copies: those that have the same experts.
        """
        # DualPipe's GPUs have two stages each, and each stage is on two GPUs.
        same = self.replicas * (2 if self.schedule == "dualpipe" else 1)
        shard = self.shard or same
        ranks, stride = {
            "tensor": (self.tensor, 1),
            "context": (self.context, self.tensor),
            "data": (same, self.tensor),
            "shard": (shard, self.tensor),
            "replicas": (same // shard, self.tensor * shard),
            "expert": (self.expert, self.tensor),
            "copies": (same // self.expert, self.tensor * self.expert),
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
        if model.experts % self.expert or self.replicas % self.expert:
            raise PlanError(
                f"expert: {self.expert}: must divide the {model.experts} experts and data x "
                f"context, {self.replicas}",
                f"expert does not divide the {model.experts} experts and data x context",
            )
        self._check_shard()
        self._check_schedule()

    def _check_values(self) -> None:
        """Raises PlanError if a field alone, or the number of GPUs, is impossible."""
        for name in (
            *("data", "tensor", "pipeline", "interleave", "expert", "context"),
            *("micro_batch", "global_batch", "bucket_bytes"),
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
        if unknown := set(self.kept or ()) - set(KEEPABLE):
            raise PlanError(f"kept: {', '.join(sorted(unknown))}: must be of {KEEPABLE}")
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

    def _check_shard(self) -> None:
        """Raises PlanError if ZeRO cannot split among `shard` ranks."""
        if not self.shard:
            return
        if self.zero == 0:
            raise PlanError(f"shard: {self.shard}: needs zero of 1 to 3, which splits")
        if self.shard < 1 or self.replicas % self.shard:
            raise PlanError(f"shard: {self.shard}: must divide data x context, {self.replicas}")
        if self.expert > 1:
            raise PlanError(f"shard: {self.shard}: cannot be combined with expert")

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
        if model.active > model.experts:
            raise PlanError(f"active: {model.active}: must be at most the {model.experts} experts")
        if model.sequence % self.context:
            raise PlanError(
                f"context: {self.context}: must divide the sequence, {model.sequence}",
                f"context does not divide the sequence of {model.sequence:,} tokens",
            )

    def unchecked(self) -> list[str]:
        """The kinds of parallelism whose estimates no measurement has confirmed."""
        found = [
            name for name in ("tensor", "pipeline", "expert", "context") if getattr(self, name) > 1
        ]
        found += ["zero"] if self.zero in (1, 2) else []
        found += ["schedule"] if self.schedule != "1f1b" else []
        found += ["dtype"] if self.dtype != "bf16" else []
        found += [name for name in ("overlap", "overlap_context") if getattr(self, name)]
        return found + (["shard"] if self.group("replicas").ranks > 1 and self.shard else [])
