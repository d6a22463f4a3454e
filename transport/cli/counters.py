"""`weft counters`: the list of counters, and with --live their values in running processes."""

from dataclasses import asdict

import click

from transport import telemetry
from transport.cli import counters_live as pages
from transport.cli.output import json_option, print_table, write_json


@click.command("counters")
@json_option
@click.option("--markdown", "form", flag_value="markdown", help="Print docs/COUNTERS.md.")
@click.option("--stub", "form", flag_value="stub", help="Print the type stub of the counters.")
@click.option(
    "--live",
    metavar="[PID]",
    is_flag=False,
    flag_value=pages.ALL,
    help="Print the counters of a process, or of all of this user's, running or just killed.",
)
def command(json_path: str | None, form: str | None, live: str | None) -> None:
    """List every counter: scope, unit, kind, meaning; --live: values in processes.

    For rates and waits over time see `weft top`, for Prometheus `weft metrics`.
    """
    if form is not None and (json_path is not None or live is not None):
        raise click.UsageError(
            f"--{form} and {'--json' if json_path else '--live'} cannot be used together: give one"
        )
    if live is not None:
        pages.show(live, json_path)
        return
    rows = telemetry.table()
    if form is not None:
        write = telemetry.markdown if form == "markdown" else telemetry.stub
        click.echo(write(rows), nl=False)
    elif json_path is not None:
        write_json([asdict(row) for row in rows], json_path)
    else:
        heads = ["of", "name", "unit", "kind", "meaning"]
        print_table(heads, [(r.scope, r.name, r.unit, r.kind, r.sentence) for r in rows])
