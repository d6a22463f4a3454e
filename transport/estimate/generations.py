"""How generations of GPUs run kernels: shares of data-sheet rates, fitted to published runs.

`python -m bench estimate_fit` fits products, depth, memory, unfused, spread, and the clock of
`h100-96` in gpus.toml; the rest is of the sources below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kernels:
    """Shares of a GPU's data-sheet rates that its kernels reach.

    products: of the peak, in large products, at the clock that the power limit leaves. depth: steps
    of k that a tile costs beside its own. flash: framework -> of the peak, in forward and backward
    passes of FlashAttention of long sequences, of the operations that are done; flash_tokens: the
    length of a sequence that reaches half of it. memory: of its memory's rate. unfused: bytes that
    PyTorch's kernels between products move, for each one that Megatron's fused ones move.
    launch_ns: from a kernel's end to the next one's start. spread: 10th and 90th percentile of
    published / estimated times of steps, of publishers that were left out of a fit to the others.
    """

    products: float
    depth: float
    flash: Mapping[str, tuple[float, float]]
    flash_tokens: float
    memory: float
    unfused: float
    launch_ns: float
    spread: tuple[float, float]


# Chosen, not fitted. FlashAttention 2 reaches 50 to 73 % of an A100's peak (Dao,
# "FlashAttention-2", arXiv 2307.08691, section 4). On an H100, with heads of 128, a causal mask,
# and 2,048 and 16,384 tokens, it reaches 298 and 335 Tflop/s in forward, and cuDNN 484 and 539; in
# backward, without a mask, 291 and 322, and 465 and 516 (Shah et al., "FlashAttention-3", arXiv
# 2407.08608, section 4.1). Those of forward are met within 10 %: 277 and 368, 441 and 585.
FLASH_2_A100 = (0.67, 0.60)
FLASH_2_HOPPER = (0.39, 0.32)
CUDNN_HOPPER = (0.62, 0.53)
# Assumed: kernels that a host queues ahead follow each other in 1 to 3 us.
LAUNCH_NS = 2_000.0
GENERATIONS = {
    "a100": Kernels(
        products=0.70,
        depth=210.0,
        flash={"pytorch": FLASH_2_A100, "megatron": FLASH_2_A100},
        flash_tokens=512.0,
        memory=0.79,
        unfused=1.7,
        launch_ns=LAUNCH_NS,
        spread=(0.79, 1.18),
    ),
    "hopper": Kernels(
        products=0.59,
        depth=190.0,
        flash={"pytorch": FLASH_2_HOPPER, "megatron": CUDNN_HOPPER},
        flash_tokens=800.0,
        memory=0.78,
        unfused=2.25,
        launch_ns=LAUNCH_NS,
        spread=(0.89, 1.18),
    ),
}
