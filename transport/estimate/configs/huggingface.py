"""Reads models from config.json of Hugging Face's transformers.

Keys and defaults are those of each architecture's configuration class
(github.com/huggingface/transformers, src/transformers/models/*/configuration_*.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from transport.estimate.configs.given import ConfigError, Given, Keys, Sizes, sequence_of, shown
from transport.estimate.configs.layers import (
    Experts,
    Latent,
    dense_layers,
    with_experts,
    with_head_size,
)
from transport.estimate.models import Model
from transport.ground.text import nearest

SEQUENCE_MAX = 8_192  # assumed if a model takes longer ones, as few are trained with these
NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocabulary": ("vocab_size",),
}
LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
FFN = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
KV_HEADS = ("num_key_value_heads", "num_kv_heads")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(frozen=True)
class Family:
    """Properties that a configuration does not state.

    gated: the MLP has three matrices. tied: the default of tie_word_embeddings. wide: the MLP has
    4 * hidden units if the file has no size. positions: they are learned.
    """

    gated: bool = True
    tied: bool = False
    wide: bool = False
    positions: bool = False


LLAMA = Family()
TIED = Family(tied=True)
GPT2 = Family(gated=False, tied=True, wide=True, positions=True)
ALIBI = Family(gated=False, tied=True, wide=True)
FAMILIES = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3"), LLAMA),
    **dict.fromkeys(("qwen3_moe", "phi3", "olmo", "olmo2", "olmoe", "granite"), LLAMA),
    **dict.fromkeys(("stablelm", "internlm2", "gpt_oss", "deepseek", "deepseek_v2"), LLAMA),
    **dict.fromkeys(("deepseek_v3", "kimi_k2"), LLAMA),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "cohere", "smollm3"), TIED),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), GPT2),
    **dict.fromkeys(("bloom", "falcon", "mpt"), ALIBI),
    "opt": Family(gated=False, tied=True, positions=True),
    "gpt_neox": Family(gated=False),
    "gptj": Family(gated=False, wide=True),
    "phi": Family(gated=False),
    "nemotron": Family(gated=False),
    "starcoder2": Family(gated=False, tied=True),
}


def of_huggingface(values: Mapping[str, Any], sizes: Sizes) -> Given:
    """The model of a config.json. sizes: those that count instead. ConfigError."""
    notes: list[str] = []
    inner = values.get("text_config")
    if isinstance(inner, dict) and not any(key in values for key in NAMES["layers"]):
        notes.append("text_config is estimated, the rest of the model (vision, audio) is not")
        values = inner
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        known = sorted(FAMILIES)
        hint = nearest(kind[:40], known) if isinstance(kind, str) else f": {', '.join(known)}"
        raise ConfigError(f"model_type {shown(kind)} is not known{hint}")
    keys, family = Keys(values), FAMILIES[kind]
    for key in ("model_type", "architectures", "transformers_version"):
        keys.value(key)
    model = _model(kind, family, keys, sizes, notes)
    form = f"Hugging Face, {kind}"
    return Given(form, model, taken=keys.taken, unused=keys.unused, notes=tuple(notes))


def _model(kind: str, family: Family, keys: Keys, sizes: Sizes, notes: list[str]) -> Model:
    names = dict(NAMES)
    if not family.wide:
        names["ffn"] = FFN
    found = keys.sizes(names, sizes, f"a model of the type {kind}")
    limit = keys.number(*LIMITS, name="longest sequence")
    sequence = sizes.get("sequence") or sequence_of(limit, SEQUENCE_MAX if limit else 2_048, notes)
    ffn = found.get("ffn") or sizes.get("ffn") or keys.number(*FFN, name="ffn")
    hidden, heads = found["hidden"], found["heads"]
    model = Model(
        name=kind,
        layers=found["layers"],
        hidden=hidden,
        heads=heads,
        ffn=ffn or 4 * hidden,
        vocabulary=found["vocabulary"],
        sequence=sequence,
        kv_heads=sizes.get("kv_heads") or _kv_heads(keys, heads),
        gated=family.gated,
        tied=_is_tied(keys, family),
        more=(limit or 0) * hidden if family.positions else 0,
    )
    if "kv_lora_rank" in keys:
        model = _latent(model, keys)
    else:
        model = with_head_size(model, keys.number("head_dim", name="head size"))
    return _with_experts(model, keys, sizes, notes)


def _kv_heads(keys: Keys, heads: int) -> int:
    """Heads of keys and values; Falcon and GPT-BigCode state one of them as multi_query."""
    if keys.flag("multi_query") and not keys.flag("new_decoder_architecture"):
        keys.take("multi_query", "kv_heads", 1)
        for key in KV_HEADS:
            keys.value(key)
        return 1
    return keys.number(*KV_HEADS, name="kv_heads") or heads


def _is_tied(keys: Keys, family: Family) -> bool:
    tied = keys.flag("tie_word_embeddings", family.tied)
    if "tie_word_embeddings" in keys:
        keys.take("tie_word_embeddings", "tied embeddings", str(tied).lower())
    return tied


def _latent(model: Model, keys: Keys) -> Model:
    names = {
        "kv_rank": ("kv_lora_rank",),
        "plain": ("qk_nope_head_dim",),
        "rotary": ("qk_rope_head_dim",),
        "value": ("v_head_dim",),
    }
    parts = {name: keys.number(*each, name="attention") for name, each in names.items()}
    if lacking := [names[name][0] for name, size in parts.items() if size is None]:
        raise ConfigError(f"latent attention without {', '.join(lacking)}: add it to the file")
    rank = keys.number("q_lora_rank", name="attention", least=0)
    latent = Latent(rank or 0, **{name: size or 0 for name, size in parts.items()})
    attention = latent.parameters(model.hidden, model.heads)
    return replace(model, attention=attention, width=latent.width(model.heads))


def _with_experts(model: Model, keys: Keys, sizes: Sizes, notes: list[str]) -> Model:
    count = sizes.get("experts") or keys.number(*EXPERTS, name="experts", least=0)
    if not count or count == 1:
        return model
    form = "a mixture of experts"
    active = keys.sizes({"active": ("num_experts_per_tok",)}, sizes, form)["active"]
    each = keys.number("moe_intermediate_size", name="ffn of an expert") or model.ffn
    shared = keys.number("shared_expert_intermediate_size", name="shared ffn", least=0) or 0
    shared += each * (keys.number("n_shared_experts", name="shared experts", least=0) or 0)
    dense = _dense(model.layers, keys)
    return with_experts(model, Experts(count, active, each, shared, dense, model.ffn), notes)


def _dense(layers: int, keys: Keys) -> int:
    first = keys.number("first_k_dense_replace", name="first layers without experts", least=0)
    every = keys.number("moe_layer_freq", name="experts in every layer of")
    step = keys.number("decoder_sparse_step", name="experts in every layer of")
    listed = keys.value("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(type(one) is int for one in listed):
        raise ConfigError(f"mlp_only_layers: {shown(listed)} is no list of layers")
    return dense_layers(layers, first or 0, step or every or 1, 1 if step else 0, set(listed))
