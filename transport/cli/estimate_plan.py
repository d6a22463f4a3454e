"""`weft estimate plan`: the fastest ways to train a model on a number of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from transport.cli.estimate_configs import config_option, configured
from transport.cli.estimate_options import (
    gpu_of,
    gpu_options,
    known_links,
    network_of,
    network_options,
    no_torus_option,
    notes_of,
    torus_notes,
    usage_errors,
)
from transport.cli.estimate_refused import Asked, nothing
from transport.cli.estimate_train import COMMON_OPTIONS, SIZES, model_of, size_options
from transport.cli.estimate_words import train_command
from transport.cli.options import CountType, FiniteRange
from transport.cli.output import json_option, print_table, write_json
from transport.cli.progress import progress_on_a_terminal
from transport.estimate.plan import RANKS_MAX, SCHEDULES
from transport.ground.units import bytes_text, percent, time_text

if TYPE_CHECKING:
    from transport.estimate.failures import Failures
    from transport.estimate.gpus import Gpu
    from transport.estimate.models import Model
    from transport.estimate.networks import Network
    from transport.estimate.plan import Plan
    from transport.estimate.ranges import Range
    from transport.estimate.search import Fitting, Searched
    from transport.estimate.space import Space

GOODPUT_MIN = 1e-6  # a run of less never ends
EXPERTS = (1, 8, 64)  # degrees that are tried for a model with experts
# Parameters that a configuration file may set; the others are searched.
TAKEN = {
    *("batch", "framework", "flash", "overlap", "overlap_context", "value_bytes"),
    "gradient_bytes",
}
HEADS = ["data", "tensor", "pipeline", "context", "expert", "ZeRO", "micro", "schedule"]
HEADS += ["recompute", "step", "range", "MFU", "memory", "of GPU"]
RUN_HEADS = ["plan", "days", "range", "GPU-hours", "cost", "energy", "goodput"]


def _several(option: str, text: str) -> Any:
    return click.option(option, multiple=True, type=click.IntRange(1, RANKS_MAX), help=text)


def _amount(option: str, text: str, most: float = 1e9, **more: Any) -> Any:
    kind = FiniteRange(1e-6, most)
    return click.option(option, metavar="NUMBER", type=kind, help=text, **more)


SPACE_OPTIONS = (
    click.option("--gpus", required=True, type=click.IntRange(1, RANKS_MAX), help="GPUs in all."),
    click.option("--batch", type=click.IntRange(1, 10**9), help="Sequences of a step."),
    click.option(
        "--batch-tokens", type=CountType(), help="Instead of --batch: tokens of a step, such as 4M."
    ),
    _several("--context", "Context parallel ranks to try; may be repeated. Default: 1."),
    _several("--expert", "Expert parallel ranks to try; may be repeated. Default: 1, 8, 64."),
    click.option(
        "--schedule",
        "schedules",
        multiple=True,
        type=click.Choice(SCHEDULES),
        help="Schedules of the pipeline to try; may be repeated. Default: 1f1b, zero-bubble.",
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
RUN_OPTIONS = (
    click.option("--tokens", type=CountType(), help="Tokens of the whole run, such as 1T."),
    _amount(
        "--price",
        "Price of an hour of one GPU, in any currency. Default: that of the profile.",
        1e6,
    ),
    _amount("--mtbf-hours", "Mean time between failures of a GPU, or of --mtbf-of."),
    click.option(
        "--mtbf-of",
        type=click.Choice(["gpu", "node"]),
        default="gpu",
        show_default=True,
        help="What --mtbf-hours counts the failures of.",
    ),
    _amount("--checkpoint-s", "Time in s that a checkpoint stops training."),
    _amount(
        "--restart-s",
        "Time in s from a failure until training goes on.",
        default=300.0,
        show_default=True,
    ),
)


def _options(command: Any) -> Any:
    all_options = (
        *(click.argument("model"), config_option, gpu_options, *SPACE_OPTIONS, *RUN_OPTIONS),
        *(*COMMON_OPTIONS, size_options, network_options),
    )
    for option in reversed(all_options):
        command = option(command)
    return command


@dataclass(frozen=True)
class Run:
    """What a whole run is asked for. price: of an hour of one GPU. None: not known."""

    tokens: int | None
    price: float | None
    failures: Failures | None


@click.command("plan", short_help="Search the fastest ways to train a model.")
@_options
@no_torus_option
@json_option
def command(model: str, json_path: str | None, **given: Any) -> None:
    """Search the fastest ways to train MODEL on --gpus GPUs: parallelism, ZeRO, recomputation.

    Only plans that fit into the GPU's memory are shown. MFU counts no recomputation. MODEL may be a
    configuration file, as in `train`; of its plan the batch and the precision count.

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
    asked = dict(given)
    with usage_errors():
        shape, gpu = model_of(files_read.model, given), gpu_of(given)
        notes = _linked(given, gpu)
        asked["inside"] = given["inside"]
        network = network_of(given)
        run = _run_of(given, gpu, network.gpus_per_node)
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
    lines = [*files_read.lines, *_lines(found, space, run)]
    reasons = dict.fromkeys(one for row in rows for one in row.expected.wider)
    wider = [f"ranges are wider: {one}" for one in reasons]
    unchecked = dict.fromkeys(one for row in rows for one in row.found.plan.unchecked())
    if unchecked:
        notes.append(f"not checked against measurements: {', '.join(unchecked)}")
    notes += [*wider, *torus_notes(gpu), *notes_of(network, False)]
    click.echo("\n".join([*lines, *(f"note: {one}" for one in notes)]))


def _print_plans(rows: Sequence[_Row], gpu: Gpu, run: Run, commands: Sequence[str]) -> None:
    """Prints the tables of the plans and of the whole run, and commands that estimate plans."""
    print_table(HEADS, [row.cells(gpu) for row in rows])
    click.echo()
    if run.tokens is not None:
        print_table(RUN_HEADS, [row.run_cells(at + 1) for at, row in enumerate(rows)])
        click.echo()
    for number, one in enumerate(commands, 1):
        click.echo(f"plan {number}: {one}")
    click.echo()


def _linked(given: dict[str, Any], gpu: Gpu) -> list[str]:
    """Sets the link inside of a node to the GPU's own, if none was given; returns notes on it."""
    if given["inside"] is not None or given["network_file"] is not None:
        return []
    name = next(iter(gpu.facts.links), None)
    if name is None or known_links()[name].is_of_torus:
        return ["without --inside every GPU is a node: layers are not split (tensor 1)"]
    given["inside"] = name
    return [f"nodes have {given['gpus_per_node']} GPUs, linked by {name}: --inside changes it"]


def _run_of(given: dict[str, Any], gpu: Gpu, each_node: int) -> Run:
    """What is asked about the whole run; takes it out of `given`."""
    from transport.estimate.failures import Failures

    tokens, price = given.pop("tokens"), given.pop("price")
    hours, kind = given.pop("mtbf_hours"), given.pop("mtbf_of")
    save_s, restart_s = given.pop("checkpoint_s"), given.pop("restart_s")
    if (hours is None) != (save_s is None):
        raise click.UsageError("--mtbf-hours and --checkpoint-s need each other: give both")
    if price is None and gpu.facts.price is not None:
        price = gpu.facts.price.dollars_per_hour
    if hours is None:
        return Run(tokens, price, None)
    parts = given["gpus"] if kind == "gpu" else -(-given["gpus"] // each_node)
    return Run(tokens, price, Failures(hours * 3600 / parts, save_s, restart_s))


def _space_of(model: Model, given: dict[str, Any], notes: list[str]) -> Space:
    """The space to search: what is left in `given`. Adds to `notes` what was chosen."""
    from transport.estimate.plan import Plan
    from transport.estimate.space import Space

    gpus, batch, tokens = (given.pop(key) for key in ("gpus", "batch", "batch_tokens"))
    contexts, experts, schedules = (given.pop(key) for key in ("context", "expert", "schedules"))
    if (batch is None) == (tokens is None):
        raise click.UsageError("give the batch of a step: either --batch or --batch-tokens")
    if tokens is not None:
        batch = _sequences_of(tokens, model, gpus)
        notes.append(f"{batch:,} sequences a step, {batch * model.sequence:,} tokens")
    return Space(
        gpus,
        batch,
        contexts=tuple(sorted(set(contexts))) or (1,),
        experts=tuple(sorted(set(experts))) or (EXPERTS if model.experts > 1 else (1,)),
        schedules=tuple(one for one in SCHEDULES if one in schedules) or SCHEDULES[:2],
        common=Plan(**given),
    )


def _sequences_of(tokens: int, model: Model, gpus: int) -> int:
    """Whole sequences of at most `tokens`, a number that divides well.

    A multiple of the GPUs, or, if there are fewer sequences, a power of two.
    """
    count = tokens // model.sequence
    if count < 1:
        raise click.UsageError(f"--batch-tokens: less than a sequence of {model.sequence:,} tokens")
    return count - count % gpus if count >= gpus else 1 << (count.bit_length() - 1)


@dataclass(frozen=True)
class _Row:
    """A plan and what a run with it takes. None: not asked for, or not known."""

    found: Fitting
    mfu: float
    expected: Range
    goodput: float | None
    days: float | None
    cost: float | None
    energy_mwh: float | None

    @classmethod
    def of(cls, found: Fitting, model: Model, gpu: Gpu, network: Network, run: Run) -> _Row:
        from transport.estimate.computation import of_gpu
        from transport.estimate.ranges import queued_ns, range_of
        from transport.estimate.search import mfu
        from transport.estimate.step import Step
        from transport.estimate.training import rows_of

        plan, failures = found.plan, run.failures
        sent = rows_of(Step(model, plan, of_gpu(model, plan, gpu), network))
        expected = range_of(found.step_ns, model, plan, gpu, queued_ns=queued_ns(sent, plan))
        goodput = None if failures is None else failures.goodput(failures.daly_s)
        share = mfu(model, found, gpu)
        if run.tokens is None or (goodput is not None and goodput < GOODPUT_MIN):
            return cls(found, share, expected, goodput, None, None, None)
        steps = -(-run.tokens // (plan.global_batch * model.sequence))
        days = steps * found.step_ns / 86_400e9 / (goodput or 1.0)
        hours = 24 * days * plan.gpus
        cost = None if run.price is None else hours * run.price
        watts = gpu.facts.power_w
        energy_mwh = None if watts is None else hours * watts / 1e6
        return cls(found, share, expected, goodput, days, cost, energy_mwh)

    def cells(self, gpu: Gpu) -> list[str]:
        from transport.estimate.search import recompute_of

        plan, memory = self.found.plan, self.found.memory.total
        low, high = time_text(self.expected.low_ns), time_text(self.expected.high_ns)
        schedule = _schedule_of(plan)
        numbers = (plan.data, plan.tensor, plan.pipeline, plan.context, plan.expert, plan.zero)
        return [
            *(str(one) for one in (*numbers, plan.micro_batch)),
            *(schedule, recompute_of(plan), time_text(self.found.step_ns), f"{low} to {high}"),
            *(percent(self.mfu), bytes_text(memory), percent(memory / gpu.memory_bytes, 0)),
        ]

    def run_cells(self, number: int) -> list[str]:
        plan, step_ns = self.found.plan, self.found.step_ns
        goodput = "?" if self.goodput is None else percent(self.goodput)
        if self.days is None:
            return [str(number), "?", "?", "?", "?", "?", goodput]
        low, high = (
            f"{self.days * one / step_ns:,.1f}"
            for one in (self.expected.low_ns, self.expected.high_ns)
        )
        return [
            *(str(number), f"{self.days:,.1f}", f"{low} to {high}"),
            f"{24 * self.days * plan.gpus:,.0f}",
            "?" if self.cost is None else f"{self.cost:,.0f}",
            "?" if self.energy_mwh is None else f"{self.energy_mwh:,.1f} MWh",
            goodput,
        ]


def _schedule_of(plan: Plan) -> str:
    if plan.pipeline == 1:
        return "none"
    return f"{plan.schedule} x {plan.interleave}" if plan.interleave > 1 else plan.schedule


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
    if run.failures is not None:
        failures = run.failures
        made.append(
            f"a failure every {time_text(failures.mtbf_s * 1e9)}; a checkpoint every "
            f"{time_text(failures.daly_s * 1e9)} (Daly 2006), {time_text(failures.young_s * 1e9)} "
            f"(Young 1974): goodput {percent(failures.goodput(failures.daly_s))}, "
            f"{percent(failures.goodput(failures.young_s))}"
        )
        if failures.daly_s >= failures.mtbf_s:
            made.append("note: checkpoints take too long for this rate of failures")
    if run.tokens is not None:
        made.append(
            "days, cost and energy count the time that failures cost only if --mtbf-hours is given;"
            " energy is of GPUs at their power limit, without hosts and cooling"
        )
    return made


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
                "memory_bytes": row.found.memory.total,
                "days": row.days,
                "gpu_hours": None if row.days is None else 24 * row.days * space.gpus,
                "cost": row.cost,
                "energy_mwh": row.energy_mwh,
                "goodput": row.goodput,
            }
            for row, command in zip(rows, commands, strict=True)
        ],
    }
