"""`weft trace matrix`: prints or draws what each rank or host sent to each other one."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from transport.cli import trace_open as shared
from transport.cli.options import CSV, HTML, output_file
from transport.cli.output import json_option, unwritten, write_json
from transport.cli.packages import PAGES, PLOTS, TRACES, need_packages

if TYPE_CHECKING:
    from transport.trace.matrix import Matrix

MEASURES = ("bytes", "messages", "resent_bytes", "latency_mean", "latency_p99")


@click.command("matrix")
@shared.folder_argument
@shared.job_option
@click.option(
    "--measure",
    type=click.Choice(MEASURES),
    default="bytes",
    show_default=True,
    help=shared.MEASURE,
)
@click.option(
    "--by",
    type=click.Choice(["rank", "host", "rack"]),
    default="rank",
    show_default=True,
    help="What a row is; racks need --inventory.",
)
@shared.inventory_option
@shared.comm_option
@shared.op_option
@shared.kind_option
@shared.from_option
@shared.to_option
@click.option(
    "--scale",
    type=click.Choice(["linear", "log"]),
    default="linear",
    show_default=True,
    help="Scale of colours and shades.",
)
@click.option("--csv", "csv_file", type=output_file(*CSV), help="Write the cells to this file.")
@click.option("--png", type=output_file(".png"), help="Draw a picture (needs matplotlib).")
@click.option("--html", type=output_file(*HTML), help="Write a page to look at in a browser.")
@json_option
def command(
    folder: Path,
    job: str | None,
    measure: str,
    by: str,
    inventory_file: Path | None,
    comm: str | None,
    op: str | None,
    kind: str | None,
    from_s: float | None,
    to_s: float | None,
    scale: str,
    csv_file: Path | None,
    png: Path | None,
    html: Path | None,
    json_path: str | None,
) -> None:
    """Show what each rank sent to each other one. Rows send, columns receive.

    A cell was measured by NCCL's network proxy, or derived (~) from the operations that no network
    channel carried, as over NVLink; ? is traffic of which only the sum is known. --from and --to
    count from the first record. With --inventory, lines separate racks.

    Example: weft trace matrix traces --op AllReduce --html matrix.html
    """
    from transport.trace.about import about
    from transport.trace.matrix import matrix_of

    filters = shared.filters_of(comm, op, kind, from_s, to_s)
    inventory = shared.inventory_of(inventory_file)
    if by == "rack" and inventory is None:
        raise click.UsageError("--by rack needs --inventory: the file that tells racks")
    drawing = [package for out, package in ((html, PAGES), (png, PLOTS)) if out is not None]
    need_packages("weft trace matrix", TRACES, *drawing)
    with shared.opened(folder, job) as store, shared.reporting_errors():
        found = matrix_of(
            store,
            measure,
            by_host=by == "host",
            filters=filters,
            inventory=inventory,
            racks=by == "rack",
        )
        facts = [*about(store).facts, *chosen(comm, op, kind, from_s, to_s)]
        put(found, store.notes(), facts, scale == "log", (csv_file, html, png, json_path))


def put(
    found: Matrix,
    notes: list[str],
    facts: list[tuple[str, str]],
    logarithmic: bool,
    outputs: tuple[Path | None, Path | None, Path | None, str | None],
) -> None:
    """Writes the matrix to the outputs that are given (CSV, HTML, PNG, JSON), or prints it."""
    from transport.trace import matrix_files as files

    csv_file, html, png, json_path = outputs
    if csv_file is not None:
        shared.write_text(files.table(found), csv_file)
    if html is not None:
        text = files.page(found, notes, logarithmic, facts, shlex.join(["weft", *sys.argv[1:]]))
        shared.write_text(text, html)
    if png is not None:
        draw(found, png, logarithmic)
    if json_path is not None:
        write_json(files.document(found, notes), json_path)
    elif csv_file is None and html is None and png is None:
        # Imports NumPy, which starts threads: weft trace record, of the same group, has none.
        from transport.cli import trace_shades

        trace_shades.show(found, logarithmic)
        shared.show_notes([*notes, *found.notes])


def chosen(*values: object) -> list[tuple[str, str]]:
    """The filters that are in force, in one row; values in the order of the options."""
    options = ("--comm", "--op", "--kind", "--from", "--to")
    given = [
        f"{name} {value}" for name, value in zip(options, values, strict=True) if value is not None
    ]
    return [("only", ", ".join(given))] if given else []


def draw(found: Matrix, png: Path, logarithmic: bool) -> None:
    from transport.trace.matrix_files import picture

    try:
        picture(found, png, logarithmic)
    except OSError as error:
        raise unwritten(png, error) from None
    click.echo(f"wrote {png}", err=True)
