"""Shortens steps of many microbatches, whose rounds all take the same time.

A round has a microbatch for each pipeline stage. Once the pipeline is full, each round takes as
long as the one before, and adds as much to all that is summed up over a step. A long step is
therefore scheduled twice, with a few rounds and with one more, and extended linearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from transport.estimate.schedule import run
from transport.estimate.slices import waiting
from transport.estimate.step import Step

PASSES_EXACT = 20_000  # a step of at most this many passes is scheduled as a whole
ROUNDS_MIN = 2  # rounds after which a pipeline is full and its rounds are equal


@dataclass(frozen=True)
class Rounds:
    """steps: the steps to schedule: one or, of a long step, two. more: rounds that are left out."""

    steps: tuple[Step, ...]
    more: float

    def extended(self, values: Sequence[float]) -> float:
        """The value of the whole step. values: those of `steps`."""
        return values[-1] + self.more * (values[-1] - values[0])


def rounds_of(step: Step, exact: int | None = None) -> Rounds:
    """What to schedule of a step: all of it, if it has few passes.

    exact: at most how many; None: PASSES_EXACT.
    """
    plan = step.plan
    each, count = plan.pipeline, plan.microbatches
    exact = PASSES_EXACT if exact is None else exact
    few = ROUNDS_MIN * each + count % each
    if step.passes <= exact or count <= few + each:
        return Rounds((step,), 0.0)
    made = []
    for microbatches in (few, few + each):
        batch = microbatches * plan.data * plan.micro_batch
        short = replace(plan, global_batch=batch)
        made.append(Step(step.model, short, step.computation, step.network))
    return Rounds(tuple(made), (count - few - each) / each)


def length_ns(step: Step, exact: int | None = None) -> float:
    """The time in ns that the tasks of a step take. exact: as in rounds_of()."""
    rounds = rounds_of(step, exact)
    slowdown = step.network.slowdown
    made = [run(one.build(), slowdown=slowdown).length_ns for one in rounds.steps]
    return waiting(step.network.slices) * rounds.extended(made)
