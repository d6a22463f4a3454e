"""Reads published plans of training: measured ones, and best ones that other tools found.

A row of reference/plans.csv is a plan with its source. measured_s: as its source measured a step;
estimated_s: what another tool estimates for it. Tables of plans that vTrain's paper prints are not
here, as they could not be read; the plan of MT-NLG, to which it compares its own, is.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transport.estimate.models import PRESETS, Model
from transport.estimate.plan import RECOMPUTES, Plan

FILE = Path(__file__).resolve().parents[1] / "reference" / "plans.csv"
DEGREES = ("data", "tensor", "pipeline", "interleave", "micro_batch", "zero")
COLUMNS = (
    *("run", "source", "model", "gpu", "gpus", "batch", *DEGREES, "recompute"),
    *("sequence_parallel", "measured_s", "estimated_s", "assumed"),
)
# Of Korthikanti et al., which has no preset.
MODELS = PRESETS | {
    "megatron-22b": replace(
        PRESETS["megatron-18b"], name="megatron-22b", layers=48, hidden=6_144, heads=64, ffn=24_576
    )
}


class PublishedPlanError(ValueError):
    """A file of published plans that is not valid; names file, line and column."""


@dataclass(frozen=True)
class PublishedPlan:
    """A plan. measured_s, estimated_s: None: not published."""

    run: str
    source: str
    model: Model
    gpu: str
    plan: Plan
    measured_s: float | None
    estimated_s: float | None


# All of these runs are of Megatron-LM on A100s, without FlashAttention.
COMMON = Plan(flash=False, framework="megatron", gradient_bytes=4)


def read(file: Path = FILE) -> list[PublishedPlan]:
    """The plans of a file. PublishedPlanError: it is not valid."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PublishedPlanError(f"cannot read {file}: {error}") from None
    lines = [
        (at, line) for at, line in enumerate(text.splitlines(), 1) if line[:1] not in ("", "#")
    ]
    if not lines or lines[0][1] != ",".join(COLUMNS):
        raise PublishedPlanError(f"{file}: the columns must be {','.join(COLUMNS)}")
    found = []
    for at, line in lines[1:]:
        (parts,) = csv.reader([line])
        try:
            if len(parts) != len(COLUMNS):
                raise ValueError(f"it has {len(parts)} columns: give {len(COLUMNS)}")
            found.append(_plan(dict(zip(COLUMNS, parts, strict=True))))
        except (ValueError, KeyError) as error:
            raise PublishedPlanError(f"{file}, line {at}: {error}") from None
    return found


def _plan(cells: Mapping[str, str]) -> PublishedPlan:
    """ValueError or KeyError: a cell is not valid; PlanError is a ValueError."""
    model = MODELS[cells["model"]]
    fields: dict[str, Any] = {name: int(cells[name]) for name in DEGREES}
    fields |= RECOMPUTES[cells["recompute"]]
    batch, sequence = int(cells["batch"]), cells["sequence_parallel"] == "yes"
    plan = replace(COMMON, **fields, global_batch=batch, sequence=sequence)
    plan.check(model)
    if plan.gpus != int(cells["gpus"]):
        raise ValueError(f"gpus: {cells['gpus']}: the degrees make {plan.gpus}")
    measured_s, estimated_s = (
        float(cells[name]) if cells[name] else None for name in ("measured_s", "estimated_s")
    )
    return PublishedPlan(
        cells["run"], cells["source"], model, cells["gpu"], plan, measured_s, estimated_s
    )
