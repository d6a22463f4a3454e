"""What `weft estimate train` prints about a step: its tables, facts, inputs and notes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from transport.cli.estimate_memory import fitting, memory_notes, parts_of
from transport.cli.estimate_options import (
    LATENCY_UNKNOWN,
    MARK,
    network_line,
    notes_of,
    torus_notes,
)
from transport.cli.estimate_sites import site_notes
from transport.cli.output import print_table
from transport.estimate.gpus import LATEST
from transport.ground.units import bytes_text, percent, time_text

if TYPE_CHECKING:
    from transport.cli.estimate_train import Computing
    from transport.estimate.gpus import Gpu
    from transport.estimate.networks import Network
    from transport.estimate.plan import Plan
    from transport.estimate.ranges import Range
    from transport.estimate.training import Row, Training

LONGER = 1.01  # exposed / in all, above which a note says why
OPERATION_HEADS = [
    *("for", "operation", "algorithm", "protocol", "ranks", "nodes", "size"),
    *("each", "in all", "exposed", "limited by"),
]


@dataclass(frozen=True)
class Report:
    """The text about a step: tables, each with its heads and rows, and lines."""

    tables: list[tuple[list[str], list[list[str]]]]
    lines: list[str]

    def show(self) -> None:
        for heads, rows in self.tables:
            print_table(heads, rows)
            click.echo()
        click.echo("\n".join(self.lines))


def report(
    found: Training, plan: Plan, network: Network, computing: Computing, expected: Range
) -> Report:
    parts = [
        ("computation", found.compute_ns),
        ("waiting for other stages", found.bubble_ns),
        ("exposed communication", found.exposed_ns),
        ("waiting for the host", found.host_ns),
        ("step", found.step_ns),
    ]
    if not found.host_ns:
        del parts[3]
    tables = [
        (
            ["part", "time", "share"],
            [[name, time_text(ns), percent(ns / found.step_ns)] for name, ns in parts],
        ),
        (OPERATION_HEADS, [_operation(row, plan) for row in found.rows]),
        (
            ["change", "step"],
            [
                [_change(name, network), percent(ratio - 1, signed=True)]
                for name, ratio in found.gains.items()
            ],
        ),
    ]
    lines = [
        _range(expected),
        *_facts(found, plan, computing.gpu),
        *_inputs(plan, network, computing),
    ]
    lines += _notes(found, plan, network, computing)
    return Report(tables, [computing.gpu.says(one) for one in lines])


def _change(name: str, network: Network) -> str:
    """The name of a change in Training.gains, in words of the network."""
    return name if network.torus is None else name.replace("between nodes", "of the links")


def _operation(row: Row, plan: Plan) -> list[str]:
    return [
        row.kind,
        row.operation,
        row.algorithm,
        row.protocol,
        str(row.ranks),
        str(row.nodes),
        bytes_text(row.bytes),
        time_text(row.each_ns) + MARK * row.extrapolated,
        time_text(row.total_ns / plan.pipeline),
        time_text(row.exposed_ns),
        row.limited_by,
    ]


def compared_table(found: dict[str, Training]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows that compare the step's time over each kind of link between nodes."""
    rows = [
        [
            link,
            time_text(one.step_ns),
            time_text(one.exposed_ns),
            percent(one.exposed_ns / one.step_ns),
        ]
        for link, one in found.items()
    ]
    return ["between nodes", "step", "exposed communication", "share"], rows


def _range(expected: Range) -> str:
    """The line about the range of the step's time."""
    why = f"; wider: {', '.join(expected.wider)}" if expected.wider else ""
    low, high = time_text(expected.low_ns), time_text(expected.high_ns)
    return f"range: {low} to {high} (8 of 10 published steps would be inside{why})"


def _facts(found: Training, plan: Plan, of: Gpu) -> list[str]:
    memory = found.memory
    return [
        *fitting(found, plan, of),
        f"{plan.gpus:,} {of.noun}s, {found.tokens_per_s:,.0f} tokens/s",
        *_utilization(found, of),
        f"memory of {of.one}: {bytes_text(memory.total)} ({parts_of(memory)})",
        f"bottleneck: {found.bottleneck}",
    ]


def _utilization(found: Training, of: Gpu) -> list[str]:
    """Lines about model FLOPs and hardware FLOPs of a GPU."""
    model, hardware, causal = (
        f"{one / 1e12:.1f} Tflop/s"
        for one in (found.model_flops_per_gpu, found.flops_per_gpu, found.causal_flops_per_gpu)
    )
    return [
        f"{of.one}: model FLOPs {model}, MFU {percent(found.mfu)}; with recomputation {hardware}, "
        f"HFU {percent(found.hfu)}; of {of.flops / 1e12:.1f} Tflop/s in bf16",
        "MFU, HFU: with attention's whole matrix, as PaLM and Megatron-LM count it; with the half "
        f"that a causal mask leaves, model FLOPs are {causal}, MFU "
        f"{percent(found.causal_flops_per_gpu / of.flops)}",
    ]


def _inputs(plan: Plan, network: Network, computing: Computing) -> list[str]:
    """Lines about the inputs of the estimate, many of which are defaults."""
    if network.torus is not None:
        node = "links to neighbours only"
    elif network.inside is None:
        node = "every GPU alone in its node, with a NIC"
    else:
        node = f"{network.gpus_per_node} GPUs a node"
    kind = f"ZeRO {plan.zero}" if plan.zero else "DDP"
    return [
        f"{network_line(network)}; {node}",
        f"each {computing.gpu.noun}: {computing.gpu.name}; {kind}, sequences of a microbatch: "
        f"{plan.micro_batch}; framework: {plan.framework}",
    ]


def _notes(found: Training, plan: Plan, network: Network, computing: Computing) -> list[str]:
    made = []
    if network.torus is not None:
        made.append(LATENCY_UNKNOWN)
    elif network.inside is None and plan.gpus > 1:
        made.append(
            f"without --inside these are {plan.gpus:,} nodes of one GPU each; for GPUs of one "
            "node, give the link between them, such as --inside nvlink4"
        )
    longer = [
        row.kind for row in found.rows if row.exposed_ns > LONGER * row.total_ns / plan.pipeline
    ]
    if longer:
        made.append(
            f"exposed is by how much the step would be shorter without it: more than in all for "
            f"{', '.join(longer)}, which others wait for, or share a NIC with"
        )
    if found.scheduled < plan.microbatches:
        made.append(
            f"{found.scheduled:,} of {plan.microbatches:,} microbatches were scheduled; all later "
            "rounds take the same time"
        )
    made += [*site_notes(network, plan), *memory_notes(plan)]
    if found.unchecked:
        made.append(unchecked_note(found.unchecked))
    made += computation_notes(computing, network.torus is not None)
    made += notes_of(network, any(row.extrapolated for row in found.rows))
    return [f"note: {one}" for one in made]


def unchecked_note(kinds: Iterable[str]) -> str:
    """A note on what of a plan few or no published runs have. kinds: as of Plan.unchecked()."""
    named = ", ".join(one.replace("_", "-") for one in kinds)
    return f"hardly checked, as few or no published runs have it: {named}"


def computation_notes(computing: Computing, is_torus: bool = False) -> list[str]:
    """Notes on where the time of computation comes from, and on the GPU's own links.

    is_torus: the step is on a torus.
    """
    made = []
    if computing.file is not None:
        made.append(f"computation as measured on one GPU: {computing.file.name}")
    elif computing.gpu.efficiency is None:
        fitted = computing.gpu.generation or f"no {computing.gpu.name}, but {LATEST}"
        made.append(
            f"kernels' speed is fitted to published runs (of {fitted}): measure it, and give "
            "--computation or --efficiency"
        )
    return made + ([] if is_torus else torus_notes(computing.gpu))
