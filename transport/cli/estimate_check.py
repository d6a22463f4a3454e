"""`weft estimate check`: compares a network's estimates with measured operations."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from transport.cli.estimate_calibrate import samples_of
from transport.cli.estimate_options import MARK, notes_of, usage_errors
from transport.cli.options import InputFile
from transport.cli.output import json_option, print_table, write_json
from transport.ground.units import bytes_text, percent, time_text


@click.command("check", short_help="Compare estimates with measurements or traces.")
@click.argument("sources", nargs=-1, required=True, type=InputFile(dir_okay=True))
@click.option(
    "--network",
    "network_file",
    metavar="FILE",
    required=True,
    type=InputFile(),
    help="The network, as calibrate writes it.",
)
@click.option(
    "--contender",
    metavar="NAME",
    default="weft",
    show_default=True,
    help="The transport whose rows are taken from results of bench nccl.",
)
@json_option
def command(
    sources: tuple[Path, ...], network_file: Path, contender: str, json_path: str | None
) -> None:
    """Compare estimates with SOURCES: results of `python -m bench nccl`, folders of traces.

    `bench` is in the repository, not in the wheel. Take other measurements than those that the
    network was fitted to.

    Example: weft estimate check traces-256 --network mine.toml
    """
    from transport.estimate.check import compared, summary_of
    from transport.estimate.networks import load
    from transport.estimate.samples import SamplesError

    with usage_errors():
        network = load(network_file)
        try:
            measured = [one for source in sources for one in samples_of(source, contender)]
        except SamplesError as error:
            raise click.UsageError(str(error)) from None
        rows = compared(network, measured)
    total = summary_of(rows)
    if json_path is not None:
        found = {"network": asdict(network), "rows": [asdict(row) for row in rows]}
        write_json(found | {"summary": asdict(total)}, json_path)
        return
    print_table(
        ["operation", "ranks", "size", "measured", "spread", "estimated", "error"],
        [
            [
                row.sample.operation,
                str(row.sample.ranks),
                bytes_text(row.sample.size_bytes),
                time_text(row.sample.time_ns),
                percent(row.spread),
                time_text(row.estimated_ns) + MARK * row.extrapolated,
                percent(row.error, signed=True),
            ]
            for row in rows
        ],
    )
    click.echo(
        f"\n{len(rows)} operations and sizes; error: median {percent(total.median)}, 95 % below "
        f"{percent(total.p95)}\n{percent(total.within_5, 0)} are within the larger of 5 % and the "
        f"spread of their repeats, {percent(total.within_15, 0)} within 15 % or that spread"
    )
    for note in notes_of(network, any(row.extrapolated for row in rows)):
        click.echo(f"note: {note}")
