"""`weft knobs`: prints the list of knobs as a table, JSON or docs page."""

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

import click

from transport.cli.output import json_option, write_json
from transport.endpoint import knobs
from transport.endpoint.knobs import KeyRow, KnobRow

WIDTH_MAX = 120  # maximum width of the lines that say what a knob means
HEADINGS = ("variable", "value", "range", "for")


@click.command("knobs")
@json_option
@click.option("--markdown", is_flag=True, help="Print docs/KNOBS.md.")
def command(json_path: str | None, markdown: bool) -> None:
    """List every knob: current value, range, who sets it (for), meaning."""
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
    for line in _listed(rows, values, min(shutil.get_terminal_size((WIDTH_MAX, 0))[0], WIDTH_MAX)):
        click.echo(line)
    if any(values[row.field] != row.default for row in rows):
        click.echo("* differs from the default")


def _listed(rows: Sequence[KnobRow], values: Mapping[str, str], width: int) -> Iterator[str]:
    """A line of columns for each knob, and each key of a knob, with its meaning below it."""

    def meaning(sentence: str) -> list[str]:
        return textwrap.wrap(sentence, width, initial_indent=" " * 4, subsequent_indent=" " * 4)

    yield _columns(*HEADINGS)
    for row in rows:
        value = "" if row.keys else _marked(values[row.field], row.default)
        yield _columns(row.variable, value, _range(row), row.set_by)
        yield from meaning(row.sentence)
        given = knobs.keys_of(values[row.field]) if row.keys else {}
        for key in row.keys:
            yield _columns(f"  {key.name}", _marked(given[key.name], key.default), _range(key))
            yield from meaning(key.sentence)


def _columns(name: str, value: str, allowed: str, set_by: str = "") -> str:
    gap = " " * (26 - len(name))
    line = click.style(name, bold=True) + f"{gap} {value:<13} {allowed:<27} {set_by}"
    return line.rstrip()


def _marked(value: str, default: str) -> str:
    return value if value == default else f"{value} *"


def _range(row: KnobRow | KeyRow) -> str:
    """Text about the allowed values; the numbers of times and sizes have their units."""
    return row.range if row.unit in ("", "ns", "bytes") else f"{row.range} {row.unit}"
