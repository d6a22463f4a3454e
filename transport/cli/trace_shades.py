"""Prints a traffic matrix as text: cell by cell, or as shades if it has many rows."""

from __future__ import annotations

import click
import numpy as np
from numpy.typing import NDArray

from transport.cli.output import print_table
from transport.ground.units import quantity_text
from transport.trace.matrix import Matrix, total_text

TABLE_MAX = 16  # a matrix with more ranks is printed as shades, not cell by cell
SHADES = " .:-=+*#%@"
SHADED = 64  # maximum number of lines and of columns that are printed as shades
TOP = 10


def show(found: Matrix, logarithmic: bool) -> None:
    """Prints the matrix, its total, and the racks of its rows."""
    total = "" if found.measure.startswith("latency") else f", {total_text(found)}"
    click.echo(f"{found.measure} by {found.what}: {found.size} x {found.size}{total}")
    if found.size <= TABLE_MAX:
        show_cells(found)
    else:
        show_shades(found, logarithmic)
        if found.values.size:
            show_top(found)
    if found.racks:
        click.echo(f"racks: {racks_text(found)}")


def racks_text(found: Matrix) -> str:
    """The rows of each rack, in order: "r1: 0 to 7; r2: 8 to 15"."""
    starts = [0, *found.borders]
    ends = [*found.borders, found.size]
    parts = []
    for first, end in zip(starts, ends, strict=True):
        last = f" to {found.labels[end - 1]}" if end > first + 1 else ""
        parts.append(f"{found.racks[first]}: {found.labels[first]}{last}")
    return "; ".join(parts)


def text(found: Matrix, value: float) -> str:
    return quantity_text(value, found.unit)


def show_cells(found: Matrix) -> None:
    values, states = found.dense_values(), found.dense_states()

    def cell(row: int, column: int) -> str:
        state = int(states[row, column])
        if state & 3 == 0:
            return "?" if state else "."
        known = text(found, values[row, column])
        return ("~" if state & 2 else "") + known + (" + ?" if state & 4 else "")

    def bordered(cells: list[str], mark: str) -> list[str]:
        """The cells of a line, with a mark before each column that begins another rack."""
        made: list[str] = []
        for column, text in enumerate(cells):
            made += [mark, text] if column in found.borders else [text]
        return made

    lines = []
    for row, label in enumerate(found.labels):
        if row in found.borders:
            lines.append(["-", *bordered(["-"] * found.size, "+")])
        cells = [cell(row, column) for column in range(found.size)]
        lines.append([label, *bordered(cells, "|")])
    print_table(["from \\ to", *bordered([*found.labels], "|")], lines)


def show_shades(found: Matrix, logarithmic: bool) -> None:
    """Prints shades; a character is the sum (for latencies: the maximum) of several cells."""
    side = min(found.size, SHADED)
    at = found.sources * side // found.size, found.targets * side // found.size
    sums = np.zeros((side, side))
    if found.measure.startswith("latency"):
        np.maximum.at(sums, at, found.values)
    else:
        np.add.at(sums, at, found.values)
    used = sums[sums > 0]
    shares = sums / (used.max() if used.size else 1.0)
    if logarithmic and used.size and used.min() < used.max():
        span = np.log(used.max() / used.min())
        shares = np.where(
            sums > 0, 0.1 + 0.9 * np.log(np.maximum(sums, used.min()) / used.min()) / span, 0
        )
    shades = np.ceil(shares * (len(SHADES) - 1)).astype(int)
    shades[unknown_shades(found, side) & (shades == 0)] = len(SHADES)
    borders = {-(-at * side // found.size) for at in found.borders}

    def bordered(marks: str, border: str) -> str:
        return "".join(border * (at in borders) + mark for at, mark in enumerate(marks))

    for row, line in enumerate(shades.tolist()):
        if row in borders:
            click.echo(bordered("-" * side, "+"))
        click.echo(bordered("".join(f"{SHADES}?"[shade] for shade in line), "|").rstrip())
    click.echo(legend(found, side, float(sums.max(initial=0)), logarithmic))


def unknown_shades(found: Matrix, side: int) -> NDArray[np.bool_]:
    """The printed cells that have a matrix cell of which nothing is known, shape (side, side)."""
    vague = np.zeros((side, side), np.bool_)
    for group in found.unknown:
        rows = np.array(group) * side // found.size
        places = np.unique(rows)
        vague[np.ix_(places, places)] = True
        # A place on the diagonal has a cell between two rows only if it has two rows.
        once = places[np.bincount(rows, minlength=side)[places] < 2]
        vague[once, once] = False
    return vague


def legend(found: Matrix, side: int, most: float, logarithmic: bool) -> str:
    """Text about the meaning of the shades; `side`: number of lines printed."""
    if found.unknown and not found.values.size:
        return f'shades: "?" unknown, "{SHADES[0]}" nothing'
    said = "? unknown; " if found.unknown else ""
    said += f'shades: "{SHADES[0]}" nothing, "{SHADES[1]}" little, ... "{SHADES[-1]}" up to '
    said += f"{text(found, most)}; in order: {SHADES[1:]}" + (
        ", logarithmic" if logarithmic else ""
    )
    if side == found.size:
        return said
    of = "the largest" if found.measure.startswith("latency") else "the sum"
    wide = -(-found.size // side)
    return f"{said}; each is {of} of up to {wide} x {wide} cells"


def show_top(found: Matrix) -> None:
    order = np.argsort(-found.values, kind="stable")[:TOP]
    print_table(
        ["from", "to", found.measure, "is"],
        [
            [
                found.labels[found.sources[at]],
                found.labels[found.targets[at]],
                text(found, found.values[at]),
                "measured" if found.states[at] & 1 else "derived",
            ]
            for at in order.tolist()
        ],
    )
