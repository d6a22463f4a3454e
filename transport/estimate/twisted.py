"""Counts the load and the diameter of a twisted torus, whose long axes are twice its short ones.

The wrap-around links of the short axes also lead half way along each long axis. That shortens the
ways along the long axes, which limit an all-to-all on a torus (Jouppi et al., "TPU v4", ISCA 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

CHIPS_MAX = 1 << 15


def is_possible(lengths: Sequence[int]) -> bool:
    """Whether the lengths are k, k, 2k or k, 2k, 2k, in any order, with k of 3 or more."""
    short, middle, long = sorted(lengths) if len(lengths) == 3 else (0, 0, 0)
    return short > 2 and long == 2 * short and middle in (short, long)


@cache
def loads(lengths: tuple[int, ...]) -> tuple[float, int]:
    """What each link carries of an all-to-all, in parts of what each chip sends; and the diameter.

    All chips have the same view, so distances from one of them are enough. Split over all shortest
    ways, the messages load all links equally; a test counts it.
    """
    distances = distances_of(lengths)
    return sum(distances) / len(distances) / (2 * len(lengths)), max(distances)


def distances_of(lengths: tuple[int, ...]) -> list[int]:
    """Hops from one chip to each."""
    start = (0,) * len(lengths)
    found, reached = {start: 0}, [start]
    for chip in reached:
        for near in neighbours(chip, lengths).values():
            if near not in found:
                found[near] = found[chip] + 1
                reached.append(near)
    return list(found.values())


def neighbours(
    chip: tuple[int, ...], lengths: tuple[int, ...]
) -> dict[tuple[int, int], tuple[int, ...]]:
    """(axis, 1 or -1) -> the chip that this link leads to."""
    short = min(lengths)
    made = {}
    for axis, length in enumerate(lengths):
        for way in (1, -1):
            to = list(chip)
            to[axis] += way
            if not 0 <= to[axis] < length:
                to[axis] %= length
                for other, many in enumerate(lengths):
                    if length == short < many:
                        to[other] = (to[other] + many // 2) % many
            made[axis, way] = tuple(to)
    return made
