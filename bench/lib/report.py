"""Writes results: table, JSON, CSV, plot, and a report in one HTML file.

The JSON contains every number of the other formats.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bench.lib import timeline
from bench.lib.options import UNITS, Columns, Common, heading, show, table
from bench.lib.record import HASH, sealed
from transport import pages
from transport.cli.output import write_file, write_json
from transport.cli.plots import prepared, save
from transport.ground.text import csv_of_rows

Config = dict[str, Any]

PAGE = Path(__file__).with_name("report.html")


def cells(row: Config, columns: Columns, units: str) -> list[str]:
    """A row as text; the column `worst` has the unit of the measure whose worst run it shows."""
    return [
        show(row.get("lead", key) if key == "worst" else key, row.get(key), units)
        for key, _ in columns
    ]


def kept(rows: Sequence[Config], columns: Columns) -> Columns:
    """The columns for which any row has a value."""
    return [one for one in columns if any(row.get(one[0]) not in (None, "", []) for row in rows)]


def led(found: Config) -> list[Config]:
    """Adds to each row the name of the measure whose worst run the column `worst` shows."""
    lead = next(iter(found["measures"]))
    return [{**row, "lead": lead} for row in found["rows"]]


def write(found: Config, columns: Columns, common: Common, notes: Sequence[str]) -> None:
    """Writes every requested file, and a table unless JSON went to stdout."""
    found = sealed(found)
    if common.json_path is not None:
        write_json(found, common.json_path)
    files = (common.csv_path, common.plot_path, common.html_path)
    show_everywhere(found, columns, common.units, notes, *files, quiet=common.json_path == "-")


def show_everywhere(
    found: Config,
    columns: Columns,
    units: str,
    notes: Sequence[str],
    csv_path: Path | None,
    plot_path: Path | None,
    html_path: Path | None,
    *,
    quiet: bool = False,
) -> None:
    """Writes the requested CSV, plot and HTML of a sealed result, and a table unless `quiet`."""
    rows = led(found)
    columns = kept(rows, columns)
    if csv_path is not None:
        write_file(csv_path, csv_of_rows(found["rows"]))
    if plot_path is not None and rows:
        draw(found, plot_path, units)
    if html_path is not None:
        write_file(html_path, page(found, columns, units, notes))
    if quiet:
        return
    heads = [(key, heading(key, title, units)) for key, title in columns]
    table(heads, [cells(row, columns, units) for row in rows])
    for note in notes:
        click.echo(note)


def draw(found: Config, out: Path | io.BytesIO, units: str) -> None:
    """Plots the first measure with its range, over the column `x` if it varies, else as bars."""
    name = out if isinstance(out, Path) else Path("report.svg")
    pyplot = prepared(name)
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    rows, lead, x = found["rows"], next(iter(found["measures"])), found["x"]
    timed = [run for run in found["rounds"] if "timeline_bytes_per_s" in run]
    if timed:
        # Runs with different kinds of cut (of paths) cannot share a plot: plot the first kind
        # only.
        same = [run for run in timed if run.get("cut") == timed[0].get("cut")]
        timeline.draw(axes, same, 1 / UNITS[units], units)
        _keep(figure, pyplot, found["bench"], out)
        return
    rows = [row for row in rows if row.get(lead) is not None]
    scale = float(show(lead, 1e12, units)) / 1e12 if lead.endswith("_per_s") else 1.0
    if lead.endswith("_ns"):
        scale = 1e-3

    def errors(mine: Sequence[Config]) -> list[list[float]]:
        low = [(row[lead] - row[f"{lead}_min"]) * scale for row in mine]
        return [low, [(row[f"{lead}_max"] - row[lead]) * scale for row in mine]]

    if len({row.get(x) for row in rows}) > 1:
        for label in dict.fromkeys(_label(row, found, x) for row in rows):
            mine = sorted((r for r in rows if _label(r, found, x) == label), key=lambda r: r[x])
            values = [row[lead] * scale for row in mine]
            axes.errorbar([r[x] for r in mine], values, errors(mine), label=label, marker=".")
        axes.set_xscale("log", base=2)
        axes.set_xlabel(x)
        axes.legend()
        axes.set_ylabel(_axis(lead, units))
    else:
        labels = [_label(row, found, x) for row in rows]
        axes.barh(labels, [row[lead] * scale for row in rows], xerr=errors(rows) if rows else None)
        axes.invert_yaxis()
        axes.set_xlabel(_axis(lead, units))
    _keep(figure, pyplot, found["bench"], out)


def _keep(figure: Any, pyplot: Any, title: str, out: Path | io.BytesIO) -> None:
    if isinstance(out, Path):
        save(figure, title, out)
        return
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(out, format="svg")
    pyplot.close(figure)


def _axis(lead: str, units: str) -> str:
    if lead.endswith("bytes_per_s"):
        return lead.removesuffix("_bytes_per_s") + f" [{units}]"
    return lead.removesuffix("_ns") + " [us]" if lead.endswith("_ns") else lead


def _label(row: Config, found: Config, x: str) -> str:
    rows: list[Config] = found["rows"]
    varied = [key for key in found["keys"] if len({one.get(key) for one in rows}) > 1 and key != x]
    return ", ".join(str(row.get(key, "")) for key in varied or found["keys"][:1])


def page(found: Config, columns: Columns, units: str, notes: Sequence[str]) -> str:
    """A report in one HTML page without other files."""
    rows = led(found)
    runs: list[Config] = found["rounds"]
    names = list(dict.fromkeys(name for row in runs for name in row))
    environment = found["environment"]
    facts = {**environment, "settings": found["settings"], "peers": found["peers"]}
    picture, missing = "", ""
    if rows:
        out = io.BytesIO()
        try:
            draw(found, out, units)
            picture = pages.picture(out.getvalue().decode())
        except click.UsageError as error:
            missing = error.message.removeprefix("--plot ")
    return pages.rendered(
        PAGE,
        title=f"bench {found['bench']}",
        command=" ".join(environment["command"]),
        partial="partial" in found,
        results=(
            [heading(key, title, units) for key, title in columns],
            [cells(row, columns, units) for row in rows],
        ),
        remarks=notes,
        picture=picture,
        missing=missing,
        environment=(
            ["what", "value"],
            [[k, v if isinstance(v, str) else json.dumps(v)] for k, v in facts.items()],
        ),
        runs=(
            [heading(name, name, units) for name in names],
            [[show(name, row.get(name), units) for name in names] for row in runs],
        ),
        hash_name=HASH,
        hash=found.get(HASH, "none"),
    )
