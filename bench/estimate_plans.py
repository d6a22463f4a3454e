"""Compares the best plans of a search with published ones: measured, and found by other tools.

The plans are those of bench/lib/published_found.py. For each, our estimate of their plan, and the
fastest plan that a search of the same model, GPUs and batch finds.
"""

from __future__ import annotations

from typing import Any

import click

from bench.lib.common import Config, document, emit, interruptible, json_option
from bench.lib.published_found import COMMON, PublishedPlan, PublishedPlanError, read
from transport.estimate.computation import of_gpu
from transport.estimate.gpus import gpu
from transport.estimate.memory import memory_of
from transport.estimate.networks import of_links
from transport.estimate.plan import Plan
from transport.estimate.rounds import length_ns
from transport.estimate.search import recompute_of, search
from transport.estimate.space import Space
from transport.estimate.step import Step

COLUMNS = (
    *("run", "plan", "measured_s", "theirs_s", "ours_s", "memory_gb"),
    *("best", "best_s", "best_gb", "times"),
)
NOTES = [
    "plan, best: data x tensor x pipeline, chunks of a stage, microbatch, ZeRO, recomputation",
    "measured_s: published; theirs_s: of the tool of the source; ours_s: our estimate of the plan",
    "best: the fastest plan that the search finds; times: ours_s / best_s",
]
NETWORK = of_links("infiniband-200", "nvlink3", 8)
LIMIT = 2_000  # estimates of a search


def text(plan: Plan) -> str:
    """A plan in short, as COLUMNS has it."""
    degrees = f"{plan.data}x{plan.tensor}x{plan.pipeline}"
    schedule = "zb" if plan.schedule == "zero-bubble" else f"i{plan.interleave}"
    return f"{degrees} {schedule} m{plan.micro_batch} z{plan.zero} {recompute_of(plan)}"


def compared(one: PublishedPlan, best: Config) -> Config:
    """A row: measured and estimated times of the plan, in s, beside the best one."""
    known = gpu(one.gpu)
    step = Step(one.model, one.plan, of_gpu(one.model, one.plan, known), NETWORK)
    ours_s = length_ns(step) / 1e9
    row: Config = {
        "run": one.run,
        "source": one.source,
        "gpus": one.plan.gpus,
        "batch": one.plan.global_batch,
        "plan": text(one.plan),
        "measured_s": one.measured_s,
        "theirs_s": one.estimated_s,
        "ours_s": ours_s,
        "memory_gb": memory_of(one.model, one.plan).total / 1e9,
        **best,
        "times": ours_s / best["best_s"],
    }
    for name, known_s in (("error", one.measured_s), ("difference", one.estimated_s)):
        if known_s is not None:
            row[name] = ours_s / known_s - 1
    return row


def best_of(one: PublishedPlan) -> Config:
    """The fastest plan for the model, GPUs and batch of a published one."""
    space = Space(one.plan.gpus, one.plan.global_batch, common=COMMON)
    found = search(one.model, gpu(one.gpu), NETWORK, space, keep=1, limit=LIMIT)
    first = found.best[0]
    return {
        "best": text(first.plan),
        "best_s": first.step_ns / 1e9,
        "best_gb": first.memory.total / 1e9,
        "complete": found.complete,
        "looked": found.looked,
    }


@click.command("estimate_plans")
@click.option("--only", help="Only plans whose name begins like this.")
@json_option
def command(only: str | None, json_path: str | None) -> None:
    """Compares the best plans that a search finds with published ones; takes minutes."""
    try:
        plans = [one for one in read() if one.run.startswith(only or "")]
    except PublishedPlanError as error:
        raise click.ClickException(str(error)) from None
    if not plans:
        raise click.UsageError(f"no plan begins with {only!r}: leave out --only to see all")
    rows: list[Config] = []
    searched: dict[Any, Config] = {}
    with interruptible() as cut:
        for one in plans:
            key = one.model, one.gpu, one.plan.gpus, one.plan.global_batch
            if key not in searched:
                searched[key] = best_of(one)
            rows.append(compared(one, searched[key]))
    more = {"keys": ["run"], "measures": {"ours_s": "lower", "best_s": "lower"}}
    emit(document("estimate_plans", rows, **more), json_path, COLUMNS, NOTES, cut)
