"""Compares estimates of training steps with published runs; the same assumptions for all of them.

The runs are those of Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM" (SC 2021), table 1: A100 of 80 GB, eight 200 Gb/s InfiniBand NICs a
node, recomputation. The table has no sizes of microbatches; those here are assumed.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import click

from bench.lib.common import Config, document, emit, interruptible, json_option
from transport.estimate.gpus import EFFICIENCY, gpu
from transport.estimate.models import PRESETS
from transport.estimate.networks import of_links
from transport.estimate.plan import Plan
from transport.estimate.schedule import run
from transport.estimate.step import Step

COLUMNS = ("model", "gpus", "tensor", "pipeline", "batch", "published", "estimated", "error")


@dataclass(frozen=True)
class Published:
    """A run. tflops: what each GPU reached."""

    model: str
    gpus: int
    tensor: int
    pipeline: int
    batch: int
    micro_batch: int
    tflops: float


RUNS = (
    Published("megatron-1.7b", 32, 1, 1, 512, 16, 137),
    Published("megatron-3.6b", 64, 2, 1, 512, 16, 138),
    Published("megatron-7.5b", 128, 4, 1, 512, 16, 142),
    Published("megatron-18b", 256, 8, 1, 1_024, 8, 135),
    Published("megatron-39b", 512, 8, 2, 1_536, 4, 138),
    Published("megatron-76b", 1_024, 8, 4, 1_792, 2, 140),
    Published("megatron-145b", 1_536, 8, 8, 2_304, 2, 148),
    Published("megatron-310b", 1_920, 8, 16, 2_160, 1, 155),
    Published("megatron-530b", 2_520, 8, 35, 2_520, 1, 163),
    Published("megatron-1t", 3_072, 8, 64, 3_072, 1, 163),
)


def estimated(one: Published, efficiency: float) -> Config:
    model = PRESETS[one.model]
    plan = Plan(
        data=one.gpus // (one.tensor * one.pipeline), tensor=one.tensor, pipeline=one.pipeline,
        micro_batch=one.micro_batch, global_batch=one.batch, gradient_bytes=4, recompute=True,
    )  # fmt: skip
    plan.check(model)
    network = of_links("infiniband-200", "nvlink3", 8)
    step_ns = run(Step(model, plan, gpu("a100-80", efficiency), network).build()).length_ns
    flops = model.step_flops(one.batch * model.sequence, recomputes=True)
    tflops = flops / step_ns / one.gpus / 1e3
    return {
        "model": one.model, "gpus": one.gpus, "tensor": one.tensor, "pipeline": one.pipeline,
        "batch": one.batch, "published": one.tflops, "estimated": tflops,
        "error": tflops / one.tflops - 1,
    }  # fmt: skip


@click.command("estimate_published")
@click.option("--efficiency", default=EFFICIENCY, show_default=True,
              help="Part of the GPU's peak that kernels reach, the same for all.")  # fmt: skip
@click.option("--only", help="Only this model.")
@json_option
def command(efficiency: float, only: str | None, json_path: str | None) -> None:
    """Compares estimated Tflop/s a GPU with those of published runs."""
    with interruptible() as cut:
        rows = [estimated(one, efficiency) for one in RUNS if only in (None, one.model)]
    if not rows:
        raise click.UsageError(f"no run of {only}: there are {', '.join(r.model for r in RUNS)}")
    middle = statistics.median(abs(row["error"]) for row in rows)
    notes = [f"median error {middle:.1%}, with an efficiency of {efficiency} for all"]
    emit(document("estimate_published", rows), json_path, COLUMNS, notes, cut)
