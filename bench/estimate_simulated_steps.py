"""Compares estimates of training steps with the packet simulator, by kind of parallelism.

H100s in nodes of eight with NVLink and a NIC of 100 Gb/s for each GPU; models have few layers, so
that steps with 1,024 GPUs take seconds to simulate. The simulator has the latencies of the estimate
(transport/estimate/simulated.py), so differences are those of bytes, queues, and order.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace

import click

from bench.lib.common import Config, document, emit, interruptible, json_option
from transport.estimate.collectives import ShapeError
from transport.estimate.computation import of_gpu
from transport.estimate.gpus import gpu
from transport.estimate.models import PRESETS, Model
from transport.estimate.networks import of_links
from transport.estimate.plan import Plan, PlanError
from transport.estimate.simulated import scenario_of
from transport.estimate.step import Step
from transport.estimate.training import train
from transport.ground.units import percent
from transport.sim.run import Simulation
from transport.sim.scenario import from_tables

GPUS = (16, 64, 256, 1024)
GPU, INSIDE, BETWEEN, NODE = "h100", "nvlink4", "ethernet-100", 8
SEGMENT = 32_768
GPT = replace(PRESETS["gpt2-xl"], layers=16)
LLAMA = replace(PRESETS["llama2-7b"], layers=8)
LONG = replace(LLAMA, layers=4, sequence=32_768)
EXPERTS = replace(PRESETS["mixtral-8x7b"], layers=4, experts=64)


def _pipeline(gpus: int, interleave: int = 1, schedule: str = "1f1b") -> Plan:
    data = gpus // 32
    plan = Plan(data=data, tensor=8, pipeline=4, global_batch=8 * data)
    return replace(plan, interleave=interleave, schedule=schedule)


# Kind of parallelism -> the model, and the plan of so many GPUs.
SHAPES: dict[str, tuple[Model, Callable[[int], Plan]]] = {
    "DDP": (GPT, lambda n: Plan(data=n, global_batch=n)),
    "FSDP": (LLAMA, lambda n: Plan(data=n, zero=3, global_batch=n)),
    "HSDP 8": (LLAMA, lambda n: Plan(data=n, zero=3, shard=8, global_batch=n)),
    "TP 8": (LLAMA, lambda n: Plan(tensor=8, data=n // 8, global_batch=n // 8)),
    "TP 16": (LLAMA, lambda n: Plan(tensor=16, data=n // 16, global_batch=n // 16)),
    "PP 4, TP 8": (LLAMA, _pipeline),
    "PP 4 interleaved, TP 8": (LLAMA, lambda n: _pipeline(n, interleave=2)),
    "PP 4 zero-bubble, TP 8": (LLAMA, lambda n: _pipeline(n, schedule="zero-bubble")),
    "PP 8, TP 2": (LLAMA, lambda n: Plan(tensor=2, pipeline=8, data=n // 16, global_batch=n // 2)),
    "EP 16": (EXPERTS, lambda n: Plan(data=n, expert=16, global_batch=n)),
    "EP 64": (EXPERTS, lambda n: Plan(data=n, expert=64, global_batch=n)),
    "EP 64, PP 4": (
        EXPERTS,
        lambda n: Plan(data=n // 4, expert=64, pipeline=4, global_batch=2 * n),
    ),
    "CP 16": (LONG, lambda n: Plan(context=16, data=n // 16, global_batch=n // 16)),
    "CP 4, TP 4, FSDP": (
        LONG,
        lambda n: Plan(tensor=4, context=4, data=n // 16, zero=3, global_batch=n // 16),
    ),
}
KEYS = ("shape", "gpus")
MEASURES = {"simulated_ms": "lower", "estimated_ms": "lower"}
COLUMNS = (*KEYS, "hosts", "alone_ms", "estimated_ms", "simulated_ms", "difference", "dropped")


def compared(shape: str, gpus: int) -> Config | None:
    """The row of a shape; None: so few GPUs cannot have it."""
    model, plan_of = SHAPES[shape]
    plan, network = plan_of(gpus), of_links(BETWEEN, INSIDE, NODE)
    if plan.gpus != gpus:
        return None
    try:
        plan.check(model)
    except PlanError:
        return None
    computation = of_gpu(model, plan, gpu(GPU))
    found = train(model, plan, gpu(GPU), network, computation)
    step = Step(model, plan, computation, network)
    try:
        made = scenario_of(step, step.build(), found.step_ns, SEGMENT)
    except ShapeError as error:
        raise click.ClickException(f"{shape} on {gpus} GPUs: {error}") from None
    simulation = Simulation(from_tables(made.tables, file="estimate_simulated_steps"))
    while simulation.step():
        pass
    result = simulation.result()
    (row,) = result.steps
    if not row["finished"]:
        raise click.ClickException(f"{shape} on {gpus} GPUs: not finished within the time limit")
    return {
        "shape": shape,
        "gpus": gpus,
        "hosts": made.hosts,
        "alone_ms": (found.compute_ns + found.bubble_ns) / 1e6,
        "estimated_ms": found.step_ns / 1e6,
        "simulated_ms": row["step_ns"] / 1e6,
        "difference": row["step_ns"] / found.step_ns - 1,
        "dropped": int(result.ports["dropped"].sum()),
        "messages": len(simulation.scenario.work.transfers),
        "between_nodes": list(made.between),
        "inside_nodes": list(made.inside),
    }


def notes_of(rows: list[Config]) -> list[str]:
    if not rows:
        return []
    sizes = [abs(row["difference"]) for row in rows]
    within = sum(size <= 0.05 for size in sizes)
    return [
        f"simulated beside estimated: {percent(statistics.median(sizes))} in the median without "
        f"sign, {percent(max(sizes))} at most; {within} of {len(rows)} within 5 %",
        "alone_ms: without communication; dropped: packets, from full queues",
    ]


@click.command("estimate_simulated_steps")
@click.option(
    "--gpus-max",
    default=GPUS[-1],
    show_default=True,
    type=click.IntRange(GPUS[0]),
    help=f"Largest number of GPUs, of {', '.join(map(str, GPUS))}.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    type=click.Choice(list(SHAPES)),
    help="Only this kind of parallelism; may be repeated.",
)
@json_option
def command(gpus_max: int, shapes: tuple[str, ...], json_path: str | None) -> None:
    """Compares estimated training steps with simulated ones, of 16 to 1,024 GPUs."""
    rows: list[Config] = []
    places = [
        (shape, gpus) for gpus in GPUS if gpus <= gpus_max for shape in shapes or tuple(SHAPES)
    ]
    with interruptible() as cut:
        for shape, gpus in places:
            row = compared(shape, gpus)
            if row is not None:
                rows.append(row)
    if not rows and not cut.short:
        raise click.UsageError(f"--shape: needs more than {gpus_max} GPUs: raise --gpus-max")
    network = f"{INSIDE} and {BETWEEN}, {NODE} GPUs a node"
    more = {"gpu": GPU, "network": network, "segment": SEGMENT}
    found = document(
        "estimate_simulated_steps", rows, keys=list(KEYS), measures=dict(MEASURES), **more
    )
    emit(found, json_path, COLUMNS, notes_of(rows), cut)
