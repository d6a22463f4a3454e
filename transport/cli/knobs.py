"""`weft knobs`: prints the list of knobs, or some of them, as a table, JSON or docs page."""

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches

import click
from click.shell_completion import CompletionItem

from transport import native
from transport.cli.output import json_option, write_json
from transport.cli.settings import knob_refusal, usable
from transport.endpoint import knobs
from transport.endpoint.knobs import KeyRow, KnobRow
from transport.ground.text import printable

WIDTH_MAX = 120  # maximum width of the lines that say what a knob means
HEADINGS = ("variable", "value", "range", "for")


def _completions(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The variables that begin so, in any case, and are not given yet."""
    try:
        rows = knobs.table()
    except native.NativeMissingError:
        return []
    given = ctx.params.get("names") or ()
    found = [row for row in rows if row.variable.startswith(incomplete.upper())]
    return [
        CompletionItem(row.variable, help=row.sentence)
        for row in found
        if row.variable not in given
    ]


@click.command("knobs")
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=_completions)
@json_option
@click.option("--markdown", is_flag=True, help="Print docs/KNOBS.md.")
def command(names: tuple[str, ...], json_path: str | None, markdown: bool) -> int:
    """List every knob: current value, range, who sets it (for), meaning.

    With NAMEs, only the knobs that have this name, or a name or a key with this part: weft knobs
    WEFT_PATHS, weft knobs port. Settings that are wrong are named below; the exit status is 2 then.
    """
    if markdown and (names or json_path is not None):
        raise click.UsageError("--markdown goes neither with names nor with --json")
    rows = knobs.table()
    if markdown:
        click.echo(knobs.markdown(rows), nl=False)
        return 0
    found = [row for name in names or ("",) for row in matching(name, rows)]
    shown = list({row.field: row for row in found}.values())
    with usable(knob_refusal) as settings:
        values = knobs.in_force()
    wrong = {one.subject: one for one in settings.refused}
    if names:
        wrong = {row.variable: wrong[row.variable] for row in shown if row.variable in wrong}
    if json_path is not None:
        refused = {row.field: None for row in rows if row.variable in wrong}
        write_json(
            [asdict(row) | {"value": (values | refused)[row.field]} for row in shown], json_path
        )
    else:
        _print(shown, values, set(wrong))
    for one in wrong.values():
        click.echo(f"weft: {printable(one.found)}", err=True)
    return 2 if wrong else 0


def matching(name: str, rows: Sequence[KnobRow]) -> list[KnobRow]:
    """The knob of a name, or those with this part in their name; of others, keys with this part.

    UsageError if there is none: it says which name is similar.
    """
    wanted, _, key = name.strip().upper().replace("-", "_").partition("=")
    whole = [row for row in rows if wanted in (row.variable, row.field.upper())]
    found = whole or [row for row in rows if wanted in row.variable]
    if key:
        found = [one for row in found for one in _keys_only(row, key.partition("=")[0])]
    elif not whole:
        others = [row for row in rows if row not in found]
        found += [one for row in others for one in _keys_only(row, wanted)]
    if found:
        return found
    known = {key.name: f"{row.variable}={key.name}" for row in rows for key in row.keys}
    known |= {row.field: row.variable for row in rows}
    close = get_close_matches((key or wanted.removeprefix("WEFT_")).lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean {known[close[0]]}?" if close else "; weft knobs lists them"
    raise click.UsageError(f"there is no knob {printable(name)}{hint}")


def _keys_only(row: KnobRow, part: str) -> list[KnobRow]:
    """The knob with only its keys that have the part in their name; [] if there is none."""
    keys = tuple(key for key in row.keys if part in key.name.upper())
    return [replace(row, keys=keys)] if keys else []


def _print(rows: Sequence[KnobRow], values: Mapping[str, str], wrong: set[str]) -> None:
    width = min(shutil.get_terminal_size((WIDTH_MAX, 0))[0], WIDTH_MAX)
    for line in _listed(rows, values, wrong, width):
        click.echo(line)
    if any(values[row.field] != row.default for row in rows):
        click.echo("* differs from the default")
    if wrong:
        click.echo("? the value that is set is wrong")


def _listed(
    rows: Sequence[KnobRow], values: Mapping[str, str], wrong: set[str], width: int
) -> Iterator[str]:
    """A line of columns for each knob, and each key of a knob, with its meaning below it."""

    def meaning(row: KnobRow | KeyRow, value: str) -> list[str]:
        changed = f"; default: {row.default or '(empty)'}" if value != row.default else ""
        indent = " " * 4
        return textwrap.wrap(
            row.sentence + changed, width, initial_indent=indent, subsequent_indent=indent
        )

    yield _columns(*HEADINGS)
    for row in rows:
        is_wrong = row.variable in wrong
        value = "" if row.keys else _marked(values[row.field], row.default)
        yield _columns(row.variable, "?" if is_wrong else value, _range(row), row.set_by)
        yield from meaning(row, row.default if row.keys else values[row.field])
        given = knobs.keys_of(values[row.field]) if row.keys else {}
        for key in row.keys:
            value = _marked(given[key.name], key.default)
            yield _columns(f"  {key.name}", "?" if is_wrong else value, _range(key))
            yield from meaning(key, given[key.name])


def _columns(name: str, value: str, allowed: str, set_by: str = "") -> str:
    gap = " " * (26 - len(name))
    line = click.style(name, bold=True) + f"{gap} {value:<13} {allowed:<27} {set_by}"
    return line.rstrip()


def _marked(value: str, default: str) -> str:
    return value if value == default else f"{value} *"


def _range(row: KnobRow | KeyRow) -> str:
    """Text about the allowed values; the numbers of times and sizes have their units."""
    return row.range if row.unit in ("", "ns", "bytes") else f"{row.range} {row.unit}"
