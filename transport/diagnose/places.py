"""Explains excess delays or losses by one place: a NIC, a link, or a pair of ranks.

This is C4D's rule of row, column and cell (arXiv 2406.04594, section 4) with links as further
places. Each place predicts which observations are in excess, and how much in proportion; the place
with the largest share of explained variance (R squared of a regression through the origin) wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import Facts
from transport.diagnose.finding import Place
from transport.plan.routes import undirected

Array = NDArray[Any]

TIE = 0.005  # places whose shares differ by less cannot be told apart
PAIR_BONUS = 0.1  # a pair must explain so much more than a NIC or a link


@dataclass(frozen=True, eq=False)
class Candidate:
    """A place, and how strongly it takes part in each observation, 0 to 1."""

    place: Place
    weight: Array
    # Of places that explain equally much, the one with the lowest rank is taken.
    rank: int


@dataclass(frozen=True)
class Explanation:
    """share: of the variance, 0 to 1. purity: share of the place's observations in excess."""

    place: Place
    share: float
    purity: float
    excess: float


def nics(facts: Facts, source: Array, target: Array) -> list[Candidate]:
    """The NICs of processes as senders, as receivers, and as both, and single pairs."""
    made = []
    for one in np.unique(np.concatenate([source, target])).tolist():
        name, ranks = f"NIC of {facts.name(one)}", (facts.processes[one].rank,)
        out, into = source == one, target == one
        if out.any() and into.any():
            made.append(Candidate(Place("nic", name, ranks), (out | into) * 1.0, 1))
        for side, mine in (("send", out), ("receive", into)):
            if mine.any():
                made.append(Candidate(Place("nic", name, ranks, side), mine * 1.0, 2))
    return made


def pairs(facts: Facts, source: Array, target: Array) -> list[Candidate]:
    made = []
    ends = np.unique(np.stack([source, target], axis=1), axis=0)
    for one, other in ends.tolist():
        ranks = (facts.processes[one].rank, facts.processes[other].rank)
        place = Place("pair", f"{facts.name(one)} to {facts.name(other)}", ranks)
        made.append(Candidate(place, ((source == one) & (target == other)) * 1.0, 5))
    return made


def links(passed: list[tuple[int, ...]], names: tuple[str, ...]) -> list[Candidate]:
    """The links between switches that paths cross. passed: numbers of the links of each path.

    Links of hosts are left out: they are NICs.
    """
    weights: dict[int, Array] = {}
    hops: dict[int, int] = {}
    for at, numbers in enumerate(passed):
        for hop, number in enumerate(numbers[1:-1]):
            weights.setdefault(number, np.zeros(len(passed)))[at] = 1.0
            hops[number] = min(hops.get(number, hop), hop)
    return of_links(weights, hops, names)


def of_links(
    weights: dict[int, Array], hops: dict[int, int], names: tuple[str, ...]
) -> list[Candidate]:
    """Links in both directions, and in one, as candidates.

    Of links that explain the same, packets wait in front of the one that they cross first.
    """
    both: dict[str, list[int]] = {}
    for number in weights:
        both.setdefault(undirected(names[number]), []).append(number)
    made = []
    for name, numbers in both.items():
        place = Place("link", name)
        made += [Candidate(place, weights[number], 3 + hops[number]) for number in numbers]
        if len(numbers) > 1:
            together = np.maximum.reduce([weights[number] for number in numbers])
            made.append(Candidate(place, together, 3 + min(hops[number] for number in numbers)))
    return made


def explain(candidates: list[Candidate], excess: Array, bad: Array) -> Explanation | None:
    """The place that explains the excess best; None if there is no excess.

    excess: of each observation, 0 for what is usual. bad: those that are in excess.
    """
    total = float((excess**2).sum())
    if total <= 0 or not candidates:
        return None
    shares = np.array(
        [
            float((one.weight * excess).sum()) ** 2 / float((one.weight**2).sum()) / total
            for one in candidates
        ]
    )
    shares = np.minimum(shares, 1.0)
    shares -= np.array([PAIR_BONUS if one.place.kind == "pair" else 0.0 for one in candidates])
    best = float(shares.max())
    tied = np.flatnonzero(shares >= best - TIE).tolist()
    at = min(tied, key=lambda each: (candidates[each].rank, -shares[each]))
    chosen = candidates[at]
    others = dict.fromkeys(
        candidates[each].place.name
        for each in tied
        if candidates[each].place.name != chosen.place.name
    )
    mine = chosen.weight > 0
    place = Place(chosen.place.kind, chosen.place.name, chosen.place.ranks, chosen.place.side,
                  tuple(others))  # fmt: skip
    return Explanation(
        place, float(shares[at]), float(bad[mine].mean()), float(excess[mine & bad].mean())
        if (mine & bad).any() else 0.0,
    )  # fmt: skip
