"""Writes matrices to files: a page with a canvas, a picture, CSV."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport import pages
from transport.ground.text import csv_table
from transport.ground.units import quantity_text
from transport.trace.matrix import UNKNOWN, Matrix, state_text, total_text

PIXELS_MAX = 1024  # maximum number of rows and of columns of a picture; larger ones are scaled
LARGEST = 32  # rows of a page's table of the largest cells
SUMS_MAX = 256  # a page of a larger matrix has no table of the sums of rows and columns
CELLS_EXACT = 1 << 20  # an HTML page with more matrix cells stores their values as float32


def title(matrix: Matrix) -> str:
    """Title of the matrix: its measure, what its rows are, and its size."""
    return f"{matrix.measure} by {matrix.what}, {matrix.size} x {matrix.size}"


def page(
    matrix: Matrix,
    notes: Sequence[str],
    logarithmic: bool,
    about: Sequence[tuple[str, str]] = (),
    command: str = "",
) -> str:
    """An HTML page that needs no other file. Its cells are typed arrays, encoded as base64.

    about: facts about the trace, as (name, value). command: the command line that made it.
    """
    return pages.rendered(
        "matrix.html",
        title=title(matrix),
        command=command,
        about=[*about, *_totals(matrix)],
        remarks=[*notes, *matrix.notes],
        largest=_largest(matrix),
        sums=_sums(matrix) if _adds_up(matrix) and matrix.size <= SUMS_MAX else None,
        data=pages.as_json(data_of(matrix, logarithmic)),
    )


def data_of(matrix: Matrix, logarithmic: bool) -> dict[str, Any]:
    """A matrix for the script that draws it (pages/matrix.js)."""
    return {
        "unit": matrix.unit,
        "measure": matrix.measure,
        "by": matrix.what,
        "labels": matrix.labels,
        "racks": matrix.racks,
        "borders": [(row, "rack") for row in matrix.borders],
        "log": logarithmic,
        **_cells_of_page(matrix),
        "unknown": [_packed(np.array(group), "<u4") for group in matrix.unknown],
    }


def _adds_up(matrix: Matrix) -> bool:
    """Whether a sum of cells has a meaning, unlike that of latencies."""
    return not matrix.measure.startswith("latency")


def _totals(matrix: Matrix) -> list[tuple[str, str]]:
    facts = [("cells with a value", f"{matrix.values.size:,} of {matrix.size**2:,}")]
    if _adds_up(matrix) and (matrix.values.size or matrix.unknown):
        facts.insert(0, ("total", total_text(matrix)))
    if matrix.values.size:
        facts.append(("largest cell", quantity_text(float(matrix.values.max()), matrix.unit)))
    return facts


def _largest(matrix: Matrix) -> pages.Table:
    """The largest cells, the largest first."""
    rows = [
        (
            matrix.labels[matrix.sources[at]],
            matrix.labels[matrix.targets[at]],
            quantity_text(float(matrix.values[at]), matrix.unit),
            state_text(int(matrix.states[at])),
        )
        for at in np.argsort(-matrix.values, kind="stable")[:LARGEST].tolist()
    ]
    return ("from", "to", matrix.measure, "is"), rows


def _sums(matrix: Matrix) -> pages.Table:
    """What each row sent in all, and what each column received; with ?, it was more."""
    sent = np.bincount(matrix.sources, matrix.values, matrix.size)
    received = np.bincount(matrix.targets, matrix.values, matrix.size)
    vague = {row for group in matrix.unknown for row in group}

    def cell(row: int, value: float) -> str:
        known = quantity_text(value, matrix.unit)
        if row not in vague:
            return known
        return f"{known} + ?" if value else "?"

    rows = [
        (label, cell(row, float(sent[row])), cell(row, float(received[row])))
        for row, label in enumerate(matrix.labels)
    ]
    return (matrix.what, "sent", "received"), rows


def _cells_of_page(matrix: Matrix) -> dict[str, Any]:
    """The cells: those with a value, or all cells, row by row, if many have a value.

    Values of many cells are float32, so that a page of 4,096 x 4,096 stays below 120 MB.
    """
    count = matrix.values.size
    floats = "f4" if count > CELLS_EXACT else "f8"
    if count * 4 < matrix.size**2:
        index = _packed(matrix.sources * matrix.size + matrix.targets, "<u4")
        values, states = matrix.values, matrix.states
    else:
        index = None
        values = matrix.dense_values().ravel()
        states = np.zeros(matrix.size**2, np.uint8)
        states[matrix.sources * matrix.size + matrix.targets] = matrix.states
    packed = {"values": _packed(values, f"<{floats}"), "states": _packed(states, "u1")}
    return {"cells": index, "floats": floats, **packed}


def table(matrix: Matrix) -> str:
    """CSV with a line for each cell that has a value or, with the value "?", is unknown."""
    rows = [
        (matrix.labels[source], matrix.labels[target], "?" if value is None else value, state)
        for source, target, value, state in _cells(matrix)
    ]
    return csv_table(("from", "to", matrix.measure, "state"), rows)


def document(matrix: Matrix, notes: Sequence[str]) -> dict[str, Any]:
    """The matrix as a JSON document.

    `cells`: those with a value, and the unknown ones with null (of a matrix with more than
    CELLS_EXACT cells only the former). `unknown`: groups of labels; how many bytes the members of a
    group sent each other is unknown.
    `racks`: the rack of each label; empty without an inventory.
    """
    return {
        "by": matrix.what,
        "measure": matrix.measure,
        "unit": matrix.unit,
        "labels": matrix.labels,
        "racks": matrix.racks,
        "cells": [
            {
                "from": matrix.labels[source],
                "to": matrix.labels[target],
                "value": value,
                "state": state,
            }
            for source, target, value, state in _cells(matrix)
        ],
        "unknown": [[matrix.labels[row] for row in group] for group in matrix.unknown],
        "notes": [*notes, *matrix.notes],
    }


def picture(matrix: Matrix, out: Path, logarithmic: bool) -> None:
    """Draws the matrix into a PNG file; ImportError without matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import colors, pyplot

    dense, states = _folded(matrix.dense_values()), _folded(matrix.dense_states())
    shown = np.ma.masked_where((states & 3 == 0) | ((dense <= 0) & logarithmic), dense)
    figure, axes = pyplot.subplots(figsize=(9, 8), layout="constrained")
    scale = colors.LogNorm() if logarithmic and shown.count() else None
    edges = (-0.5, matrix.size - 0.5, matrix.size - 0.5, -0.5)
    axes.imshow(
        states == UNKNOWN, cmap="Greys", vmin=0, vmax=4, interpolation="nearest", extent=edges
    )
    drawn = axes.imshow(shown, cmap="viridis", norm=scale, interpolation="nearest", extent=edges)
    if shown.count():
        figure.colorbar(drawn, label=matrix.unit)
    for at in matrix.borders:
        axes.axhline(at - 0.5, color="black", linewidth=0.8)
        axes.axvline(at - 0.5, color="black", linewidth=0.8)
    axes.set_title(title(matrix))
    axes.set_xlabel(f"to {matrix.what}")
    axes.set_ylabel(f"from {matrix.what}")
    if matrix.size <= 32:
        axes.set_xticks(range(matrix.size), matrix.labels, rotation=90)
        axes.set_yticks(range(matrix.size), matrix.labels)
    try:
        figure.savefig(out, format="png", dpi=120)
    finally:
        pyplot.close(figure)


def _folded(cells: NDArray[Any]) -> NDArray[Any]:
    """The matrix scaled to at most PIXELS_MAX rows: each cell is the maximum of several cells."""
    fold = -(-len(cells) // PIXELS_MAX)
    if fold == 1:
        return cells
    starts = np.arange(0, len(cells), fold)
    rows: NDArray[Any] = np.maximum.reduceat(cells, starts, axis=0)
    columns: NDArray[Any] = np.maximum.reduceat(rows, starts, axis=1)
    return columns


def _cells(matrix: Matrix) -> list[tuple[int, int, float | None, str]]:
    """Row, column, value and state of each cell that is not empty; the value None: unknown."""
    sources, targets = matrix.sources, matrix.targets
    values: list[float | None] = [_plain(value) for value in matrix.values.tolist()]
    states = matrix.states
    if matrix.unknown and matrix.size**2 <= CELLS_EXACT:
        dense = matrix.dense_states()
        vague = np.nonzero(dense == UNKNOWN)
        states = np.concatenate([dense[sources, targets], dense[vague]])
        sources = np.concatenate([sources, vague[0]])
        targets = np.concatenate([targets, vague[1]])
        values += [None] * len(vague[0])
    named = map(state_text, states.tolist())
    return list(zip(sources.tolist(), targets.tolist(), values, named, strict=True))


def _plain(value: float) -> int | float:
    """The value as an int if it is a whole number."""
    return int(value) if value.is_integer() else value


def _packed(values: NDArray[Any], dtype: str) -> str:
    return base64.b64encode(values.astype(dtype).tobytes()).decode("ascii")
