"""`weft estimate calibrate`: fits latencies and rates of a network to measured operations."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from transport.cli.options import InputFile
from transport.cli.output import json_option, print_table, write_file, write_json
from transport.cli.packages import TRACES, need_packages
from transport.ground.units import bytes_text, percent, rate_text, time_text

if TYPE_CHECKING:
    from transport.estimate.calibrate import Fit, Number
    from transport.estimate.samples import Sample


@click.command("calibrate", short_help="Fit a network to measurements or traces.")
@click.argument("sources", nargs=-1, required=True, type=InputFile(dir_okay=True))
@click.option(
    "--contender",
    metavar="NAME",
    default="weft",
    show_default=True,
    help="The transport whose rows are taken from results of bench nccl.",
)
@click.option(
    "--beside",
    metavar="FILE",
    type=InputFile(),
    help="A result of `bench step --beside`: how computation and operations slow each other.",
)
@click.option("--name", default="calibrated", show_default=True, help="Name of the network.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The profile, for --network of the other commands.",
)
@json_option
def command(
    sources: tuple[Path, ...],
    contender: str,
    beside: Path | None,
    name: str,
    output: Path,
    json_path: str | None,
) -> None:
    """Fit a network to SOURCES: results of `python -m bench nccl`, folders of traces.

    `bench` is in the repository, not in the wheel. A trace may come from `weft sim --trace`.
    Operations must differ much in size, and should differ in the number of ranks, too.

    Example: weft estimate calibrate traces-8 traces-64 --name mine -o mine.toml
    """
    from transport.estimate.calibrate import FitError, fit
    from transport.estimate.profile import text_of
    from transport.estimate.samples import SamplesError, slowdown_of

    if not name:
        raise click.UsageError("--name: the name is empty: give one")
    reading = [TRACES] if any(one.is_dir() for one in sources) else []
    need_packages("weft estimate calibrate", "scipy", *reading)
    try:
        measured = [one for source in sources for one in samples_of(source, contender)]
        found = fit(measured, name, ", ".join(source.name for source in sources))
        if beside is not None:
            slowdown = slowdown_of(beside, contender)
            found = replace(found, network=replace(found.network, slowdown=slowdown))
    except (FitError, SamplesError) as error:
        raise click.UsageError(str(error)) from None
    write_file(output, text_of(found.network))
    if json_path is not None:
        write_json(asdict(found), json_path)
        return
    show(found)
    click.echo(f"wrote {output}", err=True)


def samples_of(source: Path, contender: str) -> list[Sample]:
    from transport.cli import trace_open as shared
    from transport.estimate.samples import of_bench, of_trace

    if not source.is_dir():
        return of_bench(source, contender)
    with shared.opened(source, None) as store, shared.reporting_errors():
        return of_trace(store, source)


def show(found: Fit) -> None:
    from transport.estimate.networks import NONE

    print_table(
        ["number", "value", "95 % from", "to"],
        [
            [one.name, *(_shown(one, each) for each in (one.value, one.low, one.high))]
            for one in found.numbers
        ],
    )
    click.echo()
    rows = [
        [
            one.operation,
            str(one.ranks),
            bytes_text(one.size_bytes),
            time_text(one.time_ns),
            percent(spread),
            percent(error, signed=True),
        ]
        for one, error, spread in zip(found.samples, found.errors, found.spreads, strict=True)
    ]
    print_table(["operation", "ranks", "size", "measured", "spread", "error"], rows)
    fitted = found.network.calibrated
    assert fitted is not None
    click.echo(
        f"\n{len(rows)} operations and sizes; error of the fit: median "
        f"{percent(fitted.median_error)}, 95 % below {percent(fitted.p95_error)}"
    )
    slow = found.network.slowdown
    if slow != NONE:
        click.echo(
            f"when both run at once, computation takes {slow.computation:.2f} times as long, and "
            f"operations {slow.communication:.2f} times"
        )
    for note in found.notes:
        click.echo(f"note: {note}")


def _shown(one: Number, value: float) -> str:
    return time_text(value) if one.unit == "ns" else rate_text(value)
