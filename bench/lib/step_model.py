"""A GPT-2 in PyTorch, for `bench step`: the model that estimates of steps describe.

Pre-norm blocks, attention without its matrix in memory, an MLP with GELU, the logits' parameters
tied to the embedding (Radford et al., 2019).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Sizes = dict[str, int]


def block_of(torch: Any, sizes: Sizes) -> Any:
    """One transformer layer."""
    nn, functional = torch.nn, torch.nn.functional
    hidden, heads = sizes["hidden"], sizes["heads"]

    class Block(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.before_attention = nn.LayerNorm(hidden)
            self.projection = nn.Linear(hidden, 3 * hidden)
            self.output = nn.Linear(hidden, hidden)
            self.before_mlp = nn.LayerNorm(hidden)
            self.up = nn.Linear(hidden, sizes["ffn"])
            self.down = nn.Linear(sizes["ffn"], hidden)

        def forward(self, values: Any) -> Any:
            count, length, _ = values.shape
            split = self.projection(self.before_attention(values))
            split = split.view(count, length, 3, heads, hidden // heads)
            query, key, value = split.permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            values = values + self.output(mixed.transpose(1, 2).reshape(count, length, hidden))
            inner = functional.gelu(self.up(self.before_mlp(values)), approximate="tanh")
            return values + self.down(inner)

    return Block()


def gpt(torch: Any, sizes: Sizes) -> Any:
    """The model; its forward pass takes tokens and targets, and returns the loss."""
    nn, functional = torch.nn, torch.nn.functional

    class Gpt(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(sizes["vocabulary"], sizes["hidden"])
            self.places = nn.Embedding(sizes["sequence"], sizes["hidden"])
            self.blocks = nn.ModuleList(block_of(torch, sizes) for _ in range(sizes["layers"]))
            self.norm = nn.LayerNorm(sizes["hidden"])

        def forward(self, tokens: Any, targets: Any) -> Any:
            places = torch.arange(tokens.shape[1], device=tokens.device)
            values = self.tokens(tokens) + self.places(places)
            for block in self.blocks:
                values = block(values)
            logits = functional.linear(self.norm(values), self.tokens.weight)
            return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return Gpt()


class Marks:
    """Events on the GPU's stream between the parts of a step.

    forward[i], backward[i]: the event at the input of layer i; the last ones: at that of the head.
    """

    def __init__(self, torch: Any, model: Any) -> None:
        self._torch = torch
        self.forward: list[Any] = []
        self.backward: list[Any] = []
        for module in [*model.blocks, model.norm]:
            module.register_forward_pre_hook(self._enter)

    def now(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _enter(self, module: Any, inputs: Any) -> None:
        self.forward.append(self.now())
        inputs[0].register_hook(lambda _: self.backward.insert(0, self.now()))


def marked_step(
    torch: Any, marks: Marks, forward: Callable[[], Any], update: Callable[[], None]
) -> dict[str, float]:
    """Runs a step; returns the time of each of its parts in ns, those of layers as their mean."""
    marks.forward, marks.backward = [], []
    begin = marks.now()
    loss = forward()
    turn = marks.now()
    loss.backward()
    computed = marks.now()
    update()
    end = marks.now()
    torch.cuda.synchronize()

    def ns(first: Any, last: Any) -> float:
        return float(first.elapsed_time(last)) * 1e6

    ahead, back = marks.forward, marks.backward
    layers = len(ahead) - 1
    return {
        "embedding_forward_ns": ns(begin, ahead[0]),
        "forward_ns": ns(ahead[0], ahead[-1]) / layers,
        "head_forward_ns": ns(ahead[-1], turn),
        "head_backward_ns": ns(turn, back[-1]),
        "backward_ns": ns(back[-1], back[0]) / layers,
        "embedding_backward_ns": ns(back[0], computed),
        "optimizer_ns": ns(computed, end),
    }
