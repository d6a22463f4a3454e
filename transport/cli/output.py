"""Prints the results of commands as tables or as JSON."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from transport.cli.options import JSON, OutputFile
from transport.ground import created

NUMBERS = re.compile(r"\[\n([-+.eE0-9,\s]+)\]")  # a list of numbers in indented JSON
PIPE_WIDTH = 200  # width of tables where output is no terminal
# Errors that a wrong file name causes, unlike a full disk.
WRONG_NAMES = (
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
    PermissionError,
)

json_option = click.option(
    "--json",
    "json_path",
    metavar="FILE",
    type=OutputFile(*JSON, dir_okay=False, writable=True, allow_dash=True),
    help="Write JSON to FILE; - writes it to stdout, instead of the table.",
)


def write_json(value: Any, path: str, *, short: bool = False) -> None:
    """Writes JSON to a file, or to stdout if the path is '-'.

    short: a list of numbers takes one line.
    """
    text = json.dumps(value, indent=2)
    if short:
        # A string has no end of line in JSON, so no match begins in one.
        text = NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text)
    write_file(path, text + "\n")


def write_file(path: Path | str, content: str | bytes) -> None:
    """Writes a whole file, or to stdout if the path is '-'."""
    if path == "-":
        click.echo(content, nl=False)
        return
    try:
        created.write_output(path, content)
    except OSError as error:
        raise unwritten(path, error) from None


def unwritten(path: Path | str, error: OSError) -> click.ClickException:
    """The error for a file that cannot be written: wrong usage only if its name is wrong."""
    text = f"cannot write {path}: {error.strerror or error}"
    wrong_name = isinstance(error, WRONG_NAMES)
    return click.UsageError(text) if wrong_name else click.ClickException(text)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table; it wraps at the width of the terminal, or in a pipe at that of `plain_width`.

    In a pipe no line ends in blanks.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=plain_width(PIPE_WIDTH))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    click.echo("".join(f"{line.rstrip()}\n" for line in lines), nl=False)


def plain_width(default: int) -> int:
    """The width of lines where output is no terminal: that of COLUMNS, or else the default."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isascii() and columns.isdigit() and int(columns) else default
