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
from transport.estimate.plan import Plan, PlanError
from transport.estimate.rounds import length_ns
from transport.estimate.step import Step
from transport.estimate.torus import parsed

GRADIENT_BYTES = 4
# Notes in `assumed` on what is recomputed: a part of the layers, or the operations with it.
EVERY_SECOND = "every second layer is recomputed"
HARDWARE = re.compile(r"HFU : MFU of the source ([0-9.]+) : ([0-9.]+)")
OPERATIONS = "github.com/pytorch/torchtitan"  # whose other selective recomputation is of operators
# NVIDIA's runs on Hopper overlap tensor parallel communication: README.md of Megatron-LM at
# f2e5db4, and question 1 in that of dgxc-benchmarking, whose logs have Transformer Engine's
# userbuffers.
NVIDIA = "github.com/NVIDIA"

# Accelerator and chips of a slice -> its shape (docs.cloud.google.com/tpu/docs: v4, v5e, v5p, v6e).
SLICES = {
    ("tpu-v4", 64): "4x4x4",
    ("tpu-v5p", 64): "4x4x4",
    ("tpu-v5p", 512): "8x8x8",
    ("tpu-v5e", 256): "16x16",
    ("tpu-v6e", 256): "16x16",
}

Computing = Callable[[Model, Plan], Computation]


class NotExpressibleError(Exception):
    """The estimator cannot express a run; says why."""


def plan_of(one: PublishedRun) -> Plan:
    """The plan of a run, without the recomputation of some layers only."""
    if one.gpu not in names():
        raise NotExpressibleError(f"no GPU {one.gpu}")
    if one.dtype not in ("bf16", "fp16", "fp8"):
        raise NotExpressibleError(f"{one.dtype}: only 16 bits, and FP8")
    share = again_of(one)
    nvidia = one.generation != "A100" and one.publisher.startswith(NVIDIA)
    is_pytorch = one.zero in (3, None) and one.generation != "TPU"
    framework = "pytorch" if is_pytorch else "megatron"
    plan = Plan(
        data=one.data,
        tensor=one.tensor,
        pipeline=one.pipeline,
        interleave=one.interleave,
        expert=one.expert,
        context=one.context,
        zero=3 if one.zero is None else one.zero,
        shard=one.gpus_per_node if one.zero is None else 0,
        micro_batch=one.micro_batch,
        global_batch=one.global_batch,
        gradient_bytes=GRADIENT_BYTES,
        recompute=one.recompute == "full",
        selective="operators" if one.recompute == "selective" and share is None else "",
        flash=one.flash,
        sequence=one.sequence_parallel,
        # FSDP is PyTorch's; all else runs in Megatron-LM or its relatives, with fused kernels.
        overlap=nvidia and one.sequence_parallel and one.tensor > 1,
        # XLA fuses kernels, too.
        framework=framework,
        dtype="fp8" if one.dtype == "fp8" else "bf16",
    )
    try:
        plan.check(one.model)
    except PlanError as error:
        raise NotExpressibleError(str(error)) from None
    return plan


def again_of(one: PublishedRun) -> float | None:
    """The part of the layers that is recomputed; None: all, none, or some operations of each."""
    if one.recompute != "selective":
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
    """The network of a run: links to switches, or the torus of one slice of TPUs."""
    if one.generation != "TPU":
        return of_links(one.between, one.inside, one.gpus_per_node, one.nics_per_node or None)
    if one.gpus > one.gpus_per_node:
        raise NotExpressibleError("several slices of TPUs")
    if (one.gpu, one.gpus) not in SLICES:
        raise NotExpressibleError(f"no shape of {one.gpus} {one.gpu}")
    torus = parsed(SLICES[one.gpu, one.gpus])
    return Network(one.gpu, "links.toml", link(one.gpu), torus.chips, torus=torus)
