"""`weft knobs`: prints the list of knobs as a table, JSON or docs page."""

from dataclasses import asdict

import click

from transport import knobs
from transport.cli.output import json_option, print_table, write_json


@click.command("knobs")
@json_option
@click.option("--markdown", is_flag=True, help="Print docs/KNOBS.md.")
def command(json_path: str | None, markdown: bool) -> None:
    """List every knob: current value, unit, range, meaning."""
    if markdown and json_path is not None:
        raise click.UsageError("--markdown and --json cannot be used together: give one")
    rows = knobs.table()
    if markdown:
        click.echo(knobs.markdown(rows), nl=False)
        return
    values = knobs.in_force()
    if json_path is not None:
        write_json([asdict(row) | {"value": values[row.field]} for row in rows], json_path)
        return
    print_table(
        ["variable", "value", "unit", "range", "meaning"],
        [
            (
                row.variable,
                values[row.field] + ("" if values[row.field] == row.default else " *"),
                row.unit,
                row.range,
                row.sentence,
            )
            for row in rows
        ],
    )
    if any(values[row.field] != row.default for row in rows):
        click.echo("* differs from the default")
