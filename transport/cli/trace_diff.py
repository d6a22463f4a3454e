"""`weft trace diff`: prints what changed most between two traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transport.cli import trace_open as shared
from transport.cli.output import json_option, print_table, write_json
from transport.cli.trace_matrix import MEASURES
from transport.ground.units import percent, quantity_text

if TYPE_CHECKING:
    from transport.trace.difference import Change
    from transport.trace.matrix import Matrix
    from transport.trace.profile import Profile


# Parts of the comparison of operations, with the title and the unit of each.
OPERATIONS = (
    ("calls", "calls of operations", "calls"),
    ("call_bytes", "bytes in calls of operations", "bytes"),
    ("time_ns", "time of operations", "ns"),
)


@click.command("diff", short_help="Compare two traces: who sent what, and operations.")
@click.argument("before", metavar="BEFORE", type=click.Path(path_type=Path))
@click.argument("after", metavar="AFTER", type=click.Path(path_type=Path))
@click.option(
    "--measure",
    type=click.Choice(MEASURES),
    default="bytes",
    show_default=True,
    help=shared.MEASURE,
)
@click.option(
    "--by",
    type=click.Choice(["rank", "host"]),
    default="rank",
    show_default=True,
    help="What a row of the matrices is.",
)
@click.option(
    "--top",
    metavar="N",
    type=click.IntRange(1, 100_000),
    default=10,
    show_default=True,
    help="Print at most N rows of each table: the largest changes.",
)
@shared.comm_option
@shared.op_option
@shared.kind_option
@json_option
def command(
    before: Path,
    after: Path,
    measure: str,
    by: str,
    top: int,
    comm: str | None,
    op: str | None,
    kind: str | None,
    json_path: str | None,
) -> None:
    """Compare two traces: the cells of their matrices, and their operations.

    A share is a value divided by the sum over its trace, so that runs of different lengths can be
    compared. The largest changes of a share come first.

    Example: weft trace diff monday tuesday --by host
    """
    from transport.trace.difference import labels_differ

    filters = shared.filters_of(comm, op, kind, None, None)
    matrices: list[Matrix] = []
    profiles: list[Profile] = []
    notes: list[str] = []
    for name, folder in (("first", before), ("second", after)):
        matrix, profile, said = _read(folder, measure, by, filters)
        matrices.append(matrix)
        profiles.append(profile)
        notes += [f"{name} trace: {one}" for one in said]
    differ = labels_differ(*matrices)
    notes += [differ] if differ else []
    parts = _compared(matrices, profiles, measure)
    if json_path is not None:
        content = {name: [_plain(one) for one in found] for name, found in parts.items()}
        write_json({"cells": measure, **content, "notes": notes}, json_path)
        return
    cell = ("cells", ["from", "to"])
    _show(f"{measure} by {matrices[0].what}", cell, matrices[0].unit, parts.pop(measure), top)
    row = ("rows", ["function", "algorithm", "protocol", "datatype"])
    for name, title, of in OPERATIONS:
        click.echo()
        _show(title, row, of, parts[name], top)
    shared.show_notes(notes)


def _read(folder: Path, measure: str, by: str, filters: Any) -> tuple[Matrix, Profile, list[str]]:
    from transport.trace.matrix import matrix_of
    from transport.trace.profile import profile_of

    with shared.opened(folder, None) as store, shared.reporting_errors():
        found = matrix_of(store, measure, by_host=by == "host", filters=filters)
        return found, profile_of(store), [*store.notes(), *found.notes]


def _compared(
    matrices: list[Matrix], profiles: list[Profile], measure: str
) -> dict[str, list[Change]]:
    """The changes of the cells and of the operations."""
    from transport.trace.difference import (
        cells,
        changes,
        operations,
        unknown_cells,
        unknown_operations,
    )

    first, second = matrices
    vague = unknown_cells(first), unknown_cells(second)
    parts = {measure: changes(cells(first), cells(second), vague)}
    old, new = profiles
    for name, of in (("calls", "count"), ("call_bytes", "bytes"), ("time_ns", "time_ns")):
        vague = unknown_operations(old, of), unknown_operations(new, of)
        parts[name] = changes(operations(old, of), operations(new, of), vague)
    return parts


def _plain(one: Change) -> dict[str, Any]:
    """A change for JSON; a number of which nothing is known is None."""
    names = ("what", "before", "after", "share_before", "share_after", "ratio", "unknown")
    found = {name: getattr(one, name) for name in names}
    for name, vague in zip(("before", "after"), one.unknown, strict=True):
        found[name] = None if vague and not found[name] else found[name]
    return found


def _number(value: float, unit: str, vague: bool) -> str:
    if not vague:
        return quantity_text(value, unit)
    return f"{quantity_text(value, unit)} + ?" if value else "?"


def _ratio(one: Change) -> str:
    if one.ratio is None:
        return "?" if any(one.unknown) else "new"
    return f"{one.ratio:.3g}"


def _show(title: str, of: tuple[str, list[str]], unit: str, found: list[Change], top: int) -> None:
    """Prints the largest changes. of: what is compared ("cells", "rows"), headings of its names."""

    rows = [
        [
            *one.what,
            *(_number(one.before, unit, one.unknown[0]), _number(one.after, unit, one.unknown[1])),
            _ratio(one),
            *(
                percent(one.share_before),
                percent(one.share_after),
                percent(one.share_change, signed=True),
            ),
        ]
        for one in found[:top]
    ]
    things, heads = of
    changed = sum(one.before != one.after for one in found)
    largest = f"; the {top} whose share changed most" if len(found) > top else ""
    click.echo(f"{title}: {changed} of {len(found)} {things} changed{largest}")
    values = ["before", "after", "ratio", "share before", "share after", "change"]
    print_table([*heads, *values], rows)
