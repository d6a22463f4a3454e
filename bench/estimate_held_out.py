"""Compares estimates of training steps with published runs: those of the fit, and held-out ones.

The runs are those of bench/lib/published_runs.py; all are estimated with the same efficiency and
with gradients of 4 bytes. Runs that the estimator cannot express are listed with the reason.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from bench.lib.common import Config, document, emit, interruptible, json_option, print_table
from bench.lib.published_runs import SETS, PublishedError, PublishedRun, read
from bench.lib.stats import grouped
from transport.estimate.computation import of_gpu
from transport.estimate.gpus import EFFICIENCY, gpu, names
from transport.estimate.networks import NetworkError, of_links
from transport.estimate.plan import Plan, PlanError
from transport.estimate.schedule import run
from transport.estimate.step import Step
from transport.ground.units import percent

COLUMNS = ("set", "run", "gpu", "gpus", "published_s", "estimated_s", "error", "reason")
SUMMARY_COLUMNS = (
    *("set", "group", "runs", "estimated", "median_error_size", "p90_error_size", "median_error"),
)
GRADIENT_BYTES = 4
# A name for the option -> the sets that it chooses.
CHOICES = {"fit": ("fit",), "held-out": ("held out",), "both": tuple(SETS)}


class NotExpressibleError(Exception):
    """The estimator cannot express a run; says why."""


def estimated_s(one: PublishedRun, efficiency: float) -> float:
    """The estimated time of a step in s. NotExpressibleError: the estimator cannot express it."""
    if one.gpu not in names():
        raise NotExpressibleError(f"no GPU {one.gpu}")
    if one.dtype not in ("bf16", "fp16"):
        raise NotExpressibleError(f"{one.dtype}: only 16 bits")
    if one.zero is None:
        raise NotExpressibleError("shards within groups only")
    if one.recompute == "selective":
        raise NotExpressibleError("recomputes some operations")
    plan = Plan(
        data=one.data,
        tensor=one.tensor,
        pipeline=one.pipeline,
        interleave=one.interleave,
        expert=one.expert,
        context=one.context,
        zero=one.zero,
        micro_batch=one.micro_batch,
        global_batch=one.global_batch,
        gradient_bytes=GRADIENT_BYTES,
        recompute=one.recompute == "full",
        flash=one.flash,
        sequence=one.sequence_parallel,
    )
    nics = one.nics_per_node or None
    try:
        plan.check(one.model)
        network = of_links(one.between, one.inside, one.gpus_per_node, nics)
    except (PlanError, NetworkError) as error:
        raise NotExpressibleError(str(error)) from None
    computation = of_gpu(one.model, plan, gpu(one.gpu, efficiency))
    return float(run(Step(one.model, plan, computation, network).build()).length_ns / 1e9)


def compared(set_name: str, one: PublishedRun, efficiency: float) -> Config:
    """A row: published and estimated time of a step in s, error: estimated / published - 1."""
    row: Config = {
        "set": set_name,
        "run": one.run,
        "source": one.source,
        "publisher": one.publisher,
        "generation": one.generation,
        "gpu": one.gpu,
        "gpus": one.gpus,
        "unit": one.unit,
        "published": one.value,
    }
    if one.unit != "mfu" or one.gpu in names():
        row["published_s"] = one.step_s(gpu(one.gpu).flops if one.unit == "mfu" else 0.0)
    try:
        found_s = estimated_s(one, efficiency)
    except NotExpressibleError as error:
        return row | {"reason": str(error)}
    off = found_s / row["published_s"] - 1
    return row | {"estimated_s": found_s, "error": off, "error_size": abs(off)}


def summary(rows: Sequence[Config], key: str) -> list[Config]:
    """Errors of each set by groups of equal `key`, and of all; see _summarised."""
    found: list[Config] = []
    for name in SETS:
        of_set = [row for row in rows if row["set"] == name]
        groups = grouped(of_set, [key]).items()
        found += [_summarised(name, group, each) for (group,), each in groups]
        found += [_summarised(name, "all", of_set)] if of_set else []
    return found


def _summarised(name: str, group: str, rows: Sequence[Config]) -> Config:
    """Medians, with and without sign, and the error that 90 % of the runs stay below."""
    row: Config = {"set": name, "group": group, "runs": len(rows)}
    errors = [one["error"] for one in rows if "error" in one]
    row["estimated"] = len(errors)
    if not errors:
        return row
    return row | {
        "median_error_size": statistics.median(map(abs, errors)),
        "p90_error_size": float(np.percentile(np.abs(errors), 90)),
        "median_error": statistics.median(errors),
    }


def _shown(rows: Sequence[Config]) -> list[list[str]]:
    """The cells of a summary; errors in percent, ? where no run could be estimated."""

    def cell(row: Config, column: str) -> str:
        value: Any = row.get(column, "?")
        signed = column == "median_error"
        return percent(value, signed=signed) if isinstance(value, float) else str(value)

    return [[cell(row, column) for column in SUMMARY_COLUMNS] for row in rows]


@click.command("estimate_held_out")
@click.option(
    "--efficiency",
    default=EFFICIENCY,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Part of the peak that matrix products reach, the same for all.",
)
@click.option("--set", "chosen", default="both", show_default=True, type=click.Choice([*CHOICES]))
@click.option("--only", help="Only runs whose name begins like this.")
@json_option
def command(efficiency: float, chosen: str, only: str | None, json_path: str | None) -> None:
    """Compares estimated times of training steps with published runs, by generation of GPUs."""
    try:
        runs = [(name, one) for name in CHOICES[chosen] for one in read(SETS[name])]
    except PublishedError as error:
        raise click.ClickException(str(error)) from None
    kept = [(name, one) for name, one in runs if one.run.startswith(only or "")]
    if not kept:
        raise click.UsageError(f"no run begins with {only!r}: leave out --only to see all")
    rows: list[Config] = []
    with interruptible() as cut:
        for name, one in kept:
            rows.append(compared(name, one, efficiency))
    generations, publishers = (summary(rows, key) for key in ("generation", "publisher"))
    more = {"keys": ["set", "run"], "measures": {"error_size": "lower"}}
    found = document(
        "estimate_held_out", rows, by_generation=generations, by_publisher=publishers, **more
    )
    emit(found, json_path, COLUMNS, ["error: of the time of a step; negative: too fast"], cut)
    if json_path != "-":
        print_table(SUMMARY_COLUMNS, _shown(generations))
        print_table(SUMMARY_COLUMNS, _shown(publishers))
