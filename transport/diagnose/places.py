"""Explains excess delays or losses by one place: a NIC, a link, or a pair of ranks.

This is C4D's rule of row, column and cell (arXiv 2406.04594, section 4) with links as further
places. Each place predicts which observations are in excess, and how much in proportion; the place
with the largest share of explained variance (R squared of a regression through the origin) wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import Facts
from transport.diagnose.finding import Place
from transport.plan.routes import undirected

Array = NDArray[Any]

TIE = 0.005  # shares of explained variance that differ by less count as equal
# A NIC is slow in both directions if the messages of each take at least this many times as long as
# usual, on average, and half of the pairs of one direction are slow.
BOTH_MIN = float(np.log(1.15))
PAIR_BONUS = 0.1  # to be chosen, a pair must explain this much more variance than NICs or links


@dataclass(frozen=True, eq=False)
class Candidate:
    """A place, the observations that it affects, and how strongly: weight, above 0 to 1."""

    place: Place
    at: Array
    weight: Array
    # Of places that explain equally much, the one with the lowest rank is taken.
    rank: int
    # Of a NIC in both directions: the observations that it sends, which are the first ones of `at`.
    sends: int = 0


@dataclass(frozen=True, eq=False)
class Candidates:
    """Many places, so stored that sums over the observations of each place are fast."""

    every: list[Candidate]

    @cached_property
    def _at(self) -> Array:
        return np.concatenate([one.at for one in self.every])

    @cached_property
    def _weight(self) -> Array:
        return np.concatenate([one.weight for one in self.every])

    @cached_property
    def _starts(self) -> Array:
        return np.cumsum([0, *(len(one.at) for one in self.every[:-1])])

    def weighted(self, values: Array) -> Array:
        """[place]: the sum of weight times value over its observations."""
        return np.add.reduceat(self._weight * values[self._at], self._starts)

    def summed(self, values: Array) -> Array:
        """[place]: the sum of the values of its observations."""
        return np.add.reduceat(values[self._at], self._starts)

    @cached_property
    def squares(self) -> Array:
        """[place]: the sum of the squared weights of its observations."""
        return np.add.reduceat(self._weight**2, self._starts)


@dataclass(frozen=True, eq=False)
class Explanation:
    """share: of the variance that the place explains (0 to 1). at: the place's observations.

    purity: share of these observations that are in excess.
    """

    place: Place
    share: float
    purity: float
    at: Array


def _groups(key: Array) -> dict[int, Array]:
    """For each value of the key, the rows that have it."""
    if not len(key):
        return {}
    order = np.argsort(key, kind="stable")
    values, starts = np.unique(key[order], return_index=True)
    return dict(zip(values.tolist(), np.split(order, starts[1:]), strict=True))


def nics(facts: Facts, source: Array, target: Array) -> list[Candidate]:
    """The NICs of processes as senders, as receivers, and as both."""
    made = []
    sending, receiving = _groups(source), _groups(target)
    nothing = np.zeros(0, np.int64)
    for one in sorted(sending.keys() | receiving.keys()):
        name, ranks = f"NIC of {facts.name(one)}", (facts.processes[one].rank,)
        out, into = sending.get(one, nothing), receiving.get(one, nothing)
        if len(out) and len(into):
            both = np.concatenate([out, into])
            place = Place("nic", name, ranks)
            made.append(Candidate(place, both, np.ones(len(both)), 1, len(out)))
        for side, mine in (("send", out), ("receive", into)):
            if len(mine):
                made.append(Candidate(Place("nic", name, ranks, side), mine, np.ones(len(mine)), 2))
    return made


def of_ranks(facts: Facts, ones: Array) -> Place:
    """One rank, or several, as one place. ones: their processes."""
    ranks = tuple(facts.processes[one].rank for one in ones.tolist())
    return Place("rank" if len(ones) == 1 else "ranks", facts.named(ones), ranks)


def pairs(facts: Facts, source: Array, target: Array) -> list[Candidate]:
    """Each sender with each of its receivers."""
    made = []
    for key, mine in _groups(source.astype(np.int64) << 32 | target.astype(np.int64)).items():
        one, other = key >> 32, key & 0xFFFF_FFFF
        ranks = (facts.processes[one].rank, facts.processes[other].rank)
        place = Place("pair", f"{facts.name(one)} to {facts.name(other)}", ranks)
        made.append(Candidate(place, mine, np.ones(len(mine)), 5))
    return made


@dataclass(frozen=True, eq=False)
class Crossings:
    """The links between switches that paths cross: one row for each path and link.

    path: column of the path. link: number of the link. hop: how many such links the path crosses
    before it. Links between hosts and switches are left out, as NICs stand for them.
    """

    path: Array
    link: Array
    hop: Array

    def only(self, rows: Array) -> Crossings:
        return Crossings(self.path[rows], self.link[rows], self.hop[rows])


def crossings(passed: list[tuple[int, ...]]) -> Crossings:
    """The table of links between switches that the paths cross.

    passed: of each path, the numbers of its links in order, with the links from and to hosts.
    """
    rows = [
        (at, number, hop)
        for at, numbers in enumerate(passed)
        for hop, number in enumerate(numbers[1:-1])
    ]
    table = np.array(rows, np.int64).reshape(-1, 3)
    return Crossings(table[:, 0], table[:, 1], table[:, 2])


def links(
    crossed: Crossings, at: Array, share: Array, names: tuple[str, ...], share_min: float = 0.0
) -> list[Candidate]:
    """Candidates for each link between switches: in both directions, and in each one alone.

    at: [row of crossed] the observation that the path belongs to. share: [row] the part of that
    observation which takes this path. Links with no more than share_min of any observation are
    left out. Of links that explain the same, the one that is crossed first has the lowest rank, as
    packets wait in front of it.
    """
    of_link = _groups(crossed.link)
    first_hop = {number: int(crossed.hop[rows].min()) for number, rows in of_link.items()}
    parts = {}
    for number, rows in of_link.items():
        observations, inverse = np.unique(at[rows], return_inverse=True)
        weight = np.bincount(inverse, weights=share[rows])
        if len(weight) and weight.max() > share_min:
            parts[number] = observations[weight > 0], weight[weight > 0]
    both: dict[str, list[int]] = {}
    for number in parts:
        both.setdefault(undirected(names[number]), []).append(number)
    made = []
    for name, numbers in both.items():
        place = Place("link", name)
        made += [Candidate(place, *parts[number], 3 + first_hop[number]) for number in numbers]
        if len(numbers) > 1:
            rank = 3 + min(first_hop[number] for number in numbers)
            made.append(Candidate(place, *_largest([parts[one] for one in numbers]), rank))
    return made


def _largest(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """The observations of several directions of a link, each with its largest weight."""
    at, inverse = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
    weight = np.zeros(len(at))
    np.maximum.at(weight, inverse, np.concatenate([part[1] for part in parts]))
    return at, weight


def _share_of_both(one: Candidate, excess: Array, bad: Array) -> float:
    """The sum of squares that a NIC explains with an excess of its own for each direction; 0 if one
    direction is not slow."""
    parts = one.at[: one.sends], one.at[one.sends :]
    means = [float(excess[part].mean()) for part in parts]
    slow = max(float(bad[part].mean()) for part in parts)
    if min(means) < BOTH_MIN or slow < 0.5:
        return 0.0
    return sum(len(part) * mean**2 for part, mean in zip(parts, means, strict=True))


def explain(
    candidates: Candidates, excess: Array, bad: Array, side: str = ""
) -> Explanation | None:
    """The place that explains the excess best; None if there is no excess.

    excess: of each observation, 0 for what is usual. bad: those that are in excess. side: send or
    receive, if it is known where messages wait: of NICs that explain the same, those of this side.
    """
    every = candidates.every

    def unlikely(at: int) -> bool:
        place = every[at].place
        if place.kind == "link":  # packets that wait before they are sent wait for no link
            return side == "send"
        return bool(side) and place.side not in ("", side)

    total = float((excess**2).sum())
    if total <= 0 or not every:
        return None
    shares = np.minimum(candidates.weighted(excess) ** 2 / candidates.squares / total, 1.0)
    for at, one in enumerate(every):
        if one.sends:
            shares[at] = max(shares[at], _share_of_both(one, excess, bad) / total)
    shares -= np.array([PAIR_BONUS if one.place.kind == "pair" else 0.0 for one in every])
    best = float(shares.max())
    tied = np.flatnonzero(shares >= best - TIE).tolist()
    at = min(tied, key=lambda each: (every[each].rank, unlikely(each), -shares[each]))
    chosen = every[at].place
    others = dict.fromkeys(
        every[each].place.name
        for each in tied
        if every[each].place.name != chosen.name and not unlikely(each)
    )
    mine = every[at].at
    place = Place(chosen.kind, chosen.name, chosen.ranks, chosen.side, tuple(others))
    return Explanation(place, float(shares[at]), float(bad[mine].mean()), mine)
