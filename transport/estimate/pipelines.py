"""The order of a pipeline stage's passes, and how many of them wait for their backward pass.

| schedule    | bubble                                      | parameters | activations  |
|-------------|---------------------------------------------|------------|--------------|
| 1f1b        | (p - 1) (F + B), over v if interleaved      | 1          | p stages     |
| zero-bubble | (p - 1) (F + B - 2W): ZB-H1                 | 1          | p stages     |
| dualpipe    | (p / 2 - 1) (F&B + B - 3W)                  | 2          | p + 1 stages |

p: stages; F, B: the time of a stage's forward and whole backward pass; W: of the part of B that
makes the gradients of parameters; F&B: of both at once, F + B if communication hides behind them.
Sources: Narayanan et al. (SC 2021, section 2.2) for 1F1B and interleaving; Qi et al., "Zero Bubble
Pipeline Parallelism" (arXiv 2401.10241, section 2) for ZB-H1; for all three the table in
https://github.com/deepseek-ai/DualPipe and DeepSeek-AI, "DeepSeek-V3" (2024, section 3.2.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from transport.estimate.plan import Plan

FORWARD, BACKWARD = "forward", "backward"
INPUTS, WEIGHTS = "inputs", "weights"  # the two parts of a backward pass

Turn = tuple[str, int, int]


def order(plan: Plan, stage: int) -> Iterator[Turn]:
    """The passes of a stage in order: the kind of each, its chunk, and its microbatch."""
    if plan.schedule == "dualpipe":
        return _dual_pipe(plan, stage)
    if plan.schedule == "zero-bubble":
        return _zero_bubble(plan, stage)
    return _one_forward_one_backward(plan, stage)


def _one_forward_one_backward(plan: Plan, stage: int) -> Iterator[Turn]:
    """Chunk c is on stage c modulo the number of stages."""
    stages, total = plan.pipeline, plan.microbatches * plan.interleave
    if plan.interleave == 1:
        ahead = min(stages - stage - 1, total)
    else:
        ahead = min(2 * (stages - stage - 1) + (plan.interleave - 1) * stages, total)

    def turn(number: int, kind: str) -> Turn:
        round_, inside = divmod(number, stages * plan.interleave)
        part = inside // stages
        if kind == BACKWARD:
            part = plan.interleave - 1 - part
        if plan.interleave == 1:
            return kind, stage, number
        return kind, part * stages + stage, round_ * stages + inside % stages

    for number in range(ahead):
        yield turn(number, FORWARD)
    for number in range(ahead, total):
        yield turn(number, FORWARD)
        yield turn(number - ahead, BACKWARD)
    for number in range(total - ahead, total):
        yield turn(number, BACKWARD)


def _zero_bubble(plan: Plan, stage: int) -> Iterator[Turn]:
    """ZB-H1: stage i makes the gradients of parameters i microbatches late, and at most p wait."""
    total = plan.microbatches
    ahead = min(plan.pipeline - stage - 1, total)
    for number in range(ahead):
        yield FORWARD, stage, number
    for number in range(total + stage):
        if number + ahead < total:
            yield FORWARD, stage, number + ahead
        if number < total:
            yield INPUTS, stage, number
        if number >= stage:
            yield WEIGHTS, stage, number - stage


def _dual_pipe(plan: Plan, stage: int) -> Iterator[Turn]:
    """Microbatches enter at both ends in turns, and a GPU has the stages of both directions."""
    for number in range(plan.microbatches):
        chunk = stage if number % 2 == 0 else plan.pipeline - 1 - stage
        yield FORWARD, chunk, number
        yield BACKWARD, chunk, number


def chunks_of(plan: Plan, stage: int) -> tuple[int, ...]:
    """The chunks of the model that a stage's GPUs have."""
    if plan.schedule == "dualpipe":
        return stage, plan.pipeline - 1 - stage
    return tuple(range(stage, plan.pipeline * plan.interleave, plan.pipeline))


def in_flight(plan: Plan, stage: int) -> int:
    """The most passes of chunks whose activations a stage keeps at once.

    1F1B: p - i on stage i. Interleaved: on the first stage p v + p - 1 chunks of v to a stage,
    which is p (1 + (p - 1) / (p v)) stages (Korthikanti et al., arXiv 2205.05198, section 4.2.3).
    A pass whose gradients of parameters are late counts in full, though it keeps less.
    """
    if plan.schedule == "dualpipe":
        return min(plan.pipeline + 1, plan.microbatches)
    kept = most = 0
    # When each chunk has had its turn of three rounds, the pipeline is full.
    full = 3 * 3 * plan.pipeline * plan.interleave
    for kind, _, _ in islice(order(plan, stage), full):
        kept += (kind == FORWARD) - (kind in (BACKWARD, WEIGHTS))
        most = max(most, kept)
    return most
