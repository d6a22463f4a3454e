"""`weft trace export`: writes the tables of a trace to Parquet or CSV files."""

from __future__ import annotations

from pathlib import Path

import click

from transport.cli import trace_open as shared


@click.command("export")
@shared.folder_argument
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="A new or empty folder for the files.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "csv"]),
    default="parquet",
    show_default=True,
)
@shared.job_option
def command(folder: Path, out: Path, form: str, job: str | None) -> None:
    """Write each table of a trace to a file.

    All commands of weft trace read a folder of Parquet files faster than the traces themselves.

    Example: weft trace export traces -o tables
    """
    with shared.opened(folder, job, one_job=False) as store, shared.told():
        if form == "parquet":
            store.to_parquet(out)
        else:
            store.to_csv(out)
        for note in store.problems:
            click.echo(f"weft: {note}", err=True)
    click.echo(f"wrote {out}", err=True)
