"""Shows a recorded result of any bench again: table, CSV, plot, HTML.

A result that does not match its hash is refused.
"""

from __future__ import annotations

from pathlib import Path

import click

from bench.compare import keys, measures, runs
from bench.lib.common import Config, local_notes
from bench.lib.options import CHECKED, UNITS, Columns, need_drawing
from bench.lib.record import read, seal_state
from bench.lib.report import show_everywhere
from bench.lib.stats import summarised
from transport.cli.options import CSV, HTML, output_file


def completed(found: Config) -> Config:
    """Adds what old results lack: key columns, measures, and rows with medians of the runs."""
    names, measured = keys(found), measures(found)
    if not measured:
        raise click.UsageError(f"this result of {found['bench']} has no measured numbers to show")
    rows = found["rows"] if "measures" in found else summarised(runs(found), names, measured)
    missing = {"environment": {"command": []}, "settings": {}, "peers": {}, "x": "size_bytes"}
    whole = {**missing, **found, "keys": list(names), "measures": measured, "rows": rows}
    return {**whole, "rounds": runs(found)}


def columns(found: Config) -> Columns:
    """The recorded columns; for old results, which have none: keys, measures, and CHECKED."""
    if "columns" in found:
        return [(str(key), str(title)) for key, title in found["columns"]]
    names = [*found["keys"], *found["measures"]]
    return [*((name, name.removesuffix("_bytes_per_s")) for name in names), *CHECKED]


@click.command("render")
@click.argument("result", metavar="A.json", type=click.Path(path_type=Path))
@click.option("--units", type=click.Choice(list(UNITS)), default="GB/s", show_default=True)
@click.option("--csv", "csv_path", type=output_file(*CSV), help="One line per row.")
@click.option("--plot", "plot_path", type=output_file(), help="FILE.png or FILE.svg.")
@click.option("--html", "html_path", type=output_file(*HTML), help="A report in one file.")
def command(
    result: Path,
    units: str,
    csv_path: Path | None,
    plot_path: Path | None,
    html_path: Path | None,
) -> None:
    """Show a recorded result again: as a table, and optionally as CSV, plot or HTML."""
    need_drawing(plot_path, html_path)
    found = read(result)
    if seal_state(found) == "changed":
        raise click.ClickException(f"hash mismatch: {result} changed after recording")
    whole = completed(found)
    notes = [f"missing: {one['contender']}: {one['missing']}" for one in found.get("missing", [])]
    notes += local_notes(found)
    notes += ["interrupted: partial results"] if found.get("partial") else []
    show_everywhere(whole, columns(whole), units, notes, csv_path, plot_path, html_path)
