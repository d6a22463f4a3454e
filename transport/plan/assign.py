"""Chooses the paths of each pair of hosts so that the busiest link carries as little as possible.

Greedy: places the heaviest pairs first, each path on the least loaded sequence of links. Then moves
paths off the busiest link one by one, while that lowers its load. The same input gives the same
result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.errors import InvalidArgumentError
from transport.plan.routes import UNKNOWN, Routes, undirected

Array = NDArray[Any]

PATHS_MAX = 256
DRAWS = 32  # number of random assignments of paths, from which ECMP's average load is estimated
_Key = tuple[str, str, int, int]  # sender, receiver, engine of the sender, of the receiver
MOVES_MAX = 20_000
SLOTS_SMALL = 256  # with at most this many paths, the search starts from every random assignment


class AssignError(InvalidArgumentError):
    """No plan can be made of these routes; the message says why."""


@dataclass(frozen=True)
class PairPlan:
    """The paths of one pair of NICs: path numbers of the routes, UDP ports, weights, link names."""

    source: str
    target: str
    source_address: str
    target_address: str
    sent_bytes: int
    paths: tuple[int, ...]
    ports: tuple[tuple[int, int], ...]  # empty if the routes have no ports
    weights: tuple[float, ...]
    links: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class Assigned:
    """Loads in bytes. busiest_bytes: of the busiest link that a plan can choose.

    bound_bytes: a lower bound of busiest_bytes, whatever the plan. ecmp_bytes, ecmp_most_bytes: its
    average and its maximum if paths are chosen at random, as by ECMP.
    """

    pairs: tuple[PairPlan, ...]
    busiest_link: str
    busiest_bytes: float
    bound_bytes: float
    ecmp_bytes: float
    ecmp_most_bytes: float
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Problem:
    """A way is a sequence of links between a pair, on which paths to plan are put.

    links: [way, hop] numbers of links, padded with `spare`, a link that has no load.
    ways: pair -> its ways. room: way -> how many of the probed pairs of UDP ports take it: so many
    paths can be put on it before a pair of ports is used twice.
    """

    # A pair of hosts occurs once for each pair of a sender's engine and a receiver's engine.
    pairs: list[tuple[str, str]]
    sent: Array  # bytes of each pair
    spare: int
    links: Array
    ways: list[Array]
    room: Array
    members: list[list[int]]  # way -> numbers of the paths in the routes that take it
    paths: int


def assign(
    routes: Routes,
    demand: Mapping[tuple[str, str], int],
    *,
    paths: int = 8,
    engines: int = 1,
    avoid: Sequence[str] = (),
    base: Mapping[str, float] | None = None,
) -> Assigned:
    """Chooses `paths` paths for each pair that sends, and for the acknowledgments that return.

    engines: engines of a process, which share the ports of the routes equally; each pair of
    engines gets `paths` paths. avoid: links, in one or both directions, that are used only where
    there is no other way. base: link -> bytes that other jobs send over it.
    """
    if not 1 <= paths <= PATHS_MAX:
        raise AssignError(f"paths: {paths}: must be 1 to {PATHS_MAX}")
    if not demand:
        raise AssignError("nothing is sent between hosts: there is nothing to plan")
    ends = {pair[:2] for pair in routes.of}
    # Acknowledgments return on every path: count one byte for each.
    answers = {(b, a): paths * engines**2 for a, b in demand if (b, a) in ends}
    problem, notes = _problem(
        routes, answers | dict(demand), (paths, engines), {*avoid, *routes.sick}
    )
    before = np.zeros(problem.spare + 1)
    for at, link in enumerate(routes.links):
        before[at] = (base or {}).get(link, 0.0)
    free = _free_links(problem)
    if not free.any():
        raise AssignError(
            "the routes name no link between switches, so paths cannot be spread over links: "
            "check that the routers answer the probes of weft plan probe"
        )
    drawn = _draws(problem)
    peaks = [_peak(problem, one, before, free) for one in drawn]
    bound = _bound(problem, before, free)
    chosen = _search(problem, before, drawn, bound)
    load = np.where(free, _load(problem, chosen, before), -1.0)
    busiest = int(load.argmax())
    return Assigned(
        tuple(_pair_plans(problem, chosen, routes)),
        routes.links[busiest],
        float(load[busiest]),
        bound,
        float(np.mean(peaks)),
        float(np.max(peaks)),
        tuple(notes),
    )


def _search(problem: Problem, before: Array, drawn: list[Array], bound: float) -> Array:
    """[pair, path]: the way of each path to plan; the best assignment that the search found.

    The best one has the least loaded busiest link. The search improves the greedy assignment, and
    random ones if they may lead to a better one.
    """
    free = _free_links(problem)
    peaks = [_peak(problem, one, before, free) for one in drawn]
    chosen = _improve(problem, _greedy(problem, before), before)
    # _improve() ends where moving any single path no longer helps. From a random assignment it may
    # end at a better one.
    small = chosen.size <= SLOTS_SMALL
    for start in drawn if small else [drawn[int(np.argmin(peaks))]]:
        peak = _peak(problem, chosen, before, free)
        if peak <= bound * (1 + 1e-9):
            break
        if small or min(peaks) < peak:
            other = _improve(problem, start, before)
            chosen = other if _peak(problem, other, before, free) < peak else chosen
    return chosen


def _problem(
    routes: Routes, demand: Mapping[tuple[str, str], int], shape: tuple[int, int], avoid: set[str]
) -> tuple[Problem, list[str]]:
    """The problem that assign() solves, and notes. shape: number of paths, and of engines."""
    by_pair: dict[_Key, dict[tuple[int, ...], list[int]]] = defaultdict(dict)
    engines_of = _engines_of(routes, shape[1])
    known = np.array([UNKNOWN not in link for link in routes.links] or [True])
    for (source, target, path), crossed in routes.of.items():
        if (source, target) in demand:
            way = tuple(one for one in crossed if known[one])
            key = source, target, *engines_of(source, target, path)
            by_pair[key].setdefault(way, []).append(path)
    every_engine = [(near, far) for near in range(shape[1]) for far in range(shape[1])]
    pairs = [
        (*pair, *engines)
        for pair in sorted(demand, key=lambda pair: (-demand[pair], pair))
        for engines in every_engine
    ]
    bad = {at for at, link in enumerate(routes.links) if {link, undirected(link)} & avoid}
    rows: list[tuple[int, ...]] = []
    members, ways, forced = [], [], 0
    for pair in pairs:
        every = by_pair.get(pair)
        if not every:
            between = f" between engines {pair[2]} and {pair[3]}" if shape[1] > 1 else ""
            raise AssignError(
                f"the routes have no way from {pair[0]} to {pair[1]}{between}: probe more pairs"
            )
        good = [way for way in every if not bad.intersection(way)]
        forced += not good
        kept = sorted(good or every, key=lambda way: min(every[way]))
        ways.append(np.arange(len(rows), len(rows) + len(kept)))
        rows += kept
        members += [sorted(every[way]) for way in kept]
    spare = len(routes.links)
    links = np.full((len(rows), max(map(len, rows)) or 1), spare)
    for at, row in enumerate(rows):
        links[at, : len(row)] = row
    notes = []
    if forced:
        notes.append(f"{forced} pairs use a sick or avoided link, because every way has one")
    if not known.all():
        notes.append(f"{np.sum(~known)} links with an unknown end ({UNKNOWN}) were left out")
    sent = np.array([demand[pair[:2]] / shape[1] ** 2 for pair in pairs], float)
    room = np.array([len(one) for one in members])
    named = [pair[:2] for pair in pairs]
    return Problem(named, sent, spare, links, ways, room, members, shape[0]), notes


def _engines_of(routes: Routes, engines: int) -> Callable[[str, str, int], tuple[int, int]]:
    """Returns a function: (source, target, path) -> engines of both ends that own its ports."""
    if engines == 1:
        return lambda *_: (0, 0)
    every = {port for pair in routes.ports.values() for port in pair}
    if not every:
        raise AssignError("the routes have no ports to share among engines: plan for one engine")
    count = max(every) - min(every) + 1
    if count % engines != 0:
        raise AssignError(
            f"the routes have {count} ports, which {engines} engines cannot share equally: set "
            "--ports of weft plan probe to engines times paths"
        )
    first, each = min(every), count // engines

    def found(source: str, target: str, path: int) -> tuple[int, int]:
        near, far = routes.ports[source, target, path]
        return (near - first) // each, (far - first) // each

    return found


def _own_links(problem: Problem, pair: int) -> Array:
    """[way, hop]: the links of a pair's ways.

    Links that all ways of the pair cross are replaced by the spare link, which has no load.
    """
    links = problem.links[problem.ways[pair]]
    if len(links) == 1:
        return np.full_like(links, problem.spare)
    common = set(links[0].tolist())
    for row in links[1:].tolist():
        common &= set(row)
    return np.where(np.isin(links, list(common)), problem.spare, links)


def _greedy(problem: Problem, before: Array) -> Array:
    """A first assignment: [pair, path] is the way of each path to plan (see Problem).

    Puts each path on the way of its pair whose busiest link is the least loaded so far.
    """
    load = before.copy()
    chosen = np.zeros((len(problem.pairs), problem.paths), int)
    for pair, ways in enumerate(problem.ways):
        own, room = _own_links(problem, pair), problem.room[ways]
        used = np.zeros(len(ways))
        each = problem.sent[pair] / problem.paths
        for path in range(problem.paths):
            loads = load[own]
            turns = used // room  # reuse a UDP port pair only when all are used
            at = int(np.lexsort((loads.sum(axis=1), used / room, loads.max(axis=1), turns))[0])
            chosen[pair, path] = ways[at]
            used[at] += 1
            load[problem.links[ways[at]]] += each
            load[problem.spare] = 0.0
    return chosen


def _load(problem: Problem, chosen: Array, before: Array) -> Array:
    each = np.repeat(problem.sent / problem.paths, problem.paths * problem.links.shape[1])
    ends = problem.links[chosen.ravel()].ravel()
    load: Array = before + np.bincount(ends, each, problem.spare + 1)
    load[problem.spare] = 0.0
    return load


def _peak(problem: Problem, chosen: Array, before: Array, free: Array) -> float:
    return float(_load(problem, chosen, before)[free].max())


def _free_links(problem: Problem) -> Array:
    """Mask of the links that some pair can avoid; of all used links if no pair has a choice."""
    free = np.zeros(problem.spare + 1, bool)
    for pair in range(len(problem.pairs)):
        free[_own_links(problem, pair).ravel()] = True
    free[problem.spare] = False
    if not free.any():
        free[problem.links.ravel()] = True
        free[problem.spare] = False
    return free


def _draws(problem: Problem) -> list[Array]:
    """Random assignments, each path of the routes with the same probability, as by ECMP."""
    random = np.random.default_rng(1)
    drawn = np.zeros((DRAWS, len(problem.pairs), problem.paths), int)
    for pair, ways in enumerate(problem.ways):
        edges = np.cumsum(problem.room[ways]) / problem.room[ways].sum()
        at = np.searchsorted(edges, random.random((DRAWS, problem.paths)), side="right")
        drawn[:, pair] = ways[np.minimum(at, len(ways) - 1)]
    return list(drawn)


def _improve(problem: Problem, chosen: Array, before: Array) -> Array:
    """Moves paths off the busiest link, to ways on which no link becomes as loaded as that one."""
    chosen = chosen.copy()
    load = _load(problem, chosen, before)
    free = _free_links(problem)
    each = problem.sent / problem.paths
    for _ in range(MOVES_MAX):
        busiest = int(np.where(free, load, -1.0).argmax())
        move = _best_move(problem, chosen, load, busiest, each)
        if move is None:
            break
        pair, path, way = move
        np.add.at(load, problem.links[chosen[pair, path]], -each[pair])
        np.add.at(load, problem.links[way], each[pair])
        load[problem.spare] = 0.0
        chosen[pair, path] = way
    return chosen


def _best_move(
    problem: Problem, chosen: Array, load: Array, busiest: int, each: Array
) -> tuple[int, int, int] | None:
    """A path over the busiest link, as (pair, path, the way to take instead); None: none helps."""
    on = (problem.links[chosen] == busiest).any(axis=2)
    best, peak = None, load[busiest]
    for pair in np.flatnonzero(on.any(axis=1)).tolist():
        path = int(np.flatnonzero(on[pair])[0])
        ways = problem.ways[pair]
        used = np.array([np.sum(chosen[pair] == way) for way in ways.tolist()])
        old = problem.links[chosen[pair, path]]
        links = problem.links[ways]
        added = load[links] + each[pair] * ~np.isin(links, old)
        # A link that both the old and the new way cross keeps its load, so it does not count.
        added[np.isin(links, old)] = -1.0
        peaks = np.where(used < problem.room[ways], added.max(axis=1), np.inf)
        peaks[(links == busiest).any(axis=1)] = np.inf
        at = int(peaks.argmin())
        if peaks[at] < peak * (1 - 1e-9):
            best, peak = (pair, path, int(ways[at])), peaks[at]
    return best


def _bound(problem: Problem, before: Array, free: Array) -> float:
    """A lower bound of the busiest link's load, whatever the plan.

    If all ways of some pairs cross one set of links, these links together carry all bytes of these
    pairs. And each pair puts at least one path, with its share of the bytes, on one of its ways.
    """
    sets: dict[frozenset[int], float] = defaultdict(float)
    most = float(before[free].max(initial=0.0))
    for pair in range(len(problem.pairs)):
        own = _own_links(problem, pair)
        each = problem.sent[pair] / problem.paths
        if (own != problem.spare).any():
            most = max(most, float(each + before[own].max(axis=1).min()))
        for column in own.T.tolist():
            here = frozenset(column)
            if problem.spare not in here:
                sets[here] += problem.sent[pair]
    for here, sent in sets.items():
        most = max(most, (sent + sum(before[one] for one in here)) / len(here))
    if not sets:
        for pair, ways in enumerate(problem.ways):
            np.add.at(before := before.copy(), problem.links[ways[0]], problem.sent[pair])
        most = float(before[:-1].max(initial=0.0))
    return most


def _pair_plans(problem: Problem, chosen: Array, routes: Routes) -> list[PairPlan]:
    made = []
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for at, ends in enumerate(problem.pairs):
        rows[ends].append(at)
    for (source, target), parts in sorted(rows.items()):
        taken: dict[int, int] = defaultdict(int)
        paths = []
        for way in chosen[parts].ravel().tolist():
            members = problem.members[way]
            paths.append(members[taken[way] % len(members)])
            taken[way] += 1
        ports = [routes.ports.get((source, target, path)) for path in paths]
        made.append(
            PairPlan(
                source,
                target,
                routes.addresses.get(source, ""),
                routes.addresses.get(target, ""),
                round(problem.sent[parts].sum()),
                tuple(paths),
                tuple(one for one in ports if one is not None) if all(ports) else (),
                (1 / len(paths),) * len(paths),
                tuple(
                    tuple(routes.links[one] for one in routes.of[source, target, path])
                    for path in paths
                ),
            )
        )
    return made
