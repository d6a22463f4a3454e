"""Applies plans (weft plan assign) to a simulated network, and finds the routes that plans need.

A path of a simulated plan has a number that switches hash, in place of a real path's UDP ports.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from transport.plan import planfile
from transport.plan.assign import PairPlan
from transport.plan.routes import Routes, undirected
from transport.sim.errors import BadKeyError, ScenarioError
from transport.sim.network import Array, Network
from transport.sim.work import Work

if TYPE_CHECKING:
    from transport import native

NUMBERS = 256  # path numbers of a pair of hosts, from which a plan chooses
HOPS_MAX = 8  # kHopsMax in native/sim/fabric/fabric_net.h
# Same layout as PathChoice in native/sim/fabric/fabric_plan.h.
CHOICE = np.dtype(
    [
        *(("at_ns", np.int64), ("from", np.uint32), ("to", np.uint32)),
        *(("path", np.uint32), ("takes", np.uint32)),
    ]
)


@dataclass(frozen=True, eq=False)
class Planned:
    """The links that one [[plans]] assigns from at_ns on; arrays: a row for each path of a pair."""

    at_ns: int
    ends: Array  # [row, 3]: sender, receiver, path
    numbers: Array  # the path number that the plan file gives
    links: Array  # [row, HOPS_MAX]: numbers (see link_numbers()) of the links to pass, then -1


def fabric_of(network: Network) -> str:
    """A hash of the names of all links, which identifies the network."""
    names = {undirected(network.port_name(port)) for port in range(len(network.ports))}
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]


def link_numbers(network: Network) -> tuple[dict[str, int], Array]:
    """Name of a link -> its number, and the number of each port; parallel links share a name."""
    known: dict[str, int] = {}
    names = [network.port_name(port) for port in range(len(network.ports))]
    return known, np.array([known.setdefault(name, len(known)) for name in names])


def pairs_of(work: Work) -> Array:
    """[row, 2]: the hosts that send to each other, each pair once."""
    ends = work.transfers[["from", "to"]]
    return np.unique(np.stack([ends["from"], ends["to"]], axis=1), axis=0)


def demand_of(network: Network, work: Work) -> dict[tuple[str, str], int]:
    """The bytes that the hosts send to each other, for assign(): (sender, receiver) -> bytes."""
    sent: dict[tuple[str, str], int] = defaultdict(int)
    names = network.node_names
    ends = (work.transfers[name].tolist() for name in ("from", "to", "bytes"))
    for source, target, size in zip(*ends, strict=True):
        sent[names[source], names[target]] += size
    return {pair: size for pair, size in sent.items() if size}


def routes_of(network: Network, work: Work, plan: native.FabricPlan) -> Routes:
    """The links that each path number takes between communicating hosts, in both directions."""
    pairs = pairs_of(work)
    pairs = np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)
    rows, ports = _every_way(plan, pairs)
    names = network.node_names
    links = tuple(network.port_name(port) for port in range(len(network.ports)))
    of = {
        (names[source], names[target], number): tuple(port for port in crossed if port >= 0)
        for (source, target, number), crossed in zip(rows.tolist(), ports.tolist(), strict=True)
    }
    return Routes(links, of, fabric=fabric_of(network))


def _every_way(plan: native.FabricPlan, pairs: Array) -> tuple[Array, Array]:
    """All path numbers of all pairs, as [row, 3]: sender, receiver, number; and their ports."""
    if plan.ecmp in ("adaptive", "drill"):
        raise ScenarioError(
            f"network.ecmp is {plan.ecmp}: switches choose a port for each packet, so there are no "
            "routes to plan; use hashed or even"
        )
    numbers = np.tile(np.arange(NUMBERS), len(pairs))
    rows = np.column_stack([np.repeat(pairs, NUMBERS, axis=0), numbers]).astype(np.uint32)
    return rows, plan.routes(rows)


def read(
    tables: Sequence[Mapping[str, Any]], network: Network, work: Work, paths: int, folder: Path
) -> list[Planned]:
    """The plans of a scenario; BadKeyError if one does not fit the network or the workloads."""
    found = []
    for number, one in enumerate(tables):
        where = ("plans", number)
        if one["file"] is None:
            raise BadKeyError((*where, "file"), 'missing: name a plan, as file = "plan.json"')
        try:
            plan = planfile.read(folder / one["file"])
        except planfile.PlanError as error:
            raise BadKeyError((*where, "file"), str(error)) from None
        rows = _rows_of(plan, one["job"], (*where, "job"))
        try:
            found.append(_planned(plan.fabric, rows, one["at_ns"], network, work, paths))
        except planfile.PlanError as error:
            raise BadKeyError((*where, "file"), f"{one['file']} {error}") from None
    return found


def _rows_of(plan: planfile.Plan, job: str | None, where: tuple[str | int, ...]) -> list[PairPlan]:
    if job is not None and job not in plan.jobs:
        there = ", ".join(sorted(plan.jobs)) or "none"
        raise BadKeyError(where, f"{job!r}: the plan has no such job; it has {there}")
    chosen = list(plan.jobs) if job is None else [job]
    rows = [pair for name in chosen for pair in plan.jobs[name]]
    ends = [(pair.source, pair.target) for pair in rows]
    twice = [pair for pair in ends if ends.count(pair) > 1] if len(chosen) > 1 else []
    if twice:
        text = f"two jobs of the plan send from {twice[0][0]} to {twice[0][1]}: name one of them"
        raise BadKeyError(where, text)
    return rows


def _planned(
    fabric: str, rows: Sequence[PairPlan], at_ns: int, network: Network, work: Work, paths: int
) -> Planned:
    own = fabric_of(network)
    if fabric != own:
        raise planfile.PlanError(
            f"is a plan for the fabric {fabric}, and this network is {own}: make a plan for it"
        )
    names = network.node_names
    sends = {(names[one], names[other]) for one, other in pairs_of(work).tolist()}
    lacking = sorted(sends - {(pair.source, pair.target) for pair in rows})
    if lacking:
        raise planfile.PlanError(
            f"has no paths from {lacking[0][0]} to {lacking[0][1]}, which a workload needs: plan "
            "for all pairs of hosts that exchange data"
        )
    hosts = {name: number for number, name in enumerate(names[: network.hosts])}
    known, _ = link_numbers(network)
    used = [
        pair for pair in rows if {(pair.source, pair.target), (pair.target, pair.source)} & sends
    ]
    made = [row for pair in used for row in _paths_of(pair, hosts, known, paths)]
    ends = np.array([one[0] for one in made], np.int64).reshape(-1, 3)
    numbers = np.array([one[1] for one in made], np.int64)
    return Planned(at_ns, ends, numbers, np.array([one[2] for one in made]).reshape(-1, HOPS_MAX))


def _paths_of(
    pair: PairPlan, hosts: Mapping[str, int], known: Mapping[str, int], paths: int
) -> Iterator[tuple[tuple[int, int, int], int, list[int]]]:
    between = f"from {pair.source} to {pair.target}"
    if len(pair.paths) != paths:
        raise planfile.PlanError(
            f"has {len(pair.paths)} paths {between}, and hosts.paths is {paths}: make them equal"
        )
    for path, (number, links) in enumerate(zip(pair.paths, pair.links, strict=True)):
        missing = [name for name in links if name not in known]
        if missing:
            raise planfile.PlanError(
                f"names the link {missing[0]} {between}, which the network does not have"
            )
        if len(links) > HOPS_MAX:
            raise planfile.PlanError(
                f"names {len(links)} links {between}, and a path has {HOPS_MAX} at most"
            )
        crossed = [known[name] for name in links]
        ends = hosts[pair.source], hosts[pair.target], path
        yield ends, number, crossed + [-1] * (HOPS_MAX - len(crossed))


def choices(planned: Sequence[Planned], network: Network, plan: native.FabricPlan) -> Array:
    """Records of type CHOICE: for each path, a number that switches hash to the planned links."""
    made = [np.zeros(0, CHOICE)]
    _, link_of = link_numbers(network)
    link_of = np.append(link_of, -1)  # index -1 stands for no port
    for at, one in enumerate(planned):
        pairs, which = np.unique(one.ends[:, :2], axis=0, return_inverse=True)
        ways = link_of[_every_way(plan, pairs)[1]].reshape(len(pairs), NUMBERS, HOPS_MAX)
        rows = np.zeros(len(one.ends), CHOICE)
        rows["at_ns"] = one.at_ns
        for column, name in enumerate(("from", "to", "path")):
            rows[name] = one.ends[:, column]
        rows["takes"] = _takes(one, which.ravel(), ways, network, ("plans", at, "file"))
        made.append(rows)
    return np.concatenate(made)


def _takes(
    one: Planned, which: Array, ways: Array, network: Network, where: tuple[str | int, ...]
) -> Array:
    """The number of each path: the plan's own, or another one that switches hash to its links.

    With another seed, the plan's own number may take other links.
    """
    known = np.minimum(one.numbers, NUMBERS - 1)
    takes = known.copy()
    turn: dict[tuple[int, bytes], int] = defaultdict(int)
    fits = (ways[which, known] == one.links).all(axis=1) & (known == one.numbers)
    for row in np.flatnonzero(~fits).tolist():
        pair = int(which[row])
        equal = np.flatnonzero((ways[pair] == one.links[row]).all(axis=1))
        if not equal.size:
            source, target, path = one.ends[row].tolist()
            ends = f"from {network.node_names[source]} to {network.node_names[target]}"
            text = f"no hash takes the links of path {path} {ends}: list one route, in order"
            raise BadKeyError(where, text)
        key = pair, one.links[row].tobytes()
        takes[row] = equal[turn[key] % len(equal)]
        turn[key] += 1
    return takes
