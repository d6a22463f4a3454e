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
    """A decoder of equal layers. ffn: hidden size of the MLP, of each expert if there are several.

    gated: the MLP has three matrices (SwiGLU) instead of two. kv_heads: heads of keys and values.
    experts, active: experts of a layer, and how many of them each token uses. attention: parameters
    of a layer's attention; 0: computed from its heads. more: parameters that equal layers do not
    count, less those that they count too often; estimates of time and memory do not have them.
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

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    @property
    def attention_parameters(self) -> int:
        """Attention's parameters in one layer: queries and outputs, keys and values."""
        if self.attention:
            return self.attention
        kv = (self.kv_heads or self.heads) * self.head_size
        return 2 * self.hidden * self.hidden + 2 * self.hidden * kv

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert of one layer."""
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer with all experts, without norms, which are below 0.01 %."""
        return self.attention_parameters + self.experts * self.expert_parameters

    @property
    def embedding_parameters(self) -> int:
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.embedding_parameters + self.more

    def layer_flops(self, tokens: float) -> float:
        """Floating-point operations of one layer's forward pass, for tokens of whole sequences.

        Two for each parameter that a token uses, and those of attention: queries by keys and
        weights by values, 4 * sequence * hidden for a token. A causal mask halves them; flash
        attention does so too, and the published counts (Narayanan et al.) do not.
        """
        used = self.attention_parameters + self.active * self.expert_parameters
        return tokens * (2.0 * used + 4.0 * self.sequence * self.hidden)

    def head_flops(self, tokens: float) -> float:
        """Operations of the logits' forward pass."""
        return 2.0 * tokens * self.vocabulary * self.hidden

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
        # The ninth active expert is the shared one; `more` has its parameters in 58 layers, and
        # what the first 3, which have no experts but an MLP of 18,432, have less than all others.
        # Attention is latent: 187 million parameters a layer.
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
            more=3 * 7_168 * (58 * 2_048 + 3 * (18_432 - 256 * 2_048)),
        ),
    )
}

OWN = ("layers", "hidden", "ffn", "experts")  # sizes that `more` is computed from


def resized(model: Model, sizes: Mapping[str, int]) -> Model:
    """The model with other sizes, as equal layers if these decide its corrections."""
    more = 0 if any(name in sizes for name in OWN) else model.more
    return Model(**{**vars(model), "more": more, **sizes})


# Other names of models with the same sizes. Llama 3.1 has those of Llama 3.
ALIASES = {f"llama3.1-{size}": f"llama3-{size}" for size in ("8b", "70b", "405b")}
