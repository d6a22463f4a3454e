"""`weft counters`: prints the list of counters as a table, JSON, docs page or type stub."""

from dataclasses import asdict

import click

from transport import telemetry
from transport.cli.output import json_option, print_table, write_json


@click.command("counters")
@json_option
@click.option("--markdown", "form", flag_value="markdown", help="Print docs/COUNTERS.md.")
@click.option("--stub", "form", flag_value="stub", help="Print the type stub of the counters.")
def command(json_path: str | None, form: str | None) -> None:
    """List every counter: scope, unit, kind, meaning."""
    if form is not None and json_path is not None:
        raise click.UsageError(f"--{form} and --json cannot be used together: give one")
    rows = telemetry.table()
    if form is not None:
        write = telemetry.markdown if form == "markdown" else telemetry.stub
        click.echo(write(rows), nl=False)
    elif json_path is not None:
        write_json([asdict(row) for row in rows], json_path)
    else:
        heads = ["of", "name", "unit", "kind", "meaning"]
        print_table(heads, [(r.scope, r.name, r.unit, r.kind, r.sentence) for r in rows])
