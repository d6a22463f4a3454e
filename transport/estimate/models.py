"""Transformers as estimates see them: parameters, operations and memory of a layer.

Presets are the published models: GPT-3 (Brown et al. 2020), the models of Narayanan et al.,
"Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (SC 2021),
Llama 2 (Touvron et al. 2023) and Llama 3 (Grattafiori et al. 2024), Mixtral (Jiang et al. 2024),
DeepSeek-V3 (DeepSeek-AI 2024).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """A decoder. ffn: hidden size of the MLP, of each expert if there are several.

    gated: the MLP has three matrices (SwiGLU) instead of two. kv_heads: heads of keys and values.
    experts, active: experts of a layer, and how many of them each token uses. shared: those of the
    active ones that all tokens use, besides `experts`; they are not split among ranks. dense: the
    first layers, which have no experts but an MLP of dense_ffn hidden units; in estimates of time
    they are as the others. attention: parameters of a layer's attention; 0: computed from its
    heads. width: values of all heads of queries, or if those of values differ, the mean of both; 0:
    hidden. more: parameters that estimates of time and memory do not have.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocabulary: int
    sequence: int
    kv_heads: int = 0
    gated: bool = False
    experts: int = 1
    active: int = 1
    tied: bool = False
    attention: int = 0
    more: int = 0
    shared: int = 0
    dense: int = 0
    dense_ffn: int = 0
    width: int = 0

    @property
    def attention_width(self) -> int:
        """Values of all heads of a token's queries."""
        return self.width or self.hidden

    @property
    def head_size(self) -> int:
        return self.attention_width // self.heads

    @property
    def routed(self) -> int:
        """Experts that a token is sent to."""
        return self.active - self.shared

    @property
    def attention_parameters(self) -> int:
        """Attention's parameters in one layer: queries and outputs, keys and values."""
        if self.attention:
            return self.attention
        kv = (self.kv_heads or self.heads) * self.head_size
        return 2 * self.hidden * self.attention_width + 2 * self.hidden * kv

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert of one layer."""
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer with all experts, without norms, which are below 0.01 %."""
        return self.whole_parameters + self.experts * self.expert_parameters

    @property
    def whole_parameters(self) -> int:
        """Parameters of one layer that are not of experts that tokens are sent to."""
        return self.attention_parameters + self.shared * self.expert_parameters

    @property
    def dense_parameters(self) -> int:
        """Parameters of one of the layers without experts."""
        mlp = (3 if self.gated else 2) * self.hidden * self.dense_ffn
        return self.attention_parameters + mlp

    @property
    def embedding_parameters(self) -> int:
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        layers = (self.layers - self.dense) * self.layer_parameters
        layers += self.dense * self.dense_parameters
        return layers + self.embedding_parameters + self.more

    def layer_flops(self, tokens: float) -> float:
        """Floating-point operations of one layer's forward pass, for tokens of whole sequences.

        Two for each parameter that a token uses, and those of attention: queries by keys and
        weights by values, 4 * sequence * width for a token. A causal mask halves them; flash
        attention does so too, and the published counts (Narayanan et al.) do not.
        """
        used = self.attention_parameters + self.active * self.expert_parameters
        return tokens * (2.0 * used + 4.0 * self.sequence * self.attention_width)

    def head_flops(self, tokens: float) -> float:
        """Operations of the logits' forward pass."""
        return 2.0 * tokens * self.vocabulary * self.hidden

    def masked_flops(self, tokens: float) -> float:
        """Operations of a step that step_flops() counts, but that a causal mask leaves out."""
        return 6.0 * tokens * self.sequence * self.hidden * self.layers

    def step_flops(self, tokens: float, recomputes: float = 0.0) -> float:
        """Operations of a step: backward is twice forward.

        recomputes: forward passes of a layer that backward runs again: True, or a part of one.
        """
        passes = 3.0 + recomputes
        return passes * self.layers * self.layer_flops(tokens) + 3.0 * self.head_flops(tokens)


def _gpt(name: str, layers: int, hidden: int, heads: int) -> Model:
    return Model(name, layers, hidden, heads, 4 * hidden, 51_200, 2_048, tied=True)


PRESETS = {
    one.name: one
    for one in (
        Model("gpt2", 12, 768, 12, 3_072, 50_257, 1_024, tied=True),
        Model("gpt2-medium", 24, 1_024, 16, 4_096, 50_257, 1_024, tied=True),
        Model("gpt2-xl", 48, 1_600, 25, 6_400, 50_257, 1_024, tied=True),
        Model("bert-large", 24, 1_024, 16, 4_096, 30_522, 512, tied=True),
        _gpt("megatron-1.7b", 24, 2_304, 24),
        _gpt("megatron-3.6b", 30, 3_072, 32),
        _gpt("megatron-7.5b", 36, 4_096, 32),
        _gpt("megatron-18b", 40, 6_144, 48),
        _gpt("megatron-39b", 48, 8_192, 64),
        _gpt("megatron-76b", 60, 10_240, 80),
        _gpt("megatron-145b", 80, 12_288, 96),
        _gpt("megatron-310b", 96, 16_384, 128),
        _gpt("megatron-530b", 105, 20_480, 128),
        _gpt("megatron-1t", 128, 25_600, 160),
        _gpt("gpt3-175b", 96, 12_288, 96),
        Model("llama2-7b", 32, 4_096, 32, 11_008, 32_000, 4_096, gated=True),
        Model("llama2-70b", 80, 8_192, 64, 28_672, 32_000, 4_096, 8, gated=True),
        Model("llama3-8b", 32, 4_096, 32, 14_336, 128_256, 8_192, 8, gated=True),
        Model("llama3-70b", 80, 8_192, 64, 28_672, 128_256, 8_192, 8, gated=True),
        Model("llama3-405b", 126, 16_384, 128, 53_248, 128_256, 8_192, 8, gated=True),
        Model("mixtral-8x7b", 32, 4_096, 32, 14_336, 32_000, 4_096, 8, True, 8, 2),
        # Eight active experts and a shared one. Attention is latent: 187 million parameters a
        # layer; queries and keys of a head have 128 + 64 values, values 128.
        Model(
            "deepseek-v3",
            61,
            7_168,
            128,
            2_048,
            129_280,
            4_096,
            128,
            True,
            256,
            9,
            attention=187_107_328,
            shared=1,
            dense=3,
            dense_ffn=18_432,
            width=128 * (192 + 128) // 2,
        ),
    )
}

OWN = ("layers", "hidden", "ffn", "experts")  # sizes that `more` and `dense` belong to


def resized(model: Model, sizes: Mapping[str, int]) -> Model:
    """The model with other sizes, as equal layers if these decide its corrections."""
    changed: dict[str, int] = {}
    if any(name in sizes for name in OWN):
        changed = {"more": 0, "dense": 0}
    if "hidden" in sizes or "heads" in sizes:
        changed["width"] = 0
    return Model(**{**vars(model), **changed, **sizes})


# Other names of models with the same sizes. Llama 3.1 has those of Llama 3.
ALIASES = {f"llama3.1-{size}": f"llama3-{size}" for size in ("8b", "70b", "405b")}
