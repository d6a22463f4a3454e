"""Finds a link that all paths which became unusable cross, unlike others of the same ranks.

Paths of one pair of ranks carry the same messages of the same hosts at the same time, so what only
some of them suffer comes from the links that they cross. No earlier time is needed to compare with.
"""

from __future__ import annotations

from math import exp, lgamma
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.chance import CHANCE_MAX
from transport.diagnose.finding import Finding, Place
from transport.diagnose.flapping import QUERY
from transport.diagnose.links import links_of
from transport.diagnose.loss_places import LOSS_ADVICE
from transport.diagnose.seen import Seen

Array = NDArray[Any]

FAILING_MIN = 4  # paths that became unusable
COVERED, COVERED_ALL = (
    0.95,
    0.8,
)  # share of the failures over a link: of pairs with a choice, of all
ALIKE = 0.9  # links cannot be told apart if they carry as many paths, to this part
WEIGHT = 1e8  # of the finding: less than that of a link that stays down


def failing_link(seen: Seen) -> Finding | None:
    """The link that the paths which became unusable cross, while the other paths of the same pairs
    did not become so."""
    paths = seen.paths
    if paths is None or not paths.names:
        return None
    downs = paths.downs.sum(axis=0)
    if (downs > 0).sum() < FAILING_MIN:
        return None
    links = links_of(paths)
    used = paths.sent[paths.downs.sum(axis=1) > 0].sum(axis=0) > 0
    fits = []
    for one in links:
        over = float(downs[one.either].sum())
        if over < COVERED_ALL * downs.sum():
            continue
        here, every, chance = _failures(paths.pair, downs, one.either)
        if here >= COVERED * every > 0 and chance * len(links) <= CHANCE_MAX:
            fits.append((chance, over, int(used[one.either].sum()), one.name))
    if not fits:
        return None
    most = max(over for _, over, _, _ in fits)
    fits = sorted(one for one in fits if one[1] == most)
    # Of links that all failing paths cross, it is the one that fewest others in use cross.
    fewest = min(crossing for _, _, crossing, _ in fits)
    names = [name for _, _, crossing, name in fits if ALIKE * crossing <= fewest]
    place = Place("link", names[0], (), "", tuple(names[1:]))
    times = seen.facts.downs["time_ns"][seen.facts.downs["what"] == "path_down"]
    return Finding(
        "network_loss",
        place,
        int(times.min()),
        int(times.max()),
        0.95,
        True,
        f"Paths became unusable {int(downs.sum())} times, {int(most)} of them over {place.name}; "
        "the paths of the same pairs of ranks that do not cross it stayed usable.",
        QUERY,
        LOSS_ADVICE["link"],
        weight=WEIGHT,
        more={"downs": int(most)},
    )


def _failures(pair: Array, downs: Array, over: Array) -> tuple[float, float, float]:
    """Of the pairs that have paths over a link and others: the failures over it, all failures, and
    the probability that the failing paths cross it by chance (hypergeometric).

    pair: [path]. over: the paths that cross the link.
    """
    _, of = np.unique(pair, return_inverse=True)
    mine = np.zeros(len(pair), bool)
    mine[over] = True
    here, every = np.bincount(of, mine), np.bincount(of)
    chosen = ((here > 0) & (here < every))[of]
    failing = np.bincount(of, (downs > 0) & chosen)
    hit = np.bincount(of, (downs > 0) & chosen & mine)
    # A pair of which another path failed as well counts as no evidence.
    likely = sum(
        _log_ways(here[at], hit[at]) - _log_ways(every[at], hit[at])
        for at in np.flatnonzero((failing > 0) & (hit == failing)).tolist()
    )
    return float(downs[chosen & mine].sum()), float(downs[chosen].sum()), exp(likely)


def _log_ways(of: float, some: float) -> float:
    """The logarithm of the number of ways to choose `some` of `of`."""
    return lgamma(of + 1) - lgamma(some + 1) - lgamma(of - some + 1)
