"""Compares estimates of training steps with published runs; the same assumptions for all of them.

Sources: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM" (SC 2021), table 1; Grattafiori et al., "The Llama 3 Herd of Models" (2024), table 4;
Jiang et al., "MegaScale" (NSDI 2024), section 6; DeepSeek-AI, "DeepSeek-V3 Technical Report"
(2024), table 1: 180,000 GPU hours for 10^12 tokens; Smith et al., "Using DeepSpeed and Megatron to
Train Megatron-Turing NLG 530B" (2022), section 2.4; Bang et al., "vTrain" (MICRO 2024), the
iterations that its authors measured. What they do not say is assumed, and named here: sizes of
microbatches, chunks of a pipeline stage, and for vTrain recomputation and four NICs of 200 Gb/s.
"""

from __future__ import annotations

import csv
import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from bench.lib.common import Config, document, emit, interruptible, json_option
from transport.estimate.computation import of_gpu
from transport.estimate.gpus import EFFICIENCY, gpu
from transport.estimate.models import PRESETS
from transport.estimate.networks import of_links
from transport.estimate.plan import Plan
from transport.estimate.schedule import run
from transport.estimate.step import Step
from transport.ground.units import percent

VTRAIN = Path(__file__).parent / "reference" / "vtrain_iterations.csv"
VTRAIN_COLUMNS = ("run", "runs", "median", "mean_without_sign", "least", "most")
COLUMNS = ("run", "gpus", "tensor", "pipeline", "batch", "unit", "published", "estimated", "error")


@dataclass(frozen=True)
class Published:
    """A training run. value: Tflop/s that each GPU reached or, if `tokens`, tokens/s of each GPU.

    more: further fields of the estimate's Plan.
    """

    run: str
    model: str
    gpus: int
    tensor: int
    pipeline: int
    batch: int
    micro_batch: int
    value: float
    gpu: str = "a100-80"
    inside: str = "nvlink3"
    between: str = "infiniband-200"
    sequence: int = 0  # tokens of a sequence; 0: those of the preset
    flops_times: float = 1.0  # factor by which the GPU's peak in bf16 is multiplied
    tokens: bool = False
    more: dict[str, Any] = field(default_factory=dict)


def megatron(
    size: str, gpus: int, tensor: int, pipeline: int, batch: int, micro_batch: int, tflops: float
) -> Published:
    name = f"megatron-{size}"
    return Published(
        name,
        name,
        gpus,
        tensor,
        pipeline,
        batch,
        micro_batch,
        tflops,
        more={"recompute": True, "flash": False},
    )


def turing(gpus: int, tflops: float) -> Published:
    return replace(megatron("530b", gpus, 8, 35, 1_920, 1, tflops), run=f"mt-nlg, {gpus}")


def llama(
    name: str, gpus: int, batch: int, tflops: float, *, sequence: int = 0, **plan: int
) -> Published:
    # Pipeline stages are interleaved as far as the number of layers allows; a batch has the paper's
    # 16 million tokens.
    return Published(
        f"llama3-405b, {name}",
        "llama3-405b",
        gpus,
        tensor=8,
        pipeline=16,
        batch=batch,
        micro_batch=1,
        value=tflops,
        gpu="h100",
        inside="nvlink4",
        between="ethernet-400",
        sequence=sequence,
        more={"zero": 2, "sequence": True, "interleave": 7} | plan,
    )


MEGASCALE = {"interleave": 6, "sequence": True, "zero": 2}
RUNS = (
    megatron("1.7b", 32, 1, 1, 512, 16, 137),
    megatron("3.6b", 64, 2, 1, 512, 16, 138),
    megatron("7.5b", 128, 4, 1, 512, 16, 142),
    megatron("18b", 256, 8, 1, 1_024, 8, 135),
    megatron("39b", 512, 8, 2, 1_536, 4, 138),
    megatron("76b", 1_024, 8, 4, 1_792, 2, 140),
    megatron("145b", 1_536, 8, 8, 2_304, 2, 148),
    megatron("310b", 1_920, 8, 16, 2_160, 1, 155),
    megatron("530b", 2_520, 8, 35, 2_520, 1, 163),
    megatron("1t", 3_072, 8, 64, 3_072, 1, 163),
    turing(2_240, 126),
    turing(2_800, 121),
    turing(3_360, 113),
    llama("8K", 8_192, 2_048, 430),
    llama("16K", 16_384, 2_048, 400),
    llama("long", 16_384, 128, 380, sequence=131_072, context=16),
    Published(
        "megascale: Megatron-LM", "gpt3-175b", 12_288, 8, 8, 6_144, 1, 0.412 * 312, more=MEGASCALE
    ),
    Published("megascale", "gpt3-175b", 12_288, 8, 8, 6_144, 1, 0.552 * 312, more=MEGASCALE),
    Published(
        "deepseek-v3",
        "deepseek-v3",
        2_048,
        1,
        16,
        15_360,
        1,
        1e12 / 180e3 / 3600,
        gpu="h800",
        inside="nvlink3",
        between="infiniband-400",
        flops_times=2.0,
        tokens=True,
        more={"expert": 64, "zero": 1},
    ),
)


def estimated(one: Published, efficiency: float) -> Config:
    model = PRESETS[one.model]
    if one.sequence:
        model = replace(model, sequence=one.sequence)
    ranks = one.tensor * one.pipeline * int(one.more.get("context", 1))
    plan = Plan(
        data=one.gpus // ranks,
        tensor=one.tensor,
        pipeline=one.pipeline,
        micro_batch=one.micro_batch,
        global_batch=one.batch,
        gradient_bytes=4,
        **one.more,
    )
    plan.check(model)
    network = of_links(one.between, one.inside, 8)
    known = gpu(one.gpu, efficiency)
    known = replace(known, flops=known.flops * one.flops_times)
    step_ns = run(Step(model, plan, of_gpu(model, plan, known), network).build()).length_ns
    tokens = one.batch * model.sequence
    if one.tokens:
        found = tokens / step_ns * 1e9 / one.gpus
    else:
        found = model.step_flops(tokens, recomputes=plan.recompute) / step_ns / one.gpus / 1e3
    return {
        "run": one.run,
        "model": one.model,
        "gpus": one.gpus,
        "tensor": one.tensor,
        "pipeline": one.pipeline,
        "batch": one.batch,
        "unit": "tokens/s" if one.tokens else "Tflop/s",
        "published": one.value,
        "estimated": found,
        "error": found / one.value - 1,
    }


def vtrain_runs(efficiency: float) -> list[Config]:
    """A row for each iteration that vTrain's authors measured."""
    with VTRAIN.open(encoding="utf-8") as file:
        measured = list(csv.DictReader(line for line in file if line[0] != "#"))
    network = of_links("infiniband-200", "nvlink3", 8, 4)
    known = gpu("a100-80", efficiency)
    rows = []
    for one in measured:
        model = PRESETS[one["model"]]
        number = {key: int(value) for key, value in one.items() if value.isdigit()}
        plan = Plan(
            data=number["data"],
            tensor=number["tensor"],
            pipeline=number["pipeline"],
            micro_batch=number["micro_batch"],
            global_batch=number["batch"],
            gradient_bytes=4,
            recompute=True,
            flash=False,
        )
        plan.check(model)
        tasks = Step(model, plan, of_gpu(model, plan, known), network).build()
        found_ms, took_ms = run(tasks).length_ns / 1e6, float(one["iteration_ms"])
        degrees = {
            key: number[key]
            for key in ("gpus", "batch", "micro_batch", "data", "tensor", "pipeline")
        }
        rows.append(
            {"run": model.name}
            | degrees
            | {"published_ms": took_ms}
            | {"estimated_ms": found_ms, "error": found_ms / took_ms - 1}
        )
    return rows


def vtrain_summary(rows: list[Config]) -> list[Config]:
    """Errors by model, and by whether a layer is split over more than one node."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        name = row["run"] if row["tensor"] <= 8 else "tensor 16, over nodes"
        groups.setdefault(name, []).append(row["error"])
    groups["all"] = [row["error"] for row in rows]
    return [
        {
            "run": name,
            "runs": len(each),
            "median": statistics.median(each),
            "mean_without_sign": statistics.mean(map(abs, each)),
            "least": min(each),
            "most": max(each),
        }
        for name, each in groups.items()
    ]


@click.command("estimate_published")
@click.option(
    "--efficiency",
    default=EFFICIENCY,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Part of the peak that matrix products reach, the same for all.",
)
@click.option("--only", help="Only this run.")
@click.option(
    "--vtrain", is_flag=True, help="The 109 iterations that vTrain's authors measured on A100s."
)
@json_option
def command(efficiency: float, only: str | None, vtrain: bool, json_path: str | None) -> None:
    """Compares estimated speeds of a GPU with those of published runs."""
    if vtrain:
        if only is not None:
            raise click.UsageError("--vtrain compares all of its runs: leave out --only")
        each = vtrain_runs(efficiency)
        found = document("estimate_published", vtrain_summary(each), each=each)
        emit(found, json_path, VTRAIN_COLUMNS, ["vTrain's own mean error is 14.7 %, as published"])
        return
    with interruptible() as cut:
        rows = [estimated(one, efficiency) for one in RUNS if only in (None, one.run)]
    if not rows:
        raise click.UsageError(f"no run {only!r}: choose one of {', '.join(r.run for r in RUNS)}")
    middle = statistics.median(abs(row["error"]) for row in rows)
    notes = [f"median error {percent(middle)}, with an efficiency of {efficiency} for all"]
    emit(document("estimate_published", rows), json_path, COLUMNS, notes, cut)
