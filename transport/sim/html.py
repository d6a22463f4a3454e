"""Writes the HTML report of a run or sweep: one file with tables and inline plots, no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transport import pages
from transport.sim import plots, tables
from transport.sim.result import IDEAL, Result


def page(result: Result, command: str) -> str:
    """The report of one run."""
    own = result.scenario
    chosen = [
        [family, result.policies[family], result.sources[family][:16]] for family in result.policies
    ]
    picture, missing = "", ""
    try:
        picture = pages.picture(plots.svg(plots.figure(result)))
    except ImportError:
        missing = f"it needs matplotlib: {plots.INSTALL_MATPLOTLIB}"
    return pages.rendered(
        "sim_run.html",
        title=f"weft sim {own.name}",
        command=command,
        partial=result.partial,
        jobs=tables.jobs(result),
        remarks=[*tables.remarks(result), *own.network.notes],
        picture=picture,
        missing=missing,
        tiers=tables.tiers(result),
        policies=(["family", "policy", "source"], chosen),
        scenario=own.text,
        ideal=IDEAL,
        fingerprint=result.fingerprint,
    )


def sweep_page(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    every: Sequence[Mapping[str, Any]],
    command: str,
    partial: bool,
) -> str:
    """The report of a sweep: its summary, and every run."""
    heads = list(dict.fromkeys(key for row in every for key in row))
    runs = [[tables.cell(key, row.get(key)) for key in heads] for row in every]
    return pages.rendered(
        "sim_sweep.html",
        title=f"weft sim {name}: a sweep",
        command=command,
        partial=partial,
        summary=tables.sweep(rows),
        runs=(heads, runs),
    )
