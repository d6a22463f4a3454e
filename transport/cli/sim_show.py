"""Shows the results of `weft sim`: tables on stdout, and the files that the options name."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from transport.cli import plots as cli_plots
from transport.cli.output import print_table, write_file, write_json
from transport.cli.rows_file import Columns, columns_of, joined, write_columns
from transport.ground.build_info import build_info, build_text
from transport.ground.machine import machine
from transport.ground.units import count_text
from transport.sim import Result, Scenario, html, plots, sweep, tables

ROWS_OF = ("runs", "sizes", "transfers")  # what a row of --csv is
TABLES = (sweep.SIZES, sweep.TRANSFERS)  # of the rows of a sweep


@dataclass(frozen=True)
class Files:
    """The files to write besides the table on stdout."""

    json: str | None
    csv: Path | None
    plot: Path | None
    html: Path | None
    rows: str | None = None  # of `csv`, one of ROWS_OF; None: transfers of a run, runs of a sweep


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
        found = result.as_dict() | build_info() | {"machine": machine()}
        found |= {"command": command_line(), "seconds": round(seconds, 3)}
        if others:
            found["default"] = others[0].as_dict()
        write_json(found, files.json, short=True)
    if files.csv is not None:
        write_rows(result, files.csv, files.rows)
    if files.plot is not None:
        cli_plots.save(plots.figure(results), result.title, files.plot)
    if files.html is not None:
        write_file(files.html, html.page(results, made_by()))
    if files.json == "-":
        return
    click.echo(result.title)
    print_table(*tables.jobs(results))
    if result.is_mixed:
        print_table(*tables.coexistence(results))
    print_table(*tables.sizes(results))
    print_table(*tables.tiers(results))
    if result.steps:
        print_table(*tables.steps(result))
    own = result.scenario
    for line in [*tables.remarks(result), *own.network.notes]:
        click.echo(line)
    click.echo(f"{speed}; fingerprint {result.fingerprint}; {build_text()}")


def write_rows(result: Result, file: Path, kind: str | None) -> None:
    """Writes the rows of a run to a file: its transfers, or what ROWS_OF names."""
    origin = {**result.origin, **build_info(), **partial_mark(result.partial)}
    columns: Columns
    if kind == "runs":
        columns = columns_of([sweep.row_of(result)])
    elif kind == "sizes":
        columns = columns_of(result.slowdown_by_size)
    else:
        columns = result.columns()
    write_columns(file, joined([(columns, origin)]))


def partial_mark(partial: bool) -> dict[str, bool]:
    """A column of every row if the run or sweep was interrupted."""
    return {"partial": True} if partial else {}


def show_sweep(
    scenario: Scenario,
    cases: list[sweep.Case],
    rows: dict[int, dict[str, Any]],
    partial: bool,
    files: Files,
) -> None:
    """Prints the tables of a sweep and writes the files that the options name.

    rows: of the finished runs, by the number of their case; partial: the sweep was interrupted.
    """
    ordered = [rows[index] for index in sorted(rows)]
    summed, sizes = sweep.summarised(cases, rows), sweep.sizes_summarised(cases, rows)
    if files.json is not None:
        found: dict[str, Any] = {
            **scenario.provenance(),
            "files": scenario.file_hashes(),
            **build_info(),
        }
        found |= {"machine": machine(), "command": command_line(), "summary": summed}
        found |= {sweep.SIZES: sizes, "rows": [without(row, sweep.TRANSFERS) for row in ordered]}
        write_json(found | partial_mark(partial), files.json)
    if files.csv is not None:
        write_sweep_rows(scenario, cases, rows, partial, files)
    if files.plot is not None and rows:
        title = f"{scenario.name}, {len(rows)} runs" + (", partial" if partial else "")
        cli_plots.save(plots.sweep_figure(cases, rows), title, files.plot)
    if files.html is not None:
        page = html.sweep_page(scenario.name, cases, rows, summed, sizes, made_by(), partial)
        write_file(files.html, page)
    if files.json != "-":
        print_table(*tables.sweep(summed))
        if sizes:
            print_table(*tables.sweep_sizes(sizes))
        click.echo(build_text())


def without(row: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


def write_sweep_rows(
    scenario: Scenario,
    cases: list[sweep.Case],
    rows: Mapping[int, Mapping[str, Any]],
    partial: bool,
    files: Files,
) -> None:
    """Writes the rows of a sweep to a file: its runs, or what ROWS_OF names."""
    assert files.csv is not None
    ends = {**scenario.provenance(), **build_info(), **partial_mark(partial)}
    made: list[tuple[Columns, dict[str, Any]]] = []
    for index in sorted(rows):
        row = without(rows[index], *TABLES)
        if files.rows not in ("sizes", "transfers"):
            made.append((columns_of([row]), ends))
            continue
        given = {key: row.get(key) for key in (*cases[index].settings, "seed", *sweep.of_run(row))}
        key = sweep.SIZES if files.rows == "sizes" else sweep.TRANSFERS
        table = rows[index].get(key, {})
        columns = table if isinstance(table, Mapping) else columns_of(table)
        made.append((columns, given | ends))
    write_columns(files.csv, joined(made))
