"""Collectives of an HLO program on a torus: which part of it each group of devices is.

Devices are numbered along the first axis, then along the next one. In a mesh of JAX the last axis
has the nearest numbers, so it lies along the first axes of the torus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from transport.estimate.networks import Link
from transport.estimate.torus import Axis, Torus, estimate

# What a torus has no estimate for takes as long as this operation of the same bytes.
INSTEAD = {"broadcast": "all_gather"}


@dataclass(frozen=True)
class Part:
    """The part of a torus that a group is. is_exact: it has no other devices.

    hops: of a message between two devices; 0: a collective of all of the part.
    """

    torus: Torus
    is_exact: bool = True
    hops: int = 0

    def time_ns(self, link: Link, operation: str, size_bytes: float) -> float:
        """The time of an operation of all such groups at once.

        Messages that all go `hops` devices further share links, so that each takes so many turns.
        """
        found = estimate(self.torus, link, INSTEAD.get(operation, operation), size_bytes)
        return max(self.hops, 1) * found.time_ns


def part_of_group(torus: Torus, group: Sequence[int]) -> Part:
    """The smallest part of the torus that has all devices of a group."""
    axes = []
    for axis, values in zip(torus.axes, _places(torus, group), strict=True):
        count = max(values) - min(values) + 1
        if len(values) == axis.length:
            axes.append(axis)
        elif count > 1:
            axes.append(Axis(axis.name, count, is_closed=False))
    # A twisted torus has no parts that are tori.
    twisted = torus.is_twisted and len(set(group)) == torus.chips
    found = Torus(tuple(axes) or (Axis("x", 1),), is_twisted=twisted)
    return Part(found, found.chips == len(set(group)) and twisted == torus.is_twisted)


def part_of_pair(torus: Torus, source: int, target: int) -> Part:
    """A message between two devices, by the shortest way."""
    hops = 0
    for axis, values in zip(torus.axes, _places(torus, (source, target)), strict=True):
        apart = max(values) - min(values)
        hops += min(apart, axis.length - apart) if axis.ways == 2 else apart
    return Part(Torus((Axis("x", 2),)), hops=hops)


def _places(torus: Torus, group: Sequence[int]) -> list[set[int]]:
    """The places of devices on each axis."""
    lengths = [one.length for one in torus.axes]
    steps = [prod(lengths[:at]) for at in range(len(lengths))]
    return [
        {device // step % length for device in group}
        for step, length in zip(steps, lengths, strict=True)
    ]
