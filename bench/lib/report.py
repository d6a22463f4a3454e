"""Writes results: table, JSON, CSV, plot, and a report in one HTML file.

The JSON contains every number of the other formats.
"""

from __future__ import annotations

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
from transport.ground.extras import install
from transport.ground.text import csv_of_rows
from transport.ground.units import binary_text

Config = dict[str, Any]

MINOR_LABELS_RATIO = 100  # an axis that spans more has labels at powers of ten only
LIST_MAX = 16  # longer lists of a run, such as rates over time, are not written into a page
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


def draw(found: Config, out: Path, units: str) -> None:
    """Plots the first measure into a file."""
    prepared(out)
    save(figure_of(found, next(iter(found["measures"])), units), found["bench"], out)


def figure_of(found: Config, measure: str, units: str) -> Any:
    """A measure with its range, over the column `x` if it varies, else as bars.

    If the result has rates over time, they are plotted instead. Axes of times are logarithmic.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4))
    axes = figure.subplots()
    timed = [run for run in found["rounds"] if "timeline_bytes_per_s" in run]
    if timed:
        # Runs with different kinds of cut (of paths) cannot share a plot: plot the first kind
        # only.
        same = [run for run in timed if run.get("cut") == timed[0].get("cut")]
        timeline.draw(axes, same, 1 / UNITS[units], units)
        return figure
    rows = [row for row in found["rows"] if row.get(measure) is not None]
    x = found["x"]
    if len({row.get(x) for row in rows}) > 1:
        _draw_lines(axes, rows, found, measure, units)
    else:
        _draw_bars(axes, rows, found, measure, units)
    return figure


def _draw_lines(axes: Any, rows: list[Config], found: Config, measure: str, units: str) -> None:
    x = found["x"]
    for label in dict.fromkeys(_label(row, found, x) for row in rows):
        mine = sorted((r for r in rows if _label(r, found, x) == label), key=lambda r: r[x])
        values, errors = _values(mine, measure, units)
        axes.errorbar([r[x] for r in mine], values, errors, label=_plain(label), marker=".")
    axes.set_xscale("log", base=2)
    if x.endswith("_bytes"):
        axes.xaxis.set_major_formatter(lambda value, _: binary_text(round(value)))
        axes.tick_params(axis="x", labelsize="small")
        axes.set_xlabel(x.removesuffix("_bytes"))
    else:
        axes.set_xlabel(heading(x, x, units))
    axes.legend(fontsize="small")
    axes.set_ylabel(heading(measure, measure, units))
    if _is_time(measure):
        axes.set_yscale("log")
        _write_plainly(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)


def _draw_bars(axes: Any, rows: list[Config], found: Config, measure: str, units: str) -> None:
    labels = [_plain(_label(row, found, found["x"])) for row in rows]
    values, errors = _values(rows, measure, units)
    axes.barh(range(len(rows)), values, xerr=errors if rows else None)
    axes.set_yticks(range(len(rows)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(heading(measure, measure, units))
    if _is_time(measure) and any(value > 0 for value in values):
        axes.set_xscale("log")
        _write_plainly(axes.xaxis)


def _write_plainly(axis: Any) -> None:
    """Writes the numbers of a logarithmic axis as 60 and not as 6 x 10^1."""

    def between(value: float, _: int | None) -> str:
        """The label of a tick between powers of ten, of which a long axis has none."""
        low, high = axis.get_view_interval()
        is_marked = f"{value:e}"[0] in "235"
        return f"{value:g}" if is_marked and high < MINOR_LABELS_RATIO * low else ""

    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(between)
    axis.axes.tick_params(which="both", labelsize="small")


def _values(rows: Sequence[Config], measure: str, units: str) -> tuple[list[float], Any]:
    """The values of a measure in the unit of its heading, and their distances to least and most."""
    scale = 1e-3 if measure.endswith("_ns") else 1.0
    if measure.endswith("messages_per_s"):
        scale = 1e-6
    elif measure.endswith("bytes_per_s") and not measure.endswith("gbytes_per_s"):
        scale = 1 / UNITS[units]
    least = [(row[measure] - row.get(f"{measure}_min", row[measure])) * scale for row in rows]
    most = [(row.get(f"{measure}_max", row[measure]) - row[measure]) * scale for row in rows]
    return [row[measure] * scale for row in rows], [least, most]


def _is_time(measure: str) -> bool:
    return measure.endswith(("_ns", "_us", "_ms"))


def _plain(text: str) -> str:
    """The text as a label in which matplotlib finds no formula."""
    return text.replace("$", r"\$")


def _label(row: Config, found: Config, x: str) -> str:
    rows: list[Config] = found["rows"]
    varied = [key for key in found["keys"] if len({one.get(key) for one in rows}) > 1 and key != x]
    return ", ".join(str(row.get(key, "")) for key in varied or found["keys"][:1])


def _of_run(name: str, value: Any, units: str) -> str:
    if isinstance(value, list) and len(value) > LIST_MAX:
        return f"{len(value)} values, in JSON"
    return show(name, value, units)


def page(found: Config, columns: Columns, units: str, notes: Sequence[str]) -> str:
    """A report in one HTML page without other files."""
    rows = led(found)
    runs: list[Config] = found["rounds"]
    names = list(dict.fromkeys(name for row in runs for name in row))
    environment = found["environment"]
    facts = {**environment, "settings": found["settings"], "peers": found["peers"]}
    drawn, missing = [], ""
    if rows:
        try:
            measured = [one for one in found["measures"] if any(row.get(one) for row in rows)]
            timed = any("timeline_bytes_per_s" in run for run in runs)
            shown = measured[:1] if timed else measured
            drawn = [pages.plot(figure_of(found, one, units)) for one in shown]
        except ImportError:
            missing = f"it needs matplotlib: {install('plots')}"
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
        drawn=drawn,
        missing=missing,
        environment=[[k, v if isinstance(v, str) else json.dumps(v)] for k, v in facts.items()],
        runs=(
            [heading(name, name, units) for name in names],
            [[_of_run(name, row.get(name), units) for name in names] for row in runs],
        ),
        hash_name=HASH,
        hash=found.get(HASH, "none"),
    )
