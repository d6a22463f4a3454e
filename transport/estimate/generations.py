"""How generations of GPUs run kernels: shares of data-sheet rates, fitted to published runs.

`python -m bench estimate_fit` fits products, depth, memory, unfused, spread, and the clock of
`h100-96` in gpus.toml; of TPUs, products alone. The rest is of the sources below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Kernels:
    """Shares of a GPU's data-sheet rates that its kernels reach.

    products: of the peak, in large products, at the clock that the power limit leaves. depth: steps
    of k that a tile costs beside its own. fp8: the share of the peak in FP8 as a part of that in 16
    bits; None: the same, and not fitted. flash: framework -> of the peak, in forward and backward
    passes of FlashAttention of long sequences, of the operations that are done; flash_tokens: the
    length of a sequence that reaches half of it. memory: of its memory's rate. unfused: bytes that
    PyTorch's kernels between products move, for each one that Megatron's fused ones move.
    launch_ns: from a kernel's end to the next one's start. fitted: accelerators whose runs were
    fitted; empty: all of the generation. copies: FSDP and DDP copy parameters and gradients to and
    from buffers. spread: 10th and 90th percentile of
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
    fp8: float | None = None
    fitted: tuple[str, ...] = ()
    copies: bool = True


# Chosen, not fitted. FlashAttention 2 reaches 50 to 73 % of an A100's peak (Dao,
# "FlashAttention-2", arXiv 2307.08691, section 4). On an H100, with heads of 128, a causal mask,
# and 2,048 and 16,384 tokens, it reaches 298 and 335 Tflop/s in forward, and cuDNN 484 and 539; in
# backward, without a mask, 291 and 322, and 465 and 516 (Shah et al., "FlashAttention-3", arXiv
# 2407.08608, section 4.1). Those of forward are met within 10 %: 277 and 368, 441 and 585.
FLASH_2_A100 = (0.67, 0.60)
FLASH_2_HOPPER = (0.39, 0.32)
CUDNN_HOPPER = (0.62, 0.53)
# On a B200, FlashAttention 4 reaches 1,605 Tflop/s in forward, at most 1.3 times as much as cuDNN
# 9.13 and 2.7 times Triton, as units for exponentials and shared memory are as on Hopper
# (https://www.together.ai/blog/flashattention-4). Backward: assumed in Hopper's proportion;
# FlashAttention 2: assumed as Triton.
CUDNN_BLACKWELL = (0.55, 0.47)
FLASH_2_BLACKWELL = (0.26, 0.22)
# Assumed: kernels that a host queues ahead follow each other in 1 to 3 us.
LAUNCH_NS = 2_000.0
# Assumed: no measurement of Splash attention as a part of a TPU's peak was found. A causal mask
# leaves blocks of MaxText's 512 queries and keys (sa_block_q, sa_block_kv of configs/base.yml)
# whole, so that a sequence of s tokens has s + 512 in the place of s.
SPLASH = (0.5, 0.5)
SPLASH_BLOCK = 512.0
# All fitted runs of TPUs are MaxText's own. With each accelerator left out instead of each
# publisher, the fit gives 0.93 to 1.05, which has nothing of what publishers differ in: assumed is
# the widest range of a generation with several, A100s.
OF_ONE_PUBLISHER = (0.79, 1.18)
HOPPER = Kernels(
    products=0.595,
    depth=205.0,
    flash={"pytorch": FLASH_2_HOPPER, "megatron": CUDNN_HOPPER},
    flash_tokens=800.0,
    memory=0.80,
    unfused=2.45,
    launch_ns=LAUNCH_NS,
    spread=(0.92, 1.18),
    fp8=1.10,
)
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
    "hopper": HOPPER,
    # A tile's steps beside its own take as long as on Hopper, whose SMs have half of the peak. All
    # else but products is as on Hopper.
    "blackwell": replace(
        HOPPER,
        products=0.51,
        depth=415.0,
        flash={"pytorch": FLASH_2_BLACKWELL, "megatron": CUDNN_BLACKWELL},
        spread=(0.79, 1.24),
    ),
    # XLA fuses the kernels between products; a program has no host that launches each.
    "tpu": Kernels(
        products=0.77,
        depth=0.0,
        flash={"pytorch": SPLASH, "megatron": SPLASH},
        flash_tokens=SPLASH_BLOCK,
        memory=0.80,
        unfused=1.0,
        launch_ns=0.0,
        spread=OF_ONE_PUBLISHER,
        fitted=("tpu-v4", "tpu-v5p"),
        copies=False,
    ),
}
