"""The order of a pipeline stage's passes, and how many of them wait for their backward pass."""

from __future__ import annotations

from collections.abc import Iterator

from transport.estimate.plan import Plan


def order(plan: Plan, stage: int) -> Iterator[tuple[bool, int, int]]:
    """The passes of a stage in order: whether each is forward, its chunk, and its microbatch.

    One forward, one backward (1F1B); interleaved as in Narayanan et al. (SC 2021). Chunk c is on
    stage c modulo the number of stages.
    """
    stages, total = plan.pipeline, plan.microbatches * plan.interleave
    if plan.interleave == 1:
        ahead = min(stages - stage - 1, total)
    else:
        ahead = min(2 * (stages - stage - 1) + (plan.interleave - 1) * stages, total)

    def turn(number: int, forward: bool) -> tuple[bool, int, int]:
        round_, inside = divmod(number, stages * plan.interleave)
        part = inside // stages
        if not forward:
            part = plan.interleave - 1 - part
        if plan.interleave == 1:
            return forward, stage, number
        return forward, part * stages + stage, round_ * stages + inside % stages

    for number in range(ahead):
        yield turn(number, True)
    for number in range(ahead, total):
        yield turn(number, True)
        yield turn(number - ahead, False)
    for number in range(total - ahead, total):
        yield turn(number, False)


def in_flight(plan: Plan, stage: int) -> int:
    """The most passes of chunks whose activations a stage keeps at once.

    1F1B: p - i on stage i. Interleaved: on the first stage p v + p - 1 chunks of v to a stage,
    which is p (1 + (p - 1) / (p v)) stages (Korthikanti et al., arXiv 2205.05198, section 4.2.3).
    """
    kept = most = 0
    for forward, _, _ in order(plan, stage):
        kept += 1 if forward else -1
        most = max(most, kept)
    return most
