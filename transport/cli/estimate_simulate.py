"""`weft estimate simulate`: runs an estimated training step in the packet simulator."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from transport.cli.estimate_configs import configured
from transport.cli.estimate_options import network_of, no_torus_option, notes_of, usage_errors
from transport.cli.estimate_report import computation_notes
from transport.cli.estimate_train import (
    SIZES,
    Computing,
    model_of,
    plan_of,
    step_options,
)
from transport.cli.output import json_option, print_table, write_json
from transport.estimate.names import size_of
from transport.ground.units import count_text, time_text

if TYPE_CHECKING:
    from transport.estimate.simulated import Simulated
    from transport.estimate.training import Training
    from transport.sim.result import Result

SEGMENTS_MAX = 50e6
INTERRUPTED = 130
RECOMMENDED_MAX = 1.1  # simulated / estimated, up to which the estimate's algorithms are advised
OF_DATA = ("gradients", "parameters", "embeddings")  # kinds of communication of data parallelism


@click.command("simulate", short_help="Simulate a training step, packet by packet.")
@step_options
@click.option(
    "--segment",
    default="32 KiB",
    show_default=True,
    metavar="SIZE",
    help="Size of a simulated packet: larger ones are faster to simulate.",
)
@click.option(
    "--seed", default=1, show_default=True, type=click.IntRange(0), help="Seed of random choices."
)
@click.option(
    "--long",
    "is_long",
    is_flag=True,
    help=f"Simulate even if more than {count_text(SEGMENTS_MAX)} packets are sent.",
)
@no_torus_option
@json_option
def command(
    model: str, segment: str, seed: int, is_long: bool, json_path: str | None, **given: Any
) -> None:
    """Simulate a training step of MODEL, packet by packet, and compare it with the estimate.

    What GPUs send to other nodes is simulated over one rail of a fabric with as many uplinks as
    hosts. Computation, what GPUs of one node send each other, and the latency of calls and steps
    take the estimated time. DualPipe and overlap inside a layer between nodes are refused.

    \b
    Examples:
      weft estimate simulate gpt2-xl --data 64 --inside nvlink4 --between ethernet-100
      weft estimate simulate llama2-7b --tensor 8 --pipeline 4 --data 4 --batch 32 \\
          --inside nvlink4 --between ethernet-400
    """
    from transport.estimate.networks import NONE
    from transport.estimate.simulated import scenario_of
    from transport.estimate.step import Step
    from transport.estimate.training import train

    files_read = configured(model, given, SIZES)
    network = network_of(given)
    try:
        segment_bytes = size_of(segment)
    except ValueError as error:
        raise click.UsageError(f"--segment: {error}") from None
    if segment_bytes < 1:
        raise click.UsageError(f"--segment: {segment}: must be at least 1 byte")
    with usage_errors():
        shape = model_of(files_read.model, given)
        computing = Computing.taken(given)
        plan = plan_of(given)
        # The simulator has neither the slowdown of a measured network nor the host time of a
        # measured GPU, so the estimate leaves them out, too.
        network = replace(network, slowdown=NONE)
        computation = replace(computing.of(shape, plan), host_ns=0.0)
        estimated = train(shape, plan, computing.gpu, network, computation)
        step = Step(shape, plan, computation, network)
        made = scenario_of(step, step.build(), estimated.step_ns, segment_bytes, seed)
    if made.segments > SEGMENTS_MAX and not is_long:
        raise click.UsageError(
            f"the simulation would send {count_text(made.segments)} packets: use fewer --layers, a "
            "larger --segment, or --long"
        )
    result = _run(made)
    show(estimated, result, made, json_path)
    if json_path is None:
        marked = any(row.extrapolated for row in estimated.rows)
        notes = (*computation_notes(computing), *notes_of(network, marked))
        click.echo("\n".join([*files_read.lines, *(f"note: {one}" for one in notes)]))


def _run(made: Simulated) -> Result:
    from transport.errors import InvalidArgumentError
    from transport.sim.errors import ScenarioError
    from transport.sim.run import Simulation
    from transport.sim.scenario import from_tables

    try:
        simulation = Simulation(from_tables(made.tables, file="estimate"))
    except (ScenarioError, InvalidArgumentError) as error:
        raise click.UsageError(str(error)) from None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        total = len(simulation.scenario.work.transfers)
        bar = progress.add_task("simulating", total=total)
        try:
            while simulation.step():
                progress.update(bar, completed=int(simulation.totals["transfers_done"]))
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
    return simulation.result()


def show(estimated: Training, result: Result, made: Simulated, json_path: str | None) -> None:
    (row,) = result.steps
    if not row["finished"]:
        raise click.ClickException(
            "the simulation has not finished after "
            f"{time_text(made.tables['limit_ns'])} of simulated time"
        )
    simulated_ns, ratio = row["step_ns"], row["step_ns"] / estimated.step_ns
    dropped = int(result.ports["dropped"].sum())
    if json_path is not None:
        write_json(
            {
                "estimated_ns": estimated.step_ns,
                "simulated_ns": simulated_ns,
                "ratio": ratio,
                "hosts": made.hosts,
                "between_nodes": list(made.between),
                "inside_nodes": list(made.inside),
                "packets_dropped": dropped,
                "scenario": made.tables,
                "operations": [asdict(one) for one in estimated.rows],
            },
            json_path,
        )
        return
    print_table(
        ["step", "time"],
        [["estimated", time_text(estimated.step_ns)], ["simulated", time_text(simulated_ns)]],
    )
    click.echo(
        f"\nthe simulated step takes {ratio:.3f} times the estimate; {made.hosts} hosts, "
        "one for each node of a pipeline stage, with the NIC of one of its GPUs"
    )
    click.echo(
        f"simulated: {', '.join(made.between)}; in estimated time: computation, latency of steps"
        + "".join(f", {kind} (inside nodes)" for kind in made.inside)
    )
    if dropped:
        click.echo(f"{count_text(dropped)} packets were dropped from full queues and sent again")
    algorithms = {
        one.operation.replace("_", ""): one.algorithm
        for one in estimated.rows
        if one.kind in OF_DATA and one.nodes == one.ranks
    }
    # Where queues make the step longer, the estimate's choice may be the cause.
    if algorithms and ratio < RECOMMENDED_MAX:
        value = ";".join(f"{name}:{algorithm}" for name, algorithm in sorted(algorithms.items()))
        click.echo(f"recommended, if NCCL does not choose it: NCCL_ALGO='{value}'")
