"""Compares two recorded results of one benchmark and says which differences are noise.

The hash of each result is checked; differing machines and settings are reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from bench.lib.common import Config, json_option
from bench.lib.options import UNITS, heading, show, table
from bench.lib.record import read, seal_state
from bench.lib.stats import Summary, grouped, summary
from transport.cli.output import write_json

# Key columns for old results, which do not list their key columns.
KEYS = ("contender", "operation", "what", "mode", "burst", "payload", "provider", "size_bytes")
RISING = ("per_s", "algbw", "busbw", "jain")
COLUMNS = ("measure", "A", "B", "B / A", "spread A", "spread B", "runs", "verdict")
ENVIRONMENT = ("cpu", "cores", "python", "numpy", "weft", "commit", "knobs")


def runs(found: Config) -> list[Config]:
    """The rows of every run of a result, or the medians if an old result has only those."""
    kept = found.get("rounds")
    usable = isinstance(kept, list) and all(isinstance(one, dict) for one in kept)
    rows: list[Config] = kept if usable and kept else found["rows"]
    return rows


def keys(found: Config) -> tuple[str, ...]:
    """The columns that identify a row."""
    if "keys" in found:
        return tuple(found["keys"])
    return tuple(key for key in KEYS if any(key in row for row in runs(found)))


def measures(found: Config) -> dict[str, str]:
    """Column -> whether `higher` or `lower` is better; in old results, guessed by name."""
    if "measures" in found:
        return dict(found["measures"])
    numbers = {
        name: None
        for row in runs(found)
        for name, value in row.items()
        if isinstance(value, float) and name not in KEYS
    }
    return {name: "higher" if name.endswith(RISING) else "lower" for name in numbers}


def verdict(old: Summary, new: Summary, better: str) -> str:
    """Text that compares `new` with `old`; noise: medians differ by at most the larger range."""
    if min(old.runs, new.runs) < 2:
        return "one run: no spread"
    difference = new.median - old.median
    if abs(difference) <= max(old.range, new.range):
        return "noise"
    return "better" if (difference > 0) == (better == "higher") else "worse"


def pairs(old: Config, new: Config) -> Iterator[Config]:
    """One line for each measure of each group of rows that both results have."""
    names = keys(old)
    left, right = (grouped(runs(one), names) for one in (old, new))
    both = measures(new)
    common = [name for name in measures(old) if name in both]
    for key, rows in left.items():
        if key not in right:
            continue
        for measure in common:
            values = [
                [row[measure] for row in side if isinstance(row.get(measure), int | float)]
                for side in (rows, right[key])
            ]
            if not all(values):
                continue
            a, b = map(summary, values)
            yield {
                "key": dict(zip(names, key, strict=True)),
                "measure": measure,
                "a": a.median,
                "b": b.median,
                "ratio": b.median / a.median if a.median else None,
                "a_spread": a.spread,
                "b_spread": b.spread,
                "runs": [a.runs, b.runs],
                "verdict": verdict(a, b, both[measure]),
            }


def alone(old: Config, new: Config) -> Iterator[str]:
    """Rows that only one of the results has."""
    names = keys(old)
    left, right = (grouped(runs(one), names) for one in (old, new))
    for name, mine, other in (("A", left, right), ("B", right, left)):
        for key in mine:
            if key not in other:
                said = ", ".join(str(part) for part in key)
                yield f"only in {name}: {said}"


def warnings(old: Config, new: Config) -> Iterator[str]:
    """Warnings about the results: interrupted, without a hash, other machine, other settings."""
    for name, found in (("A", old), ("B", new)):
        if found.get("partial"):
            yield f"{name} is partial: it was interrupted"
        if seal_state(found) == "none":
            yield f"{name} has no hash: it was recorded before results had one, or edited"
    old_place, new_place = old.get("environment", {}), new.get("environment", {})
    for name in ENVIRONMENT:
        if old_place.get(name) != new_place.get(name):
            yield f"{name} differs: {old_place.get(name)} and {new_place.get(name)}"
    # Messages went over the network by default when results did not say so.
    one, other = (found.get("local") or "off" for found in (old, new))
    if one != other:
        yield f"local differs: {one} and {other}"
    if old.get("settings") != new.get("settings"):
        yield f"settings differ: {old.get('settings')} and {new.get('settings')}"


def _text(line: Config, names: tuple[str, ...], units: str) -> list[str]:
    def value(number: Any) -> str:
        return show(line["measure"], number, units)

    return [
        *(str(line["key"][name]) for name in names),
        heading(line["measure"], line["measure"].removesuffix("_bytes_per_s"), units),
        value(line["a"]),
        value(line["b"]),
        "" if line["ratio"] is None else f"{line['ratio']:.3f}",
        show("spread", line["a_spread"]),
        show("spread", line["b_spread"]),
        " ".join(map(str, line["runs"])),
        line["verdict"],
    ]


@click.command("compare")
@click.argument("old", metavar="A.json", type=click.Path(path_type=Path))
@click.argument("new", metavar="B.json", type=click.Path(path_type=Path))
@click.option("--units", type=click.Choice(list(UNITS)), default="GB/s", show_default=True)
@json_option
def command(old: Path, new: Path, units: str, json_path: str | None) -> None:
    """Compares two results of one bench row by row: ratio of medians, spread, noise.

    Exit status 1 if a result was changed after it was recorded (its hash does not match).
    """
    before, after = read(old), read(new)
    if before["bench"] != after["bench"]:
        raise click.UsageError(
            f"{old} is of {before['bench']}, {new} of {after['bench']}: compare one bench at a time"
        )
    if keys(before) != keys(after):
        raise click.UsageError(
            f"{old} and {new} have different key columns: record one of them again"
        )
    lines = list(pairs(before, after))
    notes = [*warnings(before, after), *alone(before, after)]
    changed = [
        str(path) for path, found in ((old, before), (new, after)) if seal_state(found) == "changed"
    ]
    if json_path is not None:
        found = {"bench": before["bench"], "rows": lines, "notes": notes, "changed": changed}
        write_json(found, json_path)
    if json_path != "-":
        names = keys(before)
        heads = [(name, name) for name in (*names, *COLUMNS)]
        table(heads, [_text(line, names, units) for line in lines])
        for note in notes:
            click.echo(note)
    if changed:
        raise click.ClickException(f"hash mismatch: {', '.join(changed)} changed after recording")
