"""`weft estimate hlo`: what an XLA program communicates, and what of it is or could be hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transport.cli.estimate_options import (
    LATENCY_UNKNOWN,
    MARK,
    gpu_of,
    gpu_options,
    network_of,
    network_options,
    notes_of,
    torus_notes,
    torus_of,
    torus_option,
    usage_errors,
)
from transport.cli.options import InputFile
from transport.cli.output import json_option, print_table, write_json
from transport.estimate.gpus import EFFICIENCY
from transport.ground.text import printable
from transport.ground.units import binary_text, bytes_text, counted, percent, time_text

if TYPE_CHECKING:
    from transport.estimate.gpus import Gpu
    from transport.estimate.hlo import Collective, Module, Program, Totals
    from transport.estimate.networks import Network

ROWS_MAX = 40  # collectives that are printed, those with the most exposed time
CELL_MAX = 48  # characters of a name or a shape that are printed
NUMBERS_MAX = 8  # devices of groups that are printed
NAMES_MAX = 6  # of one duplicate
DUPLICATES_MAX = 16
HEADS = (
    *("collective", "operation", "shape", "groups", "nodes", "times", "sent"),
    *("each", "in all", "hidden", "exposed", "hideable"),
)


@click.command("hlo", short_help="Say what an XLA program communicates.")
@click.argument("file", type=InputFile())
@gpu_options
@network_options
@torus_option
@json_option
def command(file: Path, json_path: str | None, **given: Any) -> None:
    """Say what the XLA program in FILE communicates, and what computation hides of it.

    FILE is HLO text after compilation: what `jax.jit(f).lower(...).compile().as_text()` returns,
    or *after_optimizations.txt of XLA_FLAGS=--xla_dump_to=DIR.

    `sent` and `each` are of one execution, `sent` of the device that sends most; `in all`,
    `hidden`, `exposed` and `hideable` are of all executions. `hideable` is how much of the exposed
    time another order of the instructions could hide, at most.

    With --torus the devices are TPUs, numbered along its first axis, then along the next.

    \b
    Examples:
      weft estimate hlo step.hlo --inside nvlink4 --between ethernet-400
      weft estimate hlo step.hlo --gpu tpu-v5p --torus 4x4x4
    """
    from transport.estimate.hlo import HloError, read

    is_default, torus = given["efficiency"] is None, given.pop("torus")
    with usage_errors():
        chosen = gpu_of(given)
        if chosen.is_tpu and is_default:
            chosen = replace(chosen, efficiency=chosen.share)
        network = network_of(given) if torus is None else torus_of(torus, given, chosen)
    try:
        answer(read(file), network, chosen, is_default, json_path)
    except HloError as error:
        raise click.UsageError(in_file(file, error)) from None


def in_file(file: Path, error: ValueError) -> str:
    """What is wrong, with the file, unless the error names it."""
    said = str(error)
    return printable(said if str(file) in said else f"{file}: {said}")


def answer(
    module: Module,
    network: Network,
    chosen: Gpu,
    is_default: bool,
    json_path: str | None,
    more: Sequence[str] = (),
) -> None:
    """Prints what a program communicates. is_default: efficiency. more: notes. HloError."""
    from transport.estimate.hlo import program_of

    found = program_of(module, network, chosen)
    notes = [one.replace("the GPU's", f"the {chosen.noun}'s") for one in (*more, *found.notes)]
    notes += torus_notes(chosen) if network.torus is None else [LATENCY_UNKNOWN]
    notes += _assumed(found, network, chosen, is_default)
    if json_path is not None:
        write_json(document(found, network, chosen, notes), json_path)
        return
    show(found, network, notes)


def _assumed(found: Program, network: Network, chosen: Gpu, is_default: bool) -> list[str]:
    notes = []
    if found.flops and is_default:
        share = percent(chosen.efficiency or EFFICIENCY, 0)
        notes.append(
            f"products are assumed to reach {share} of the {chosen.noun}'s peak: --efficiency"
        )
    return [*notes, *notes_of(network, any(_beyond(one, network) for one in found.collectives))]


def document(found: Program, network: Network, chosen: Gpu, notes: list[str]) -> dict[str, Any]:
    rows = [asdict(one) | {"extrapolated": _beyond(one, network)} for one in found.collectives]
    return {
        "program": found.name,
        "devices": found.devices,
        "nodes": found.nodes,
        "network": asdict(network),
        "gpu": asdict(chosen),
        "collectives": rows,
        "duplicates": [asdict(one) for one in found.duplicates],
        "totals": asdict(found.totals) | {"step_ns": found.totals.step_ns},
        "flops": found.flops,
        "notes": notes,
    }


def _beyond(one: Collective, network: Network) -> bool:
    from transport.estimate.hlo.communication import KINDS

    return network.extrapolates(KINDS[one.operation], one.size_bytes, one.ranks)


def show(found: Program, network: Network, notes: list[str]) -> None:
    nodes = counted(found.nodes, "node")
    place = nodes if network.torus is None else f"a {network.name}"
    click.echo(
        f"{printable(found.name)}: {counted(found.devices, 'device')} on {place}, "
        f"{counted(len(found.collectives), 'collective')}"
    )
    if found.collectives:
        rows = sorted(found.collectives, key=lambda one: -one.times * (one.exposed_ns or 0.0))
        print_table(HEADS, [_row(one, network) for one in rows[:ROWS_MAX]])
        if rows[ROWS_MAX:]:
            click.echo(f"{len(rows) - ROWS_MAX} more collectives: --json -")
    click.echo()
    print_table(["part", "time", "share"], _parts(found.totals))
    click.echo()
    for one in found.duplicates[:DUPLICATES_MAX]:
        click.echo(
            f"duplicate: {_names(one.names)}: {one.operation} of the same data "
            f"in the same groups: one instead of {len(one.names)} saves each device "
            f"{size_text(one.saved_bytes)} and {time_text(one.saved_ns)}, and keeps the result in "
            "memory for longer"
        )
    if found.duplicates[DUPLICATES_MAX:]:
        click.echo(f"{len(found.duplicates) - DUPLICATES_MAX} more duplicates: --json -")
    for note in notes:
        click.echo(f"note: {printable(note)}")


def _parts(totals: Totals) -> list[list[str]]:
    parts = [
        ("computation", totals.computation_ns),
        ("communication", totals.communication_ns),
        ("hidden communication", totals.hidden_ns),
        ("exposed communication", totals.exposed_ns),
        ("of it hideable by another order, at most", totals.hideable_ns),
        ("not judged", totals.not_judged_ns),
        ("step", totals.step_ns),
    ]
    return [
        [name, *_share(ns, totals.step_ns)] for name, ns in parts if ns != 0 or name != "not judged"
    ]


def _share(ns: float | None, step_ns: float) -> tuple[str, str]:
    if ns is None:
        return "?", "?"
    return time_text(ns), percent(ns / step_ns) if step_ns else "-"


def _row(one: Collective, network: Network) -> list[str]:
    return [
        _short(printable(one.name)),
        one.operation,
        _short(one.shape),
        groups_text(one),
        str(one.nodes),
        str(one.times),
        size_text(one.sent_bytes),
        time_text(one.time_ns) + MARK * _beyond(one, network),
        time_text(one.times * one.time_ns),
        _known(one, one.hidden_ns),
        _known(one, one.exposed_ns),
        _known(one, one.hideable_ns),
    ]


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(_short(printable(one)) for one in names[:NAMES_MAX])
    return shown + ", ..." * (len(names) > NAMES_MAX)


def _short(text: str) -> str:
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 3]}..."


def _known(one: Collective, ns: float | None) -> str:
    return "?" if ns is None else time_text(one.times * ns)


def groups_text(one: Collective) -> str:
    """Groups as text, such as 2 of 4: {0,2,4,6}, {1,3,5,7}."""
    shown: list[str] = []
    numbers = 0
    for group in one.groups:
        if shown and numbers + len(group) > NUMBERS_MAX:
            break
        inside = ",".join(map(str, group[:NUMBERS_MAX]))
        shown.append(f"{{{inside}{',...' if group[NUMBERS_MAX:] else ''}}}")
        numbers += len(group)
    more = ", ..." if len(shown) < len(one.groups) else ""
    is_paired = one.operation in ("collective-permute", "send")
    kind = "pairs" if is_paired else f"of {one.ranks}"
    return f"{len(one.groups)} {kind}: {', '.join(shown)}{more}" if one.groups else "?"


def size_text(count: float) -> str:
    """A size in binary units if it is a multiple of 1 KiB, else in decimal ones."""
    whole = round(count)
    is_binary = whole == count and whole % 1024 == 0 and whole > 0
    return binary_text(whole) if is_binary else bytes_text(count)
