"""`weft estimate fit`: the longest sequence and the largest microbatch that fit into memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from transport.cli.estimate_configs import configured
from transport.cli.estimate_memory import MAXTEXT, memory_notes, parts_of
from transport.cli.estimate_options import torus_option, usage_errors
from transport.cli.estimate_train import SIZES, Computing, model_of, plan_of, step_options
from transport.cli.estimate_words import train_command
from transport.cli.output import json_option, print_table, write_json
from transport.estimate.plan import RECOMPUTES, REMATS
from transport.ground.units import bytes_text, percent

if TYPE_CHECKING:
    from transport.estimate.gpus import Gpu
    from transport.estimate.longest import Largest
    from transport.estimate.models import Model
    from transport.estimate.plan import Plan

# Options of `train` that describe a network, which memory does not depend on.
NETWORK = {
    *("between", "inside", "gpus_per_node", "nics_per_node", "pcie", "links_file", "torus"),
    *("gpus_per_switch", "oversubscription", "nodes_per_leaf", "network_file"),
}
KINDS = ("sequence", "batch")


@dataclass(frozen=True)
class _Row:
    """What fits with a kind of recomputation. plan: with it. found: of each of KINDS."""

    recompute: str
    plan: Plan
    found: dict[str, Largest]


@click.command("fit", short_help="Find the longest sequence and the largest microbatch that fit.")
@step_options
@torus_option
@click.option(
    "--longest",
    "kinds",
    type=click.Choice(KINDS),
    multiple=True,
    default=KINDS,
    help="What to find: the longest sequence, or the largest microbatch of sequences of "
    "--sequence. Default: both.",
)
@json_option
def command(model: str, kinds: tuple[str, ...], json_path: str | None, **given: Any) -> None:
    """Find the longest sequence, and the largest microbatch, of MODEL that fit into memory.

    Options are those of `train`; without --recompute, each kind of it is tried. Options of the
    network change nothing here, and are passed on to the command of `train` that is printed.

    \b
    Example:
      weft estimate fit llama3-8b --gpu h100 --data 8 --zero 3 --inside nvlink4
    """
    files = configured(model, given, SIZES)
    asked = dict(given)
    tried = _recomputes(given)
    for name in NETWORK:
        given.pop(name, None)
    with usage_errors():
        shape = model_of(files.model, given)
        computing = Computing.taken(given)
        asked["framework"] = given["framework"]
        names = tried or _all(given["framework"], given["offload"])
        plans = {name: plan_of(dict(given) | {"recompute": name}) for name in names}
        for plan in plans.values():
            plan.check(shape)
    rows = [_found(name, plan, shape, computing.gpu, kinds) for name, plan in plans.items()]
    best = _best(rows, kinds)
    commands = {kind: _command(model, asked, best[kind], kind) for kind in best}
    if json_path is not None:
        write_json(_json(rows, shape, computing.gpu, commands) | files.document, json_path)
        return
    _show(rows, shape, computing.gpu, kinds)
    lines = [*files.lines, *_lines(best, commands, computing.gpu)]
    notes = memory_notes(rows[0].plan)
    click.echo("\n".join([*lines, *(f"note: {one}" for one in notes)]))


def _recomputes(given: dict[str, Any]) -> list[str]:
    """The kind of recomputation that was asked for; none: all are tried."""
    source = click.get_current_context().get_parameter_source("recompute")
    is_default = source is click.core.ParameterSource.DEFAULT and given["recompute"] == "none"
    return [] if is_default else [given["recompute"]]


def _all(framework: str, offload: bool) -> list[str]:
    if framework == MAXTEXT:
        return [*([] if offload else ["none"]), *reversed(REMATS)]
    return [one for one in RECOMPUTES if one != "selective"]  # of a matrix that flash does not keep


def _found(name: str, plan: Plan, model: Model, gpu: Gpu, kinds: tuple[str, ...]) -> _Row:
    from transport.estimate.longest import largest_micro_batch, longest_sequence

    search = {"sequence": longest_sequence, "batch": largest_micro_batch}
    return _Row(name, plan, {one: search[one](model, plan, gpu.memory_bytes) for one in kinds})


def _best(rows: list[_Row], kinds: tuple[str, ...]) -> dict[str, _Row]:
    """Kind -> the row with the largest value, unless nothing fits; the first of equal ones."""
    best = {one: max(rows, key=lambda row: row.found[one].value) for one in kinds}
    return {one: row for one, row in best.items() if row.found[one].value}


def _command(model: str, asked: dict[str, Any], row: _Row, kind: str) -> str:
    """The command of `train` for what was found."""
    value, plan = row.found[kind].value, row.plan
    if kind == "sequence":
        return train_command(model, asked | {"sequence": value}, plan)
    batch = plan.data * value * plan.microbatches
    return train_command(model, asked, replace(plan, micro_batch=value, global_batch=batch))


def _show(rows: list[_Row], model: Model, gpu: Gpu, kinds: tuple[str, ...]) -> None:
    what = {
        "sequence": "longest sequence",
        "batch": f"largest microbatch of {model.sequence:,} tokens",
    }
    heads = ["recompute"]
    for kind in kinds:
        heads += [what[kind], "memory", f"of {gpu.noun}"]
    print_table(heads, [_cells(row, gpu, kinds) for row in rows])
    click.echo()


def _cells(row: _Row, gpu: Gpu, kinds: tuple[str, ...]) -> list[str]:
    cells = [row.recompute]
    for kind in kinds:
        one = row.found[kind]
        total = one.memory.total
        cells += [
            f"{one.value:,}" if one.value else "does not fit",
            bytes_text(total),
            percent(total / gpu.memory_bytes, 0),
        ]
    return cells


def _lines(best: dict[str, _Row], commands: dict[str, str], gpu: Gpu) -> list[str]:
    lines = []
    for kind, row in best.items():
        memory = row.found[kind].memory
        lines += [
            f"{'longest sequence' if kind == 'sequence' else 'largest microbatch'}: "
            f"{commands[kind]}",
            f"memory of {gpu.one}: {bytes_text(memory.total)} ({parts_of(memory)})",
        ]
    if not best:
        return [
            f"nothing fits into the {bytes_text(gpu.memory_bytes)} of {gpu.one}: split more, or "
            "weft estimate plan"
        ]
    return [
        *lines,
        "the batch of a step has no limit: microbatches follow each other. Memory is estimated "
        "within about 10 %: leave some",
    ]


def _json(rows: list[_Row], model: Model, gpu: Gpu, commands: dict[str, str]) -> dict[str, Any]:
    return {
        "model": vars(model),
        "gpu": gpu.name,
        "memory_bytes": gpu.memory_bytes,
        "fits": [
            {
                "recompute": row.recompute,
                **{
                    kind: {
                        "value": one.value,
                        "memory_bytes": vars(one.memory) | {"total": one.memory.total},
                    }
                    for kind, one in row.found.items()
                },
            }
            for row in rows
        ],
        "commands": commands,
    }
