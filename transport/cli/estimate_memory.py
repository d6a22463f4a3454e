"""Options and words of the memory that a training step needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from transport.estimate.plan import ADAM_BYTES, FRAMEWORKS
from transport.ground.units import bytes_text, percent

if TYPE_CHECKING:
    from transport.estimate.gpus import Gpu
    from transport.estimate.memory import Memory
    from transport.estimate.plan import Plan
    from transport.estimate.training import Training

MAXTEXT = "maxtext"
MEMORY_OPTIONS = (
    click.option(
        "--framework",
        type=click.Choice(FRAMEWORKS),
        default=FRAMEWORKS[0],
        show_default=f"{FRAMEWORKS[0]}; {MAXTEXT} on TPUs",
        help="Whose kernels and buffers memory is estimated for; compiled: torch.compile of model "
        "and loss, which fuses SwiGLU and the loss, as megatron does; maxtext: JAX and XLA.",
    ),
    click.option(
        "--optimizer-bytes",
        default=ADAM_BYTES,
        show_default=True,
        type=click.IntRange(1, 64),
        help="State of a parameter beside its value and gradient; 12: Adam with a master copy in "
        "fp32; 4: two moments in bf16 (MaxText's weight_dtype bfloat16).",
    ),
)
offload_option = click.option(
    "--offload/--no-offload",
    default=False,
    help="What a --recompute of MaxText keeps of layers waits for backward in the host's memory; "
    "its way there takes no time in the estimate.",
)


def set_framework(given: dict[str, Any], gpu: Gpu) -> None:
    """Changes the default framework to that of the accelerator."""
    source = click.get_current_context().get_parameter_source("framework")
    is_default = source is click.core.ParameterSource.DEFAULT
    if gpu.is_tpu and is_default and given.get("framework") == FRAMEWORKS[0]:
        given["framework"] = MAXTEXT


def fitting(found: Training, plan: Plan, gpu: Gpu) -> list[str]:
    """A line if the step does not fit the accelerator's memory, or may not."""
    from transport.estimate.memory import above_of

    needed, has = found.memory.total, bytes_text(gpu.memory_bytes)
    finds = "weft estimate plan finds plans that fit"
    offloaded = found.offloaded_bytes
    if not found.fits and offloaded is not None and offloaded <= gpu.memory_bytes:
        options = "--offload" if plan.kept is not None else "--recompute maxtext-full --offload"
        return [
            f"fits only with {options}: {gpu.one} has {has}, and needs {bytes_text(offloaded)} if "
            "what is kept of layers waits in the host's memory, as in MaxText's recipes; else "
            f"{bytes_text(needed)}"
        ]
    if not found.fits:
        return [f"does not fit: {gpu.one} needs {bytes_text(needed)} and has {has}: {finds}"]
    if found.fits_surely:
        return []
    left = percent(1 - needed / gpu.memory_bytes)
    return [
        f"may not fit: {gpu.one} has {has}, of which {left} are left, and published peaks were up "
        f"to {percent(above_of(plan), 0)} above estimates: {finds}"
    ]


def parts_of(memory: Memory) -> str:
    """What the memory consists of, without parts that are empty."""
    parts = {
        "parameters": memory.parameters,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations,
        "logits": memory.logits,
        "buffers": memory.buffers,
        "unused by the allocator": memory.unused,
        "CUDA and NCCL": memory.outside,
    }
    return ", ".join(f"{name} {bytes_text(size)}" for name, size in parts.items() if size)


def memory_notes(plan: Plan) -> list[str]:
    """Notes on what the memory of a framework is based on."""
    if plan.framework != MAXTEXT:
        return []
    return [
        "memory: as XLA runs MaxText; no peak of it was measured, but the 33 published runs on "
        "TPUs fit"
    ]
