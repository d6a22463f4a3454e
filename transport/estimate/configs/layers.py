"""Sizes of unusual layers: latent attention, heads of any size, mixtures of experts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from transport.estimate.models import Model


@dataclass(frozen=True)
class Experts:
    """A mixture of experts. each_ffn, shared_ffn: hidden size of an expert, of all shared ones.

    dense: layers without experts, whose MLP has a hidden size of dense_ffn.
    """

    count: int
    active: int
    each_ffn: int
    shared_ffn: int = 0
    dense: int = 0
    dense_ffn: int = 0


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): sizes of its parts.

    query_rank: 0: queries are not compressed. value: size of a head's values.
    """

    query_rank: int
    kv_rank: int
    plain: int
    rotary: int
    value: int

    def width(self, heads: int) -> int:
        """Values of all heads, as the mean of those of queries or keys and of values."""
        return heads * (self.plain + self.rotary + self.value) // 2

    def parameters(self, hidden: int, heads: int) -> int:
        query = self.plain + self.rotary
        queries = hidden * heads * query
        if self.query_rank:
            queries = self.query_rank * (hidden + heads * query)
        keys = hidden * (self.kv_rank + self.rotary)
        keys += self.kv_rank * heads * (self.plain + self.value)
        return queries + keys + heads * self.value * hidden


def with_experts(model: Model, experts: Experts, notes: list[str]) -> Model:
    """The model with a mixture of experts. Shared ones are taken to be as large as the others."""
    if experts.dense >= model.layers:
        return model
    more = -(-experts.shared_ffn // experts.each_ffn)
    found = replace(
        model,
        ffn=experts.each_ffn,
        experts=experts.count,
        active=experts.active + more,
        shared=more,
        dense=experts.dense,
        dense_ffn=experts.dense_ffn if experts.dense else 0,
    )
    matrix = model.expert_parameters // model.ffn  # parameters for each hidden unit
    correction = (experts.shared_ffn - more * experts.each_ffn) * matrix
    if experts.dense:
        notes.append(
            f"{experts.dense} of {model.layers} layers have no experts; time is estimated as if "
            "all layers had them, and memory as if these were the first ones"
        )
    return replace(found, more=model.more + (model.layers - experts.dense) * correction)


def with_head_size(model: Model, size: int | None) -> Model:
    """The model with heads of another size than hidden / heads."""
    if size is None or size * model.heads == model.hidden:
        return model
    return replace(model, width=size * model.heads)


def dense_layers(
    layers: int, first: int = 0, every: int = 1, offset: int = 0, listed: Collection[int] = ()
) -> int:
    """Layers without experts: the first ones, those between every n-th one, and listed ones."""
    return sum(
        at < first or (at + offset) % every != 0 or at in listed for at in range(min(layers, 4_096))
    )
