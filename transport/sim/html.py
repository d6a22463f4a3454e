"""Writes the HTML report of a run or sweep: one file with tables and inline plots, no script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from transport import pages
from transport.sim import plots, tables
from transport.sim.result import IDEAL, Result
from transport.sim.sweep import Case


def _drawn(panels: Callable[[], list[Any]]) -> dict[str, Any]:
    """The plots as values of a template, or why there are none."""
    try:
        return {"drawn": [pages.plot(one) for one in panels()], "missing": ""}
    except ImportError:
        return {"drawn": [], "missing": f"it needs matplotlib: {plots.INSTALL_MATPLOTLIB}"}


def page(results: Mapping[str, Result], command: str) -> str:
    """The report of a run, the first of `results`; others are beside it in tables and plots."""
    result = next(iter(results.values()))
    own = result.scenario
    chosen = [
        [family, result.policies[family], result.sources[family][:16]] for family in result.policies
    ]
    return pages.rendered(
        "sim_run.html",
        title=f"weft sim {own.name}",
        command=command,
        partial=result.partial,
        jobs=tables.jobs(results),
        shared=tables.coexistence(results) if result.is_mixed else None,
        sizes=tables.sizes(results),
        remarks=[*tables.remarks(result), *own.network.notes],
        tiers=tables.tiers(results),
        policies=(["family", "policy", "source"], chosen),
        scenario=own.text,
        ideal=IDEAL,
        fingerprint=result.fingerprint,
        **_drawn(partial(plots.panels, results)),
    )


def sweep_page(
    name: str,
    cases: Sequence[Case],
    rows: Mapping[int, Mapping[str, Any]],
    summary: Sequence[Mapping[str, Any]],
    sizes: Sequence[Mapping[str, Any]],
    command: str,
    partial_run: bool,
) -> str:
    """The report of a sweep: its summary, plots, and every run."""
    ordered = [rows[index] for index in sorted(rows)]
    return pages.rendered(
        "sim_sweep.html",
        title=f"weft sim {name}: a sweep",
        command=command,
        partial=partial_run,
        summary=tables.sweep(summary),
        sizes=tables.sweep_sizes(sizes),
        runs=tables.sweep_runs(ordered),
        **_drawn(partial(plots.sweep_panels, cases, rows)),
    )
