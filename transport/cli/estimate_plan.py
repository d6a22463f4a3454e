"""`weft estimate plan`: the fastest ways to train a model on a number of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from transport.cli.estimate_configs import config_option, configured
from transport.cli.estimate_memory import memory_notes, set_framework
from transport.cli.estimate_options import (
    gpu_of,
    gpu_options,
    linked,
    network_of,
    network_options,
    no_torus_option,
    notes_of,
    refusing,
    torus_notes,
    usage_errors,
)
from transport.cli.estimate_refused import Asked, nothing
from transport.cli.estimate_report import unchecked_note
from transport.cli.estimate_run import (
    RUN_HEADS,
    RUN_NAMES,
    RUN_OPTIONS,
    Run,
    Spent,
    run_lines,
    run_of,
)
from transport.cli.estimate_train import COMMON_OPTIONS, SIZES, model_of, size_options
from transport.cli.estimate_words import train_command
from transport.cli.options import CountType, PercentType
from transport.cli.output import json_option, print_table, write_json
from transport.cli.progress import progress_on_a_terminal
from transport.estimate.memory import ABOVE, ABOVE_STAGES, above_of
from transport.estimate.plan import RANKS_MAX, RECOMPUTES, SCHEDULES
from transport.ground.units import bytes_text, percent, time_text

if TYPE_CHECKING:
    from transport.estimate.gpus import Gpu
    from transport.estimate.models import Model
    from transport.estimate.networks import Network
    from transport.estimate.plan import Plan
    from transport.estimate.ranges import Range
    from transport.estimate.search import Fitting, Searched
    from transport.estimate.space import Space

ALONE = "Default: that of the GPU's profile."
EXPERTS = (1, 8, 64)  # degrees that are tried for a model with experts
# What a framework has of RECOMPUTES and SCHEDULES; others have all (Megatron-LM's arguments.py:
# --recompute-granularity, and schedules.py of megatron/core/pipeline_parallel). Its arguments.py
# refuses FSDP2 with pipeline stages, too.
RECOMPUTES_OF = {"megatron": ("none", "selective", "full")}
SCHEDULES_OF = {"megatron": ("1f1b",)}
# Parameters that a configuration file may set; the others are searched.
TAKEN = {
    *("batch", "framework", "flash", "overlap", "overlap_context", "value_bytes"),
    *("gradient_bytes", "dtype", "expert_tensor", "gpus_per_node"),
}
HEADS = ["data", "tensor", "pipeline", "context", "expert", "ZeRO", "micro", "schedule"]
HEADS += ["recompute", "step", "range", "MFU", "memory", "of GPU"]


def _several(option: str, text: str, name: str = "") -> Any:
    kind = click.IntRange(1, RANKS_MAX)
    names = [option, name] if name else [option]
    return click.option(*names, multiple=True, type=kind, help=text)


SPACE_OPTIONS = (
    click.option("--gpus", required=True, type=click.IntRange(1, RANKS_MAX), help="GPUs in all."),
    click.option(
        "--batch", type=click.IntRange(1, 10**9), help="Sequences of a step, of all GPUs together."
    ),
    click.option(
        "--batch-tokens", type=CountType(), help="Instead of --batch: tokens of a step, such as 4M."
    ),
    _several("--tensor", "Tensor parallel ranks to try; may be repeated. Default: all.", "tensors"),
    _several("--pipeline", "Pipeline stages to try; may be repeated. Default: all.", "pipelines"),
    click.option(
        "--zero",
        "zeros",
        multiple=True,
        type=click.IntRange(0, 3),
        help="ZeRO stages to try; may be repeated. Default: all.",
    ),
    refusing("--data", "follows from --gpus / (tensor x pipeline x context), which it searches"),
    _several("--context", "Context parallel ranks to try; may be repeated. Default: 1."),
    _several("--expert", "Expert parallel ranks to try; may be repeated. Default: 1, 8, 64."),
    click.option(
        "--schedule",
        "schedules",
        multiple=True,
        type=click.Choice(SCHEDULES),
        help="Schedules of the pipeline to try; may be repeated. Default: 1f1b, zero-bubble; "
        "with --framework megatron 1f1b.",
    ),
    click.option(
        "--memory-headroom",
        "headroom",
        metavar="PERCENT",
        type=PercentType(0, 1000),
        help="Memory that a plan must leave unused, in percent of its own estimate. Default: "
        f"{100 * ABOVE:.0f}, and {100 * ABOVE_STAGES:.0f} for FSDP with "
        "pipeline stages, by which published peaks were above estimates at most.",
    ),
    click.option(
        "--commands",
        "all_commands",
        is_flag=True,
        help="Print the `train` command of each plan, not only of the first.",
    ),
    click.option(
        "--top", default=10, show_default=True, type=click.IntRange(1, 50), help="Plans to print."
    ),
    click.option(
        "--limit",
        default=150,
        show_default=True,
        type=click.IntRange(1, 10_000),
        help="Estimate at most this many plans.",
    ),
)


def _options(command: Any) -> Any:
    all_options = (
        *(click.argument("model"), config_option, gpu_options, *SPACE_OPTIONS, *RUN_OPTIONS),
        *(*COMMON_OPTIONS, size_options, partial(network_options, alone=ALONE)),
    )
    for option in reversed(all_options):
        command = option(command)
    return command


@click.command("plan", short_help="Search the fastest ways to train a model.")
@_options
@no_torus_option
@json_option
def command(model: str, json_path: str | None, **given: Any) -> None:
    """Search the fastest ways to train MODEL on --gpus GPUs: parallelism, ZeRO, recomputation.

    Only plans that fit into the GPU's memory, with headroom, are shown. MFU counts no
    recomputation. MODEL may be a configuration file, as in `train`; of its plan the batch and the
    precision count.

    \b
    Examples:
      weft estimate plan llama3-70b --gpus 512 --gpu h100 --batch 1024 --between infiniband-400
      weft estimate plan llama3-8b --gpus 64 --batch-tokens 4M --tokens 1T --price 2.50 \\
          --mtbf-hours 50000 --checkpoint-s 60
    """
    from transport.estimate.search import search

    top, limit, all_commands = (given.pop(name) for name in ("top", "limit", "all_commands"))
    only = TAKEN if given["batch_tokens"] is None else TAKEN - {"batch"}
    files_read = configured(model, given, SIZES, only)
    asked = {name: one for name, one in given.items() if name not in RUN_NAMES}
    with usage_errors():
        shape, gpu = model_of(files_read.model, given), gpu_of(given)
        set_framework(given, gpu)
        notes = linked(given, gpu)
        asked |= {name: given[name] for name in ("inside", "framework")}
        network = network_of(given)
        run = run_of(given, gpu, given["gpus"], network.gpus_per_node)
        space = _space_of(shape, given, notes)
        with progress_on_a_terminal("search") as progress:
            found = search(shape, gpu, network, space, top, limit, progress)
        rows = [_Row.of(one, shape, gpu, network, run) for one in found.best]
        commands = [train_command(model, asked, one.plan) for one in found.best]
        if json_path is not None:
            made = _json(found, rows, commands, space, gpu, network, shape)
            write_json(made | files_read.document, json_path)
        if not found.best:
            raise nothing(found, Asked(model, asked, shape, gpu, network, space))
    if json_path is not None:
        return
    _print_plans(rows, gpu, run, commands if all_commands else commands[:1])
    notes += [*_notes(rows, space), *torus_notes(gpu), *notes_of(network, False)]
    lines = [*files_read.lines, *_legend(rows), *map(gpu.says, _lines(found, space, run))]
    click.echo("\n".join([*lines, *(gpu.says(f"note: {one}") for one in notes)]))


def _notes(rows: Sequence[_Row], space: Space) -> list[str]:
    """Notes on the plans that were found."""
    notes = []
    if space.headroom is None:
        notes.append(
            f"plans leave {percent(ABOVE, 0)} of their memory's estimate unused, as published "
            "peaks were up to so much above it; FSDP with pipeline stages "
            f"{percent(ABOVE_STAGES, 0)}: --memory-headroom"
        )
    unchecked = dict.fromkeys(one for row in rows for one in row.found.plan.unchecked())
    if unchecked:
        notes.append(unchecked_note(unchecked))
    reasons = dict.fromkeys(one for row in rows for one in row.expected.wider)
    notes += [f"ranges are wider: {one}" for one in reasons]
    return notes + memory_notes(rows[0].found.plan)


def _print_plans(rows: Sequence[_Row], gpu: Gpu, run: Run, commands: Sequence[str]) -> None:
    """Prints the tables of the plans and of the whole run, and commands that estimate plans."""
    print_table([gpu.says(one) for one in HEADS], [row.cells(gpu) for row in rows])
    click.echo()
    if run.tokens is not None:
        cells = [[str(at), *row.spent.cells(row.expected)] for at, row in enumerate(rows, 1)]
        print_table([gpu.says(one) for one in ("plan", *RUN_HEADS)], cells)
        click.echo()
    for number, one in enumerate(commands, 1):
        click.echo(f"plan {number}: {one}")
    click.echo()


def _space_of(model: Model, given: dict[str, Any], notes: list[str]) -> Space:
    """The space to search: what is left in `given`. Adds to `notes` what was chosen."""
    from transport.estimate.plan import Plan
    from transport.estimate.space import Space

    gpus, batch, tokens = (given.pop(key) for key in ("gpus", "batch", "batch_tokens"))
    contexts, experts, schedules = (given.pop(key) for key in ("context", "expert", "schedules"))
    headroom = given.pop("headroom")
    tensors, pipelines, zeros = (given.pop(key) for key in ("tensors", "pipelines", "zeros"))
    if (batch is None) == (tokens is None):
        raise click.UsageError("give the batch of a step: either --batch or --batch-tokens")
    if tokens is not None:
        batch = _sequences_of(tokens, model, gpus)
        notes.append(_sequences_text(batch, tokens, model))
    if (framework := given["framework"]) in SCHEDULES_OF:
        schedules = schedules or SCHEDULES_OF[framework]
        notes.append(
            f"framework {framework}: only what it has is tried: schedule {', '.join(schedules)}; "
            f"recompute {', '.join(RECOMPUTES_OF[framework])}; ZeRO 3 without pipeline stages"
        )
    return Space(
        gpus,
        batch,
        contexts=tuple(sorted(set(contexts))) or (1,),
        experts=tuple(sorted(set(experts))) or (EXPERTS if model.experts > 1 else (1,)),
        schedules=tuple(one for one in SCHEDULES if one in schedules) or SCHEDULES[:2],
        tensors=tensors,
        pipelines=pipelines,
        zeros=tuple(sorted(set(zeros))) or (0, 1, 2, 3),
        recomputes=RECOMPUTES_OF.get(framework, tuple(RECOMPUTES)),
        common=Plan(**given),
        headroom=headroom,
        sharded_stages=framework != "megatron",
    )


def _sequences_of(tokens: int, model: Model, gpus: int) -> int:
    """The number of whole sequences nearest to `tokens` that divides well.

    A multiple of the GPUs, or, if there are fewer sequences, a power of two.
    """
    if tokens < model.sequence:
        raise click.UsageError(f"--batch-tokens: less than a sequence of {model.sequence:,} tokens")
    count = tokens // model.sequence
    low = count - count % gpus if count >= gpus else 1 << (count.bit_length() - 1)
    high = low + gpus if count >= gpus else 2 * low
    return min(low, high, key=lambda one: abs(one * model.sequence - tokens))


def _sequences_text(sequences: int, tokens: int, model: Model) -> str:
    """What --batch-tokens became."""
    found = sequences * model.sequence
    said = f"{sequences:,} sequences a step, {found:,} tokens"
    if found == tokens:
        return said
    more = percent(found / tokens - 1, signed=True)
    return (
        f"{said} instead of {tokens:,} ({more}): the nearest number that the ways to divide the "
        "GPUs divide; --batch gives another"
    )


@dataclass(frozen=True)
class _Row:
    """A plan and what a run with it takes."""

    found: Fitting
    mfu: float
    hfu: float
    expected: Range
    spent: Spent

    @classmethod
    def of(cls, found: Fitting, model: Model, gpu: Gpu, network: Network, run: Run) -> _Row:
        from transport.estimate.computation import of_gpu
        from transport.estimate.ranges import queued_ns, range_of
        from transport.estimate.search import hfu, mfu
        from transport.estimate.step import Step
        from transport.estimate.training import rows_of

        plan, step_ns = found.plan, found.step_ns
        sent = rows_of(Step(model, plan, of_gpu(model, plan, gpu), network))
        expected = range_of(step_ns, model, plan, gpu, queued_ns=queued_ns(sent, plan))
        shares = mfu(model, found, gpu), hfu(model, found, gpu)
        spent = Spent.of(run, step_ns, plan, model, gpu)
        return cls(found, *shares, expected, spent)

    def cells(self, gpu: Gpu) -> list[str]:
        from transport.estimate.search import recompute_of

        plan, memory = self.found.plan, self.found.memory.total
        low, high = time_text(self.expected.low_ns), time_text(self.expected.high_ns)
        schedule = _schedule_of(plan)
        used = percent(memory / gpu.memory_bytes, 0)
        if memory * (1 + above_of(plan)) > gpu.memory_bytes:
            used += ", may not fit"
        numbers = (plan.data, plan.tensor, plan.pipeline, plan.context, plan.expert, plan.zero)
        return [
            *(str(one) for one in (*numbers, plan.micro_batch)),
            *(schedule, recompute_of(plan), time_text(self.found.step_ns), f"{low} to {high}"),
            *(percent(self.mfu), bytes_text(memory), used),
        ]


def _schedule_of(plan: Plan) -> str:
    if plan.pipeline == 1:
        return "none"
    return f"{plan.schedule} x {plan.interleave}" if plan.interleave > 1 else plan.schedule


def _legend(rows: Sequence[_Row]) -> list[str]:
    """What the schedules of the table are, if their names do not say it."""
    chunks = [one.found.plan.interleave for one in rows if one.found.plan.interleave > 1]
    schedules = {one.found.plan.schedule for one in rows if one.found.plan.pipeline > 1}
    lines = []
    if chunks:
        lines.append(
            f"1f1b x {chunks[0]}: interleaved, each stage has {chunks[0]} parts of the model that "
            f"are not next to each other (--interleave {chunks[0]})"
        )
    if "zero-bubble" in schedules:
        lines.append("zero-bubble: ZB-H1, gradients of parameters fill the bubbles")
    return lines


def _lines(found: Searched, space: Space, run: Run) -> list[str]:
    """Lines about the search and the run."""
    made = [
        f"{space.gpus:,} GPUs, {space.global_batch:,} sequences a step: {found.looked:,} plans, "
        f"{found.fit:,} fit, {found.estimated:,} were estimated"
    ]
    if found.complete:
        made.append("no plan that was left out is faster")
    else:
        made.append("the search ended at --limit: a plan that was not estimated may be faster")
    made.append(
        "MFU: model FLOPs, without recomputation, with attention's whole matrix as PaLM and "
        "Megatron-LM count it, of the peak in bf16"
    )
    return made + run_lines(run)


def _json(
    found: Searched,
    rows: list[_Row],
    commands: list[str],
    space: Space,
    gpu: Gpu,
    network: Network,
    model: Model,
) -> dict[str, Any]:
    return {
        "model": vars(model),
        "gpu": gpu.name,
        "network": network.name,
        "gpus": space.gpus,
        "global_batch": space.global_batch,
        "looked": found.looked,
        "fit": found.fit,
        "estimated": found.estimated,
        "complete": found.complete,
        "refused": found.refused,
        "smallest_memory_bytes": None if found.smallest is None else found.smallest.memory.total,
        "plans": [
            {
                "plan": vars(row.found.plan),
                "command": command,
                "step_ns": row.found.step_ns,
                "range": vars(row.expected),
                "mfu": row.mfu,
                "hfu": row.hfu,
                "memory_bytes": row.found.memory.total,
                "memory_high_bytes": row.found.memory.total * (1 + above_of(row.found.plan)),
                **row.spent.as_json(),
            }
            for row, command in zip(rows, commands, strict=True)
        ],
    }
