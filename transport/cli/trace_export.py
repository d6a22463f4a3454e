"""`weft trace export`: writes a trace to Parquet or CSV files, or for Chakra."""

from __future__ import annotations

from pathlib import Path

import click

from transport.cli import trace_open as shared
from transport.cli.options import OutputFolder


@click.command("export", short_help="Write tables as Parquet or CSV, or traces for Chakra.")
@shared.folder_argument
@click.option(
    "-o",
    "--out",
    required=True,
    type=OutputFolder(),
    help="A new or empty folder for the files.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "csv", "chakra"]),
    default="parquet",
    show_default=True,
    help="Tables as Parquet or CSV, or a Chakra execution trace for each rank.",
)
@shared.job_option
def command(folder: Path, out: Path, form: str, job: str | None) -> None:
    """Write each table of a trace to a file, or the operations of each rank for Chakra.

    All commands of weft trace read a folder of Parquet files faster than the traces themselves.

    Example: weft trace export traces -o tables
    """
    chakra = form == "chakra"
    said = f"wrote {out}"
    with shared.opened(folder, job, one_job=chakra) as store, shared.reporting_errors():
        if chakra:
            from transport.trace.chakra import write_chakra

            found = write_chakra(store, out)
            left = ", ".join(f"{count} {name}" for name, count in found.left_out.items())
            said += f": {found.nodes} nodes of {found.files} ranks"
            said += f"; left out: {left}" if left else ""
        elif form == "parquet":
            store.to_parquet(out)
        else:
            store.to_csv(out)
        for note in store.problems:
            click.echo(f"weft: {note}", err=True)
    click.echo(said, err=True)
