"""Shows the results of `weft sim`: tables on stdout, and the files that the options name."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from transport.cli import plots as cli_plots
from transport.cli.output import print_table, write_file, write_json
from transport.ground.build_info import build_info, build_text
from transport.ground.text import csv_of_rows
from transport.ground.units import count_text
from transport.sim import Result, Scenario, html, plots, sweep, tables


@dataclass(frozen=True)
class Files:
    """The files to write besides the table on stdout."""

    json: str | None
    csv: Path | None
    plot: Path | None
    html: Path | None


def command_line() -> str:
    return shlex.join(["weft", *sys.argv[1:]])


def made_by() -> str:
    """The command line, with weft's version and build as a shell comment."""
    return f"{command_line()}  # {build_text()}"


def show(results: Mapping[str, Result], seconds: float, files: Files) -> None:
    """Prints the tables and writes the files that the options name.

    results: the user's run, and with another label the one that is shown beside it.
    """
    result, *others = results.values()
    hops = int(result.totals["packet_hops"])
    speed = f"{seconds:.1f} s, {count_text(hops / max(seconds, 1e-9))} packet-hops/s"
    if files.json is not None:
        found = result.as_dict() | build_info()
        found |= {"command": command_line(), "seconds": round(seconds, 3)}
        if others:
            found["default"] = others[0].as_dict()
        write_json(found, files.json)
    if files.csv is not None:
        write_file(files.csv, csv_of_rows(marked(result.rows(), result.partial)))
    if files.plot is not None:
        cli_plots.save(plots.figure(results), result.title, files.plot)
    if files.html is not None:
        write_file(files.html, html.page(results, made_by()))
    if files.json == "-":
        return
    click.echo(result.title)
    print_table(*tables.jobs(results))
    print_table(*tables.sizes(results))
    print_table(*tables.tiers(results))
    if result.steps:
        print_table(*tables.steps(result))
    own = result.scenario
    for line in [*tables.remarks(result), *own.network.notes]:
        click.echo(line)
    click.echo(f"{speed}; fingerprint {result.fingerprint}; {build_text()}")


def marked(rows: Sequence[Mapping[str, Any]], partial: bool) -> list[dict[str, Any]]:
    """Adds a column `partial` to every row if the run or sweep was interrupted."""
    return [{**row, "partial": True} if partial else dict(row) for row in rows]


def show_sweep(
    scenario: Scenario,
    cases: list[sweep.Case],
    rows: dict[int, dict[str, Any]],
    partial: bool,
    files: Files,
) -> None:
    ordered = [rows[index] for index in sorted(rows)]
    summed = sweep.summarised(cases, rows)
    if files.json is not None:
        found = {"scenario": scenario.name, **build_info(), "command": command_line()} | {
            "summary": summed
        }
        write_json(found | {"rows": ordered} | ({"partial": True} if partial else {}), files.json)
    if files.csv is not None:
        write_file(files.csv, csv_of_rows(marked([row | build_info() for row in ordered], partial)))
    if files.plot is not None and rows:
        title = f"{scenario.name}, {len(rows)} runs" + (", partial" if partial else "")
        cli_plots.save(plots.sweep_figure(cases, rows), title, files.plot)
    if files.html is not None:
        write_file(
            files.html, html.sweep_page(scenario.name, cases, rows, summed, made_by(), partial)
        )
    if files.json != "-":
        print_table(*tables.sweep(summed))
        click.echo(build_text())
