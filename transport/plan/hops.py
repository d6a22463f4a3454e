"""Makes routes from answers to probes: names routers, joins hops to links, finds lossy links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from transport.ground import toml
from transport.ground.units import percent
from transport.plan.probe import End, Heard, ProbeError
from transport.plan.routes import UNKNOWN, Routes

SICK_SHARE = 0.05  # a link is sick if its loss exceeds that of links as far away by this share
SICK_PROBES = 20  # a link counts as sick only if this many probes crossed it
DEVIATIONS = 4.0  # a sick link's excess loss is at least this many standard deviations


@dataclass(frozen=True)
class Loss:
    """A link's loss. share: of probes that it lost, minus the median over links as many hops away.

    deviation: standard deviation of `share`.
    """

    share: float
    probes: int
    deviation: float

    @property
    def sick(self) -> bool:
        enough = max(SICK_SHARE, DEVIATIONS * self.deviation)
        return self.probes >= SICK_PROBES and self.share >= enough


@dataclass(frozen=True, eq=False)
class Found:
    """The result of probing. unknown: number of flows with an unknown hop."""

    routes: Routes
    notes: tuple[str, ...]
    loss: dict[str, Loss]  # by link
    unknown: int


class Aliases:
    """Groups the addresses of each router, and gives it a name."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._of: dict[str, str] = {}
        # First address of a router -> its name; filled by name().
        self._name_of: dict[str, str] = {}

    def root(self, address: str) -> str:
        while (above := self._of.get(address, address)) != address:
            address = above
        return address

    def join(self, addresses: Sequence[str]) -> None:
        """Notes that one router has these addresses. An address in `names` keeps its own name."""
        plain = sorted({self.root(one) for one in addresses}, key=order)
        for one in plain[1:]:
            self._of[one] = plain[0]

    def name(self, address: str) -> str:
        if address in self._names:
            return self._names[address]
        root = self.root(address)
        if root not in self._name_of:
            same = [one for one in [*self._of, root] if self.root(one) == root]
            known = {self._names[one] for one in same if one in self._names}
            self._name_of[root] = known.pop() if len(known) == 1 else root
        return self._name_of[root]


def order(address: str) -> tuple[int, ...]:
    return tuple(int(part) for part in address.split("."))


def read_names(file: Path) -> dict[str, str]:
    """Address -> name of its router, of a TOML file with lines as spine0 = ["10.128.0.2"]."""
    try:
        table = toml.read(file)
    except toml.TomlError as error:
        raise ProbeError(str(error)) from None
    names: dict[str, str] = {}
    for name, addresses in table.items():
        if not isinstance(addresses, list) or not all(isinstance(one, str) for one in addresses):
            raise ProbeError(f'{file}: {name}: expected a list of addresses, as ["10.128.0.2"]')
        if ">" in name or UNKNOWN in name:
            raise ProbeError(f"{file}: {name}: a router's name must not contain > or {UNKNOWN}")
        names |= dict.fromkeys(addresses, name)
    return names


def found(ends: Sequence[End], heard: Heard, names: Mapping[str, str]) -> Found:
    """The routes of the flows. ProbeError if no router answered any probe."""
    length = _lengths(heard)
    routers = {key for seen in heard.of.values() for key in seen.routers}
    if not routers and set(heard.hops.values()) != {1}:
        raise ProbeError(
            f"no router answered: {heard.sent} probes of {len(heard.flows)} flows got no ICMP time "
            "exceeded, so no route is known; let routers send it, or write routes.json yourself"
        )
    aliases = _aliases(ends, heard, length, names)
    ways, unsteady = [], 0
    only = _only(heard, aliases, length)
    for at in range(len(heard.flows)):
        nodes, steady = _way(ends, heard, aliases, at, length, only)
        ways.append(nodes)
        unsteady += not steady
    number: dict[str, int] = {}
    of, ports = {}, {}
    path_of: dict[tuple[str, str], int] = defaultdict(int)
    for flow, nodes in zip(heard.flows, ways, strict=True):
        pair = ends[flow.source].name, ends[flow.target].name
        links = [f"{one}>{other}" for one, other in pairwise(nodes)]
        key = *pair, path_of[pair]
        path_of[pair] += 1
        of[key] = tuple(number.setdefault(link, len(number)) for link in links)
        ports[key] = flow.source_port, flow.target_port
    loss = _losses(heard, ways)
    sick = tuple(sorted(link for link, one in loss.items() if one.sick))
    addresses = {end.name: end.address for end in ends}
    routes = Routes(tuple(number), of, ports, addresses, sick)
    unknown = sum(any(UNKNOWN in node for node in nodes) for nodes in ways)
    silent = sorted(
        {ends[target].name for pair in length.keys() - heard.hops.keys() for target in pair[1:]}
    )
    notes = _notes(heard, length, loss, sick, unsteady)
    if silent:
        notes += (
            f"{', '.join(silent[:4])}{', ...' if silent[4:] else ''} did not answer, so the last "
            "router before them is a guess: stop jobs that use the ports, or raise --hops or "
            "--seconds",
        )
    return Found(routes, notes, loss, unknown)


def _lengths(heard: Heard) -> dict[tuple[int, int], int]:
    """For each pair of ends the TTL that reaches the target.

    If the target never answered, the TTL is guessed: one more than the last router's if larger TTLs
    were tried; else two more, for one unknown hop.
    """
    last: dict[tuple[int, int], int] = defaultdict(int)
    tried: dict[tuple[int, int], int] = defaultdict(int)
    for (at, ttl), seen in heard.of.items():
        ends = heard.flows[at].source, heard.flows[at].target
        last[ends] = max(last[ends], ttl if seen.routers else 0)
        tried[ends] = max(tried[ends], ttl if seen.sent else 0)
    guessed = {
        ends: ttl + (1 if tried[ends] > ttl and not heard.timed_out else 2)
        for ends, ttl in last.items()
        if ttl > 0
    }
    return guessed | heard.hops


def _aliases(
    ends: Sequence[End],
    heard: Heard,
    length: Mapping[tuple[int, int], int],
    names: Mapping[str, str],
) -> Aliases:
    """Joins the addresses of a router: a NIC's cable leads to one router, so all first routers
    from the NIC are the same router, and so are all last ones to it."""
    next_to: dict[int, set[str]] = defaultdict(set)
    for (at, ttl), seen in heard.of.items():
        flow = heard.flows[at]
        if ttl == 1:
            next_to[flow.source].update(seen.routers)
        if ttl == length.get((flow.source, flow.target), 0) - 1:
            next_to[flow.target].update(seen.routers)
    aliases = Aliases(names)
    for addresses in next_to.values():
        if len({names.get(one, "") for one in addresses} - {""}) < 2:
            aliases.join(sorted(addresses))
    return aliases


def _way(
    ends: Sequence[End],
    heard: Heard,
    aliases: Aliases,
    at: int,
    length: Mapping[tuple[int, int], int],
    only: Mapping[tuple[int, int], set[str]],
) -> tuple[list[str], bool]:
    """The nodes that a flow passes, and whether all its probes passed the same ones."""
    flow = heard.flows[at]
    pair = flow.source, flow.target
    last = length.get(pair, 2) - 1
    nodes, steady = [ends[flow.source].name], True
    for ttl in range(1, last + 1):
        here = _names_at(heard, aliases, at, ttl)
        if not here and ttl in (1, last):
            # All flows pass the same first router, and the same last one: take its name from flows
            # that got an answer.
            here = only[(flow.source, -1) if ttl == 1 != last else pair]
        steady = steady and len(here) < 2
        nodes.append(next(iter(here)) if len(here) == 1 else f"{UNKNOWN}{ttl}")
    return [*nodes, ends[flow.target].name], steady


def _only(
    heard: Heard, aliases: Aliases, length: Mapping[tuple[int, int], int]
) -> dict[tuple[int, int], set[str]]:
    """(source, -1) -> names of the first router after the source; (source, target) -> names of the
    last router before the target."""
    names: dict[tuple[int, int], set[str]] = defaultdict(set)
    for at, ttl in heard.of:
        flow = heard.flows[at]
        pair = flow.source, flow.target
        if ttl == 1:
            names[flow.source, -1] |= _names_at(heard, aliases, at, ttl)
        if ttl == length.get(pair, 2) - 1:
            names[pair] |= _names_at(heard, aliases, at, ttl)
    return names


def _names_at(heard: Heard, aliases: Aliases, at: int, ttl: int) -> set[str]:
    seen = heard.of.get((at, ttl))
    return {aliases.name(one) for one in seen.routers} if seen is not None else set()


def _losses(heard: Heard, ways: Sequence[Sequence[str]]) -> dict[str, Loss]:
    """For each link the share of probes lost on it, beyond the median of other links as far away.

    Probes with a larger TTL cross the link, too, so a router that answers few probes does not make
    the link to it look lossy. Losses before the link are subtracted.
    """
    sent: dict[tuple[str, int], int] = defaultdict(int)
    answered: dict[tuple[str, int], int] = defaultdict(int)
    hop_of: dict[str, int] = {}
    for at, nodes in enumerate(ways):
        for hop, link in enumerate(pairwise(nodes[:-1]), 1):
            name = ">".join(link)
            if UNKNOWN in name:
                continue
            hop_of.setdefault(name, hop)
            for ttl in range(max(hop - 1, 1), len(nodes) - 1):
                if (seen := heard.of.get((at, ttl))) is not None:
                    sent[name, ttl] += seen.sent
                    answered[name, ttl] += seen.answered
    share = {key: 1 - answered[key] / count for key, count in sent.items() if count}
    loss = {}
    for name, hop in hop_of.items():
        excess, noise = {}, {}
        for ttl in (ttl for one, ttl in share if one == name):
            others = [
                share[one, ttl]
                for one, away in hop_of.items()
                if one != name and away == hop and (one, ttl) in share
            ]
            if others:
                both = share[name, ttl], float(np.median(others))
                excess[ttl] = both[0] - both[1]
                variance = sum(max(one * (1 - one), 0.01) for one in both)
                noise[ttl] = (variance / sent[name, ttl]) ** 0.5
        here = [ttl for ttl in excess if ttl >= hop]
        if here:
            before = max(excess.get(hop - 1, 0.0), 0.0)
            least = min(excess[ttl] for ttl in here) - before
            probes = min(sent[name, ttl] for ttl in here)
            loss[name] = Loss(max(least, 0.0), probes, max(noise.values()))
    return loss


def _notes(
    heard: Heard,
    length: Mapping[tuple[int, int], int],
    loss: Mapping[str, Loss],
    sick: Sequence[str],
    unsteady: int,
) -> tuple[str, ...]:
    notes = []
    silent: dict[int, int] = defaultdict(int)
    asked: dict[int, int] = defaultdict(int)
    for (at, ttl), seen in heard.of.items():
        flow = heard.flows[at]
        if 1 < ttl < length.get((flow.source, flow.target), 0) - 1:
            asked[ttl] += 1
            silent[ttl] += not seen.routers
    for ttl, count in sorted(silent.items()):
        if count:
            notes.append(
                f"hop {ttl}: no router answered for {count} of {asked[ttl]} flows; "
                f"the hop is written as {UNKNOWN}{ttl} (a cut link, or a router that sends no ICMP)"
            )
    for link in sick:
        one = loss[link]
        notes.append(
            f"{link} is sick: {percent(one.share, 0)} of {one.probes} probes were lost on it"
        )
    if unsteady:
        notes.append(
            f"{unsteady} flows were sent different ways: the fabric spreads packets, not flows, or "
            "a router has several addresses (give --names)"
        )
    if heard.timed_out:
        notes.append(
            "probing stopped after --seconds, before all answers came: some hops may be unknown"
        )
    return tuple(notes)
