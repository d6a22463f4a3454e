"""Plans of published runs, with what their sources say about recomputation."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from bench.lib.published_runs import PublishedRun
from transport.estimate.computation import Computation
from transport.estimate.gpus import names
from transport.estimate.models import Model
from transport.estimate.networks import Network, NetworkError, link, of_links
from transport.estimate.plan import REMATS, Plan, PlanError
from transport.estimate.rounds import length_ns
from transport.estimate.step import Step
from transport.estimate.torus import parsed

GRADIENT_BYTES = 4
# Parameters whose gradients NeMo and Megatron Bridge reduce at once: comm_overlap.py of both, which
# also gathers parameters beside the forward pass.
NEMO_BUCKET = 128 << 20
# Notes in `assumed` on what is recomputed: a part of the layers, or the operations with it.
EVERY_SECOND = "every second layer is recomputed"
HARDWARE = re.compile(r"HFU : MFU of the source ([0-9.]+) : ([0-9.]+)")
OPERATIONS = "github.com/pytorch/torchtitan"  # whose other selective recomputation is of operators
# NVIDIA's runs on Hopper overlap tensor parallel communication, and that of data parallel ranks
# with both passes: README.md of Megatron-LM at f2e5db4, and question 1 in that of
# dgxc-benchmarking, whose logs have Transformer Engine's userbuffers.
NVIDIA = "github.com/NVIDIA"
NEMO = ("github.com/NVIDIA/NeMo", "github.com/NVIDIA/dgxc", "github.com/NVIDIA-NeMo")
BRIDGE = "Megatron-Bridge"
DUALPIPE = "DeepSeek-AI"  # whose run has this schedule (arXiv 2412.19437, section 3.2.1)

# Accelerator and chips of a slice -> its shape (docs.cloud.google.com/tpu/docs: v4, v5e, v5p, v6e).
SLICES = {
    ("tpu-v4", 64): "4x4x4",
    ("tpu-v5p", 64): "4x4x4",
    ("tpu-v5p", 512): "8x8x8",
    ("tpu-v5e", 256): "16x16",
    ("tpu-v6e", 8): "2x4:open",
    ("tpu-v6e", 32): "4x8:open",
    ("tpu-v6e", 64): "8x8:open",
    ("tpu-v6e", 256): "16x16",
    ("tpu-v7x", 64): "4x4x4",
    ("tpu-v7x", 128): "4x4x8",
    ("tpu-v7x", 256): "4x8x8",
}
# Gb/s of one chip in the data-centre network that joins slices (docs.cloud.google.com/tpu/docs: v5p
# 50 a chip; v5e 2 x 100 and v6e 4 x 200 for a host of 8). v4: assumed as v5p.
OUTSIDE = {
    "tpu-v4": "ethernet-50",
    "tpu-v5p": "ethernet-50",
    "tpu-v5e": "ethernet-25",
    "tpu-v6e": "ethernet-100",
}
# In `assumed` of runs of MaxText: the remat_policy, or the outputs that a custom one keeps.
REMAT = re.compile(r"remat_policy ([a-z_]+)(?: of ([a-z_, ]+))?")

# ... of runs whose tensor parallel parts need a longer axis.
LONG_SLICES = {("tpu-v5p", 512, 16): "16x8x4"}

Computing = Callable[[Model, Plan], Computation]


class NotExpressibleError(Exception):
    """The estimator cannot express a run; says why."""


def plan_of(one: PublishedRun) -> Plan:
    """The plan of a run, without the recomputation of some layers only."""
    if one.gpu not in names():
        raise NotExpressibleError(f"no GPU {one.gpu}")
    if one.dtype not in ("bf16", "fp16", "fp8"):
        raise NotExpressibleError(f"{one.dtype}: only 16 bits, and FP8")
    share, kept = again_of(one), kept_of(one)
    nvidia = one.generation != "A100" and one.publisher.startswith(NVIDIA)
    # Gradients of JAX have the type of their products until they are summed.
    is_tpu = one.generation == "TPU"
    is_operators = one.recompute == "selective" and share is None and kept is None
    # FSDP is PyTorch's, but that of Megatron Bridge; all else runs in Megatron-LM or its relatives,
    # with fused kernels.
    is_pytorch = one.zero in (3, None) and not is_tpu and not one.publisher.endswith(BRIDGE)
    framework = "pytorch" if is_pytorch else "megatron"
    plan = Plan(
        data=one.data,
        tensor=one.tensor,
        pipeline=one.pipeline,
        interleave=one.interleave,
        expert=one.expert,
        context=one.context,
        zero=3 if one.zero is None else one.zero,
        schedule="dualpipe" if one.publisher == DUALPIPE else "1f1b",
        shard=one.gpus_per_node // one.tensor if one.zero is None else 0,
        micro_batch=one.micro_batch,
        global_batch=one.global_batch,
        gradient_bytes=2 if is_tpu else GRADIENT_BYTES,
        recompute=one.recompute == "full" and kept is None,
        selective="operators" if is_operators else "",
        flash=one.flash,
        # MaxText splits activations between tensor parallel parts (activation_embed in base.yml).
        sequence=one.sequence_parallel or (is_tpu and one.tensor > 1),
        # XLA decomposes operations beside products (Wang et al., ASPLOS 2023, on TPU v4).
        overlap=one.tensor > 1 and ((nvidia and one.sequence_parallel) or is_tpu),
        framework=framework,
        dtype="fp8" if one.dtype == "fp8" else "bf16",
        kept=kept,
        bucket_bytes=Plan.bucket_bytes if is_pytorch or is_tpu else GRADIENT_BYTES * bucket_of(one),
        overlap_gather=nvidia and one.zero in (1, 2) and one.data > 1,
    )
    try:
        plan.check(one.model)
    except PlanError as error:
        raise NotExpressibleError(str(error)) from None
    return plan


def bucket_of(one: PublishedRun) -> int:
    """Parameters whose gradients Megatron reduces at once.

    Megatron-Core (megatron/core/distributed, distributed_data_parallel.py) has more of them for
    more data parallel ranks. Older versions, which reduce all at the end, are taken as that, too.
    """
    if one.publisher.startswith(NEMO):
        return NEMO_BUCKET
    return max(40_000_000, 1_000_000 * one.data * one.context)


def kept_of(one: PublishedRun) -> tuple[str, ...] | None:
    """What a run of MaxText keeps of a layer; None: its source does not say, or it is no MaxText's.

    A `full` recomputation of MaxText's is that of its remat_policy.
    """
    if one.generation != "TPU":
        return None
    if found := REMAT.search(one.assumed):
        policy, names = found.groups()
        if policy == "custom":
            return tuple((names or "").replace(",", " ").split())
        return REMATS[f"maxtext-{policy}"]
    return () if one.recompute == "full" else None


def again_of(one: PublishedRun) -> float | None:
    """The part of the layers that is recomputed; None: all, none, or some operations of each."""
    if one.recompute != "selective" or kept_of(one) is not None:
        return None
    if EVERY_SECOND in one.assumed:
        return 0.5
    if found := HARDWARE.search(one.assumed):
        hardware, useful = map(float, found.groups())
        return min(3.0 * (hardware / useful - 1.0), 1.0)
    if one.publisher.startswith(OPERATIONS):
        return None
    raise NotExpressibleError("recomputes some operations")


def estimated_s(one: PublishedRun, computing: Computing) -> float:
    """The estimated time of a step in s. NotExpressibleError: the estimator cannot express it.

    computing: the computation of a model and a plan. A run that recomputes some layers takes a time
    between those without and with recomputation of all layers.
    """
    plan = plan_of(one)
    share = again_of(one)
    if share is None:
        return _step_s(one, plan, computing)
    none_s, all_s = (
        _step_s(one, replace(plan, recompute=each), computing) for each in (False, True)
    )
    return none_s + share * (all_s - none_s)


def _step_s(one: PublishedRun, plan: Plan, computing: Computing) -> float:
    try:
        network = _network_of(one)
    except NetworkError as error:
        raise NotExpressibleError(str(error)) from None
    return length_ns(Step(one.model, plan, computing(one.model, plan), network)) / 1e9


def _network_of(one: PublishedRun) -> Network:
    """The network of a run: links to switches, or the tori of slices of TPUs."""
    if one.generation != "TPU":
        return of_links(one.between, one.inside, one.gpus_per_node, one.nics_per_node or None)
    slices = one.gpus // one.gpus_per_node
    if (one.gpu, one.gpus_per_node) not in SLICES or (slices > 1 and one.gpu not in OUTSIDE):
        raise NotExpressibleError(f"no shape or network of {one.gpus} {one.gpu}")
    key = one.gpu, one.gpus_per_node
    torus = parsed(LONG_SLICES.get((*key, one.tensor), SLICES[key]))
    outside = link(OUTSIDE[one.gpu]) if slices > 1 else None
    return Network(
        one.gpu,
        "links.toml",
        link(one.gpu),
        torus.chips,
        torus=torus,
        slices=slices,
        outside=outside,
    )
