"""The longest sequence and the largest microbatch whose training step fits into memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import lcm

from transport.estimate.memory import Memory, memory_of
from transport.estimate.models import Model
from transport.estimate.plan import Plan

SEQUENCE_UNIT = 128  # lengths that are tried are multiples of it
SEQUENCE_MAX = 1 << 26
MICRO_BATCH_MAX = 1 << 20


@dataclass(frozen=True)
class Largest:
    """The largest value that fits, with its memory; 0: none, and the memory of the smallest."""

    value: int
    memory: Memory


def longest_sequence(model: Model, plan: Plan, memory_bytes: float) -> Largest:
    """Tokens of the longest sequence, a multiple of SEQUENCE_UNIT that the plan can divide."""
    unit = lcm(SEQUENCE_UNIT, plan.context * (plan.tensor if plan.sequence else 1))

    def memory(count: int) -> Memory:
        return memory_of(replace(model, sequence=count * unit), plan)

    found = _largest(memory, SEQUENCE_MAX // unit, memory_bytes)
    return Largest(found.value * unit, found.memory)


def largest_micro_batch(model: Model, plan: Plan, memory_bytes: float) -> Largest:
    """Sequences of the largest microbatch; as many microbatches are in flight as in the plan."""
    microbatches = plan.microbatches

    def memory(count: int) -> Memory:
        batch = plan.data * count * microbatches
        return memory_of(model, replace(plan, micro_batch=count, global_batch=batch))

    return _largest(memory, MICRO_BATCH_MAX, memory_bytes)


def _largest(memory: Callable[[int], Memory], most: int, memory_bytes: float) -> Largest:
    """The largest count from 1 to `most` that fits. memory: must not decrease."""
    low, high = 0, 1
    while high <= most and memory(high).total <= memory_bytes:
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        fits = memory(middle).total <= memory_bytes
        low, high = (middle, high) if fits else (low, middle)
    return Largest(low, memory(max(low, 1)))
