"""Times training steps of GPT-2 models on GPUs: what one GPU computes, and steps over networks.

What one GPU computes is for `weft estimate train --computation`; steps over networks are what such
an estimate is compared with (`python -m bench estimate_steps`).
"""

from __future__ import annotations

import os
import statistics
from typing import Any

import click
from click.core import ParameterSource

from bench.lib.common import (
    Config,
    document,
    emit,
    interruptible,
    json_option,
    median,
    rounds,
    verdict,
)
from bench.nccl import contenders, driver, run
from transport import native
from transport.estimate.models import PRESETS, Model

MODELS = ("gpt2-medium", "gpt2-xl", "megatron-3.6b")
# Limit of tokens x hidden size of a step, which determines its number of sequences. It is this
# high because a host needs some 1 ms to launch a layer's kernels, and the GPU must compute for
# longer than that; else the host, and not the GPU, would be measured.
WORK = 1 << 25
PARALLEL = ("ddp", "fsdp")
SIZES = ("layers", "hidden", "heads", "ffn", "vocabulary", "sequence")
RANK = "bench.lib.step_rank"
# Limit of the sum of the times of a step's parts, divided by the time of the step. CUDA events
# between the parts cost only the host time: the sum is larger only if the GPU waits for the host.
PARTS_MAX = 1.03
ALONE_COLUMNS = (
    *("model", "parallel", "step_ns", "host_ns", "forward_ns", "backward_ns"),
    *("head_forward_ns", "head_backward_ns", "optimizer_ns", "parts"),
)
COLUMNS = ("contender", "model", "parallel", "step_ms", "spread", "alone_ms", "exposed_ms", "share")


def sizes_of(name: str, micro_batch: int | None = None) -> Config:
    """The sizes of a model that the benchmark can build, and the sequences of a step."""
    model = PRESETS.get(name)
    if model is None or not buildable(model):
        fit = [one.name for one in PRESETS.values() if buildable(one)]
        raise click.UsageError(f"--model {name}: choose from {', '.join(fit)}")
    found = {"model": name} | {size: getattr(model, size) for size in SIZES}
    most = WORK // (model.hidden * model.sequence)
    return found | {"micro_batch": micro_batch or 1 << max(most.bit_length() - 1, 0)}


def buildable(model: Model) -> bool:
    """Whether the model is a GPT-2, the only kind that the ranks build."""
    kv_heads = model.kv_heads or model.heads
    return model.tied and not model.gated and model.experts == 1 and kv_heads == model.heads


def over_networks(rows: list[Config]) -> list[Config]:
    """One row per contender, model and kind of parallelism: medians of the rounds.

    exposed_ms: the time of a step minus the time of a step without communication, for which the
    same GPUs all compute at the same time.
    """
    groups: dict[tuple[Any, ...], list[Config]] = {}
    for row in rows:
        groups.setdefault((row["contender"], row["model"], row["parallel"]), []).append(row)
    found = []
    for (contender, model, parallel), mine in groups.items():
        if parallel == "alone":
            found += besides(mine)
            continue
        alone_ns = median(groups[contender, model, "alone"], "step_ns")
        step_ns = median(mine, "step_ns")
        times = [row["step_ns"] for row in mine]
        found.append(
            {key: mine[0][key] for key in (*SIZES, "micro_batch")}
            | {"contender": contender, "model": model, "parallel": parallel}
            | {"step_ms": step_ns / 1e6, "spread": spread_of(times)}
            | {"alone_ms": alone_ns / 1e6, "exposed_ms": (step_ns - alone_ns) / 1e6}
            | {"share": (step_ns - alone_ns) / step_ns}
        )
    return found


def notes_of_parts(rows: list[Config]) -> list[str]:
    notes = ["forward_ns, backward_ns: of a layer; parts: their sum, as a part of the step"]
    return notes + [
        f"{row['model']}: the host launches kernels more slowly than the GPU runs them, so these "
        "are not times of the GPU: take a larger --micro-batch"
        for row in rows
        if row["parts"] > PARTS_MAX
    ]


def notes_of_networks(rows: list[Config]) -> list[str]:
    notes = [
        f"{row['contender']}, {row['model']}: while both run, computation takes "
        f"{row['slowdown']['computation']:.2f} times as long, and operations "
        f"{row['slowdown']['communication']:.2f}"
        for row in rows
        if "slowdown" in row
    ]
    return [
        *notes,
        "spread: range of the rounds divided by their median; alone: the same GPUs without "
        "communication",
    ]


def spread_of(times: list[float]) -> float | None:
    """The range of the rounds' times divided by their median; None: there was one round."""
    return (max(times) - min(times)) / statistics.median(times) if len(times) > 1 else None


def besides(rows: list[Config]) -> list[Config]:
    """A row with the slowdown of steps and operations that run at once, if it was measured."""
    both = [row["beside"] for row in rows if "beside" in row]
    if not both:
        return []
    slow = {key: median(both, key) for key in ("computation", "communication")}
    one = rows[0]
    sizes = {key: one[key] for key in ("contender", "model", *SIZES, "micro_batch")}
    return [sizes | {"parallel": "beside", "slowdown": slow}]


@click.command("step")
@click.option(
    "--gpus",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Ranks, one per GPU. 1: what a GPU computes.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    default=MODELS,
    show_default=True,
    help="A preset of `weft estimate train`.",
)
@click.option(
    "--micro-batch",
    type=click.IntRange(1),
    help="Sequences per step and GPU; by default enough to keep the GPU busy.",
)
@click.option(
    "--parallel",
    multiple=True,
    type=click.Choice(("alone", *PARALLEL)),
    default=PARALLEL,
    show_default=True,
    help="Kinds of parallelism, besides GPUs alone.",
)
@click.option(
    "--bucket-mb",
    default=25,
    show_default=True,
    type=click.IntRange(1),
    help="DDP: MiB of gradients in an AllReduce.",
)
@click.option(
    "--beside", is_flag=True, help="Also measure how much steps and operations slow each other."
)
@click.option(
    "--only",
    multiple=True,
    default=("weft", "NVLink"),
    show_default=True,
    help="Networks, as contenders of bench nccl.",
)
@click.option(
    "--repeats",
    default=3,
    show_default=True,
    type=click.IntRange(1),
    help="Interleaved rounds over networks.",
)
@json_option
def command(
    gpus: int,
    models: tuple[str, ...],
    micro_batch: int,
    parallel: tuple[str, ...],
    bucket_mb: int,
    beside: bool,
    only: tuple[str, ...],
    repeats: int,
    json_path: str | None,
) -> None:
    """Times training steps: what one GPU computes or, with --gpus 2 and more, over networks."""
    task = {
        "models": [sizes_of(name, micro_batch) for name in models],
        "parallel": list(dict.fromkeys(["alone", *parallel])),
        "bucket_mb": bucket_mb,
        "beside": beside,
    }
    if gpus == 1:
        given = click.get_current_context().get_parameter_source
        for name in ("beside", "only", "repeats"):
            if given(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--{name} needs several GPUs: give --gpus 2 or more")
        emit_parts(task, json_path)
        return
    if not native.PLUGIN_PATH.exists():
        raise click.ClickException(f"no plugin ({native.PLUGIN_PATH}): run make build")
    known = contenders()
    if unknown := [name for name in only if name not in known]:
        raise click.UsageError(f"no contender {unknown[0]!r}; choose from {', '.join(known)}")
    rows: list[Config] = []
    facts = {}
    with interruptible() as cut:
        for round_, name in rounds(repeats, only):
            (result,) = run(name, known[name], gpus, task, module=RANK)
            facts = result["facts"]
            rows += [{"contender": name, "round": round_} | row for row in result["found"]]
    more = {"gpus": gpus, "repeats": repeats, "bucket_mb": bucket_mb, "driver": driver()}
    found = document("step", over_networks(rows), **more, **facts, host_cores=os.cpu_count())
    found["rounds"] = rows
    emit(found, json_path, COLUMNS, notes_of_networks(found["rows"]), cut)
    verdict(all(row.get("same", True) for row in rows))


def emit_parts(task: Config, json_path: str | None) -> None:
    """Times what one GPU computes."""
    (result,) = run("alone", {}, 1, task, module=RANK)
    facts = result["facts"] | {"driver": driver(), "gpus": 1}
    found = document("step", result["found"], **facts)
    emit(found, json_path, ALONE_COLUMNS, notes_of_parts(found["rows"]))
