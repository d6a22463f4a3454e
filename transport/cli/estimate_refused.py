"""What `weft estimate plan` says if no plan fits: why, and what to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from transport.cli.estimate_words import train_command
from transport.ground.units import bytes_text, counted, percent

if TYPE_CHECKING:
    from transport.estimate.gpus import Gpu
    from transport.estimate.models import Model
    from transport.estimate.nearest import Change
    from transport.estimate.networks import Network
    from transport.estimate.plan import Plan
    from transport.estimate.search import Searched
    from transport.estimate.space import Space

GPUS_NAMED_MAX = 3


@dataclass(frozen=True)
class Asked:
    """A search. name: of the model; options: of the command, parameter -> value."""

    name: str
    options: Mapping[str, Any]
    model: Model
    gpu: Gpu
    network: Network
    space: Space


def nothing(found: Searched, asked: Asked) -> click.ClickException:
    """The error if no plan fits; a usage error if none is possible, whatever the memory."""
    ways = sum(found.refused.values())
    causes = "; ".join(f"{count:,}: {_cause(one, found, asked)}" for one, count in _causes(found))
    text = (
        f"{_first(found, asked)}. Of {counted(ways, 'way')} to divide the GPUs: {causes}. "
        f"{'. '.join([*_without_headroom(found, asked), *_helping(found, asked)])}"
    )
    return click.UsageError(text) if found.smallest is None else click.ClickException(text)


def _first(found: Searched, asked: Asked) -> str:
    space, gpu = asked.space, asked.gpu
    if found.smallest is None:
        return (
            f"--gpus: {space.gpus:,}: no plan divides them, the batch of {space.global_batch:,} "
            f"sequences, the {asked.model.layers} layers and the {asked.model.heads} heads"
        )
    return (
        f"none of {found.looked:,} plans fits into the {bytes_text(gpu.memory_bytes)} of {gpu.name}"
    )


def _causes(found: Searched) -> list[tuple[str, int]]:
    return sorted(found.refused.items(), key=lambda one: -one[1])


def _cause(cause: str, found: Searched, asked: Asked) -> str:
    from transport.estimate.search import TOO_LARGE

    smallest = found.smallest
    if cause != TOO_LARGE or smallest is None:
        return cause
    memory = smallest.memory
    over = asked.space.needed_bytes(smallest.plan, memory) - asked.gpu.memory_bytes
    spare = asked.space.headroom_of(smallest.plan)
    need = f"{bytes_text(memory.total)}{f' and {percent(spare, 0)} of headroom' if spare else ''}"
    return (
        f"{cause}: the smallest needs {need}, {bytes_text(over)} too much "
        f"({_text(smallest.plan)}), {bytes_text(memory.activations + memory.logits)} of it "
        "activations and logits"
    )


def _without_headroom(found: Searched, asked: Asked) -> list[str]:
    """A sentence on plans that only their headroom keeps from fitting."""
    from transport.estimate.search import fitting

    if found.smallest is None or asked.space.headroom == 0:
        return []
    tight = fitting(asked.model, asked.gpu, asked.network, replace(asked.space, headroom=0.0))
    if not tight.fit:
        return []
    return [f"{counted(tight.fit, 'plan')} would fit without headroom: --memory-headroom 0"]


def _text(plan: Plan) -> str:
    from transport.estimate.search import recompute_of

    degrees = [f"data {plan.data}", f"tensor {plan.tensor}", f"pipeline {plan.pipeline}"]
    degrees += [
        f"{name} {getattr(plan, name)}" for name in ("context", "expert") if getattr(plan, name) > 1
    ]
    return ", ".join([*degrees, f"ZeRO {plan.zero}", f"recompute {recompute_of(plan)}"])


def _helping(found: Searched, asked: Asked) -> list[str]:
    """Sentences on the nearest plan that fits, and on other changes."""
    from transport.estimate.nearest import changes, larger_gpus

    made = changes(asked.model, asked.gpu, asked.network, asked.space)
    others = [one.option for one in made[1:]]
    larger = larger_gpus(found, asked.gpu, asked.space)[:GPUS_NAMED_MAX]
    others += [f"a GPU with more memory ({', '.join(larger)})"] if larger else []
    if not made:
        change = "; ".join(others) or "change several options at once, or the model"
        return [f"No change of one number that was tried makes a plan fit. May help: {change}"]
    nearest = _nearest(made[0], asked)
    return [nearest, f"Others that would help: {', '.join(others)}"] if others else [nearest]


def _nearest(change: Change, asked: Asked) -> str:
    fastest = change.fastest(asked.gpu, asked.network)
    if fastest is None:
        return f"With {change.option} a plan fits"
    given = asked.options
    if change.model.sequence != asked.model.sequence:
        given = {**given, "sequence": change.model.sequence}
    return (
        f"With {change.option} a plan fits ({_text(fastest.plan)}; "
        f"{bytes_text(fastest.memory.total)}): {train_command(asked.name, given, fastest.plan)}"
    )
