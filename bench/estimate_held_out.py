"""Compares estimates of training steps with published runs: those of the fit, and held-out ones.

The runs are those of bench/lib/published_runs.py; all are estimated with gradients of 4 bytes.
Runs that the estimator cannot express are listed with the reason.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from bench.lib.common import Config, document, emit, interruptible, json_option, print_table
from bench.lib.published_plans import NotExpressibleError, estimated_s, plan_of
from bench.lib.published_runs import SETS, PublishedError, PublishedRun, read
from bench.lib.stats import grouped
from transport.estimate.computation import of_gpu
from transport.estimate.gpus import gpu, names
from transport.estimate.plan import PlanError
from transport.estimate.ranges import range_of
from transport.ground.units import percent

COLUMNS = (
    *("set", "run", "gpu", "gpus", "published_s", "estimated_s", "low_s", "high_s", "error"),
    "reason",
)
SUMMARY_COLUMNS = (
    *("set", "group", "runs", "estimated", "median_error_size", "p90_error_size", "median_error"),
    *("inside", "width"),
)
NOTES = [
    "error: of the time of a step; negative: too fast",
    "low_s to high_s: its range, p10 to p90; width: half of it, as a part of the estimate",
]
# A name for the option -> the sets that it chooses.
CHOICES = {"fit": ("fit",), "held-out": ("held out",), "both": tuple(SETS)}


def compared(set_name: str, one: PublishedRun, efficiency: float | None = None) -> Config:
    """A row: published and estimated time of a step in s, error: estimated / published - 1.

    low_s, high_s: the range of the estimate. efficiency: of all products; None: by their sizes.
    """
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
        plan = plan_of(one)
        known = gpu(one.gpu, efficiency)
        found_s = estimated_s(one, lambda model, plan: of_gpu(model, plan, known))
    except (NotExpressibleError, PlanError) as error:
        return row | {"reason": str(error)}
    off = found_s / row["published_s"] - 1
    expected = range_of(found_s * 1e9, one.model, plan, known)
    low_s, high_s = expected.low_ns / 1e9, expected.high_ns / 1e9
    return row | {
        "estimated_s": found_s,
        "low_s": low_s,
        "high_s": high_s,
        "inside": low_s <= row["published_s"] <= high_s,
        "width": (high_s - low_s) / 2 / found_s,
        "error": off,
        "error_size": abs(off),
    }


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
    """Medians, with and without sign, and the error that 90 % of the runs stay below.

    inside: the part of the runs in the range of their estimate. width: half of the median range, as
    a part of the estimate.
    """
    row: Config = {"set": name, "group": group, "runs": len(rows)}
    estimated = [one for one in rows if "error" in one]
    errors = [one["error"] for one in estimated]
    row["estimated"] = len(errors)
    if not errors:
        return row
    return row | {
        "median_error_size": statistics.median(map(abs, errors)),
        "p90_error_size": float(np.percentile(np.abs(errors), 90)),
        "median_error": statistics.median(errors),
        "inside": statistics.fmean(float(one["inside"]) for one in estimated),
        "width": statistics.median(one["width"] for one in estimated),
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
    type=click.FloatRange(0, 1, min_open=True),
    help="Part of the peak that matrix products reach, the same for all. Default: by their sizes.",
)
@click.option("--set", "chosen", default="both", show_default=True, type=click.Choice([*CHOICES]))
@click.option("--only", help="Only runs whose name begins like this.")
@json_option
def command(efficiency: float | None, chosen: str, only: str | None, json_path: str | None) -> None:
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
    emit(found, json_path, COLUMNS, NOTES, cut)
    if json_path != "-":
        print_table(SUMMARY_COLUMNS, _shown(generations))
        print_table(SUMMARY_COLUMNS, _shown(publishers))
