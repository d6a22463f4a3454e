"""What a whole run of training takes: days, GPU-hours, cost and energy, for `weft estimate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from transport.cli.options import CountType, FiniteRange
from transport.ground.units import percent, time_text

if TYPE_CHECKING:
    from transport.cli.estimate_report import Report
    from transport.estimate.failures import Failures
    from transport.estimate.gpus import Gpu
    from transport.estimate.models import Model
    from transport.estimate.plan import Plan
    from transport.estimate.ranges import Range

GOODPUT_MIN = 1e-6  # a run of less never ends
RUN_HEADS = ["days", "GPU-hours", "cost", "energy", "goodput"]


def _amount(option: str, text: str, most: float = 1e9, **more: Any) -> Any:
    kind = FiniteRange(1e-6, most)
    return click.option(option, metavar="NUMBER", type=kind, help=text, **more)


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


RUN_NAMES = ("tokens", "price", "mtbf_hours", "mtbf_of", "checkpoint_s", "restart_s")


def run_options(command: Any) -> Any:
    """Adds the options of RUN_NAMES."""
    for option in reversed(RUN_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Run:
    """What a whole run is asked for. price: of an hour of one GPU. None: not known.

    currency: of the price, in words.
    """

    tokens: int | None
    price: float | None
    failures: Failures | None
    currency: str = "the currency of --price"


def run_of(given: dict[str, Any], gpu: Gpu, gpus: int, each_node: int) -> Run:
    """What is asked about the whole run on `gpus` GPUs; takes it out of `given`."""
    from transport.estimate.failures import Failures

    tokens, price = given.pop("tokens"), given.pop("price")
    hours, kind = given.pop("mtbf_hours"), given.pop("mtbf_of")
    save_s, restart_s = given.pop("checkpoint_s"), given.pop("restart_s")
    if price is not None and tokens is None:
        raise click.UsageError("--price needs --tokens: give the tokens of the whole run")
    if (hours is None) != (save_s is None):
        raise click.UsageError("--mtbf-hours and --checkpoint-s need each other: give both")
    currency = "the currency of --price"
    if price is None and gpu.facts.price is not None:
        price, currency = gpu.facts.price.dollars_per_hour, "dollars, as the GPU's profile has it"
    if hours is None:
        return Run(tokens, price, None, currency)
    parts = gpus if kind == "gpu" else -(-gpus // each_node)
    return Run(tokens, price, Failures(hours * 3600 / parts, save_s, restart_s), currency)


@dataclass(frozen=True)
class Spent:
    """What a run takes. None: not asked for, or not known. step_ns: that it was computed from."""

    gpus: int
    step_ns: float
    goodput: float | None
    days: float | None = None
    cost: float | None = None
    energy_mwh: float | None = None

    @classmethod
    def of(cls, run: Run, step_ns: float, plan: Plan, model: Model, gpu: Gpu) -> Spent:
        """step_ns: of a step of the model with the plan."""
        tokens, gpus, failures = plan.global_batch * model.sequence, plan.gpus, run.failures
        goodput = None if failures is None else failures.goodput(failures.daly_s)
        if run.tokens is None or (goodput is not None and goodput < GOODPUT_MIN):
            return cls(gpus, step_ns, goodput)
        days = -(-run.tokens // tokens) * step_ns / 86_400e9 / (goodput or 1.0)
        hours = 24 * days * gpus
        cost = None if run.price is None else hours * run.price
        watts = gpu.facts.power_w
        energy_mwh = None if watts is None else hours * watts / 1e6
        return cls(gpus, step_ns, goodput, days, cost, energy_mwh)

    @property
    def gpu_hours(self) -> float | None:
        return None if self.days is None else 24 * self.days * self.gpus

    def cells(self, expected: Range) -> list[str]:
        """Cells below RUN_HEADS, with the range that each has as the step has one."""
        ends = [one / self.step_ns for one in (expected.low_ns, expected.high_ns)]

        def text(value: float | None, digits: int, unit: str = "") -> str:
            if value is None:
                return "?"
            low, high = (f"{value * end:,.{digits}f}" for end in ends)
            return f"{value:,.{digits}f}{unit} ({low} to {high})"

        return [
            text(self.days, 1),
            text(self.gpu_hours, 0),
            text(self.cost, 0),
            text(self.energy_mwh, 1, " MWh"),
            "?" if self.goodput is None else percent(self.goodput),
        ]

    def as_json(self) -> dict[str, float | None]:
        names = ("days", "gpu_hours", "cost", "energy_mwh", "goodput")
        return {name: getattr(self, name) for name in names}


def add_run(
    said: Report, run: Run, spent: Spent, expected: Range, before: Sequence[str] = ()
) -> None:
    """Adds what a run takes to the text about its step, if that was asked for.

    before: lines that come before all others.
    """
    if run.tokens is not None:
        said.tables.append((RUN_HEADS, [spent.cells(expected)]))
        said.lines[1:1] = run_lines(run)
    said.lines[:0] = before


def run_lines(run: Run) -> list[str]:
    """Lines about failures, and about what days, cost and energy are."""
    made = []
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
            " energy is of GPUs at their power limit, without hosts and cooling; cost is in "
            f"{run.currency}; in brackets: the range that follows from that of the step"
        )
    return made
