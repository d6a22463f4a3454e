"""Finds a NIC that failed while other NICs of the same processes carried on.

A trace has the address of the peer's end of each path. If all paths that failed for seconds lead to
one address, and paths to another address stayed usable, then a NIC, its link or its switch failed,
and no process: one that does not run answers at none of its addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, Place
from transport.ground.units import time_text

PATHS_MIN = 3  # paths to one address that failed together
LASTS_NS = 2_000_000_000  # a thread without a core answers again before that
OVERLAP = 0.5  # failures are one if they share this part of the longer one
ENDS_MAX = 2  # of more NICs that failed alike, the network between them is named
NAMED_MAX = 4
QUERY = (
    "SELECT process, peer, path, what, time_ns FROM events WHERE what IN ('path_down', 'path_up') "
    "ORDER BY peer, path, time_ns"
)


@dataclass(frozen=True)
class _Failure:
    """Paths of a process to one address that were down. to_ns: the end of the trace if they still
    are."""

    source: int
    address: str
    from_ns: int
    to_ns: int
    paths: int = 1
    ended: bool = True

    def overlaps(self, other: _Failure) -> bool:
        shared = min(self.to_ns, other.to_ns) - max(self.from_ns, other.from_ns)
        longer = max(self.to_ns - self.from_ns, other.to_ns - other.from_ns)
        return shared >= OVERLAP * longer


def nic_down(facts: Facts) -> Finding | None:
    """The NIC whose paths failed for the longest time while paths to others stayed usable.

    Of real jobs only: a simulation tells the failed link by its routes.
    """
    if facts.simulated or "address" not in facts.downs or "address" not in facts.samples:
        return None
    single = _single(facts)
    every = [one for one in _together(single) if _others_carry_on(facts, single, one)]
    if not every:
        return None
    longest = max(every, key=lambda one: one.to_ns - one.from_ns)
    return _finding(facts, longest, [one for one in every if one.overlaps(longest)])


def _single(facts: Facts) -> list[_Failure]:
    """Each path that was down for LASTS_NS or more. Engines and peers at one address may use the
    same number for a path: it is down while one of these is."""
    downs = facts.downs
    order = np.argsort(downs["time_ns"], kind="stable")
    columns = (downs[name][order].tolist() for name in ("source", "address", "path", "what"))
    depth: dict[tuple[int, str, int], int] = {}
    since: dict[tuple[int, str, int], int] = {}
    found = []
    for source, address, path, what, when in zip(
        *columns, downs["time_ns"][order].tolist(), strict=True
    ):
        if source < 0 or what not in ("path_down", "path_up"):
            continue
        key = (source, address, path)
        depth[key] = max(depth.get(key, 0) + (1 if what == "path_down" else -1), 0)
        if what == "path_down":
            since.setdefault(key, when)
        elif not depth[key] and key in since:
            found.append(_Failure(source, address, since.pop(key), when))
    found += [
        _Failure(source, address, from_ns, facts.end_ns, ended=False)
        for (source, address, _), from_ns in since.items()
    ]
    return [one for one in found if one.to_ns - one.from_ns >= LASTS_NS]


def _together(single: Sequence[_Failure]) -> list[_Failure]:
    """For each process and address the times in which PATHS_MIN or more paths were down."""
    found = []
    for source, address in sorted({(one.source, one.address) for one in single}):
        mine = [one for one in single if (one.source, one.address) == (source, address)]
        while mine:
            longest = max(mine, key=lambda one: one.to_ns - one.from_ns)
            same = [one for one in mine if one.overlaps(longest)]
            mine = [one for one in mine if one not in same]
            if len(same) >= PATHS_MIN:
                from_ns, to_ns = (
                    int(np.median([getattr(one, at) for one in same]))
                    for at in ("from_ns", "to_ns")
                )
                ended = any(one.ended for one in same)
                found.append(_Failure(source, address, from_ns, to_ns, len(same), ended))
    return found


def _others_carry_on(facts: Facts, single: Sequence[_Failure], one: _Failure) -> bool:
    """Whether the process used paths to another address meanwhile, none of which failed."""
    samples = facts.samples
    here = (samples["source"] == one.source) & (samples["address"] != one.address)
    here &= (samples["time_ns"] > one.from_ns) & (samples["time_ns"] < one.to_ns)
    used = set(samples["address"][here].tolist())
    failed = {
        other.address
        for other in single
        if other.source == one.source
        and min(other.to_ns, one.to_ns) - max(other.from_ns, one.from_ns) > 0
    }
    return bool(used - failed)


def _finding(facts: Facts, longest: _Failure, mine: Sequence[_Failure]) -> Finding:
    place = _place(facts, mine)
    lasted_ns = longest.to_ns - longest.from_ns
    paths = sum(one.paths for one in mine)
    sources = np.array(sorted({one.source for one in mine}))
    addresses = sorted({one.address for one in mine})
    lasted = time_text(lasted_ns)
    ended = any(one.ended for one in mine)
    until = f"came back after {lasted}" if ended else f"stayed so for {lasted}, to the end"
    advice = (
        f"See what became of the interface with {' or '.join(addresses[:NAMED_MAX])}: ip "
        "-s link, dmesg, ethtool; then its cable and its switch port."
    )
    return Finding(
        "network_loss",
        place,
        longest.from_ns,
        longest.to_ns,
        0.95,
        True,
        f"{paths} paths to {_listed(addresses)} failed together and {until}. Paths of the same "
        f"ranks ({facts.named(sources)}) to other addresses stayed usable meanwhile: a NIC, its "
        "link or its switch failed, and no process.",
        QUERY,
        advice,
        weight=float(lasted_ns),
        more={"addresses": addresses, "paths": paths},
    )


def _place(facts: Facts, mine: Sequence[_Failure]) -> Place:
    """The NIC that all failures have in common: that of the address which most processes failed to
    reach, or that of the one process which failed to reach several."""
    sources: dict[str, set[int]] = {}
    for one in mine:
        sources.setdefault(one.address, set()).add(one.source)
    most = max(len(each) for each in sources.values())
    ends = sorted(address for address, each in sources.items() if len(each) == most)
    owners = {one: _owners(facts, one) for one in ends}
    every = set().union(*sources.values())
    if most == 1 and len(every) == 1 and len(ends) > 1:
        (source,) = every
        return Place("nic", f"one NIC of {facts.name(source)}", (facts.processes[source].rank,))
    if len(ends) > ENDS_MAX:
        ranks = sorted({facts.processes[one].rank for one in every})
        return Place("network", f"the network of {_listed(ends)}", tuple(ranks))
    names = [_named(facts, one, owners[one]) for one in ends]
    ranks = sorted({facts.processes[one].rank for each in owners.values() for one in each})
    if len(ends) == 1 and most == 1 and not owners[ends[0]]:
        # One process alone says so: the NIC that it sends from may be the one that failed.
        (source,) = every
        names.append(f"one NIC of {facts.name(source)}")
    return Place("nic", names[0], tuple(ranks), candidates=tuple(names[1:]))


def _owners(facts: Facts, address: str) -> list[int]:
    """The processes whose NIC has an address; empty: not known. A connection knows only the first
    address of its peer: another one belongs to the processes that the same peers talk to."""
    known = {address: {one for one, each in facts.addresses.items() if address in each}}
    if not known[address]:
        callers: dict[str, set[int]] = {}
        ends = zip(facts.samples["address"].tolist(), facts.samples["source"].tolist(), strict=True)
        for at, source in set(ends):
            callers.setdefault(at, set()).add(source)
        for one, each in facts.addresses.items():
            for first in each:
                if address in callers and callers.get(first) == callers[address]:
                    known.setdefault(first, set()).add(one)
        del known[address]
    return sorted(*known.values()) if len(known) == 1 else []


def _named(facts: Facts, address: str, owners: Sequence[int]) -> str:
    of = f" of {facts.named(np.array(owners))}" if owners else ""
    return f"NIC {address}{of}"


def _listed(addresses: Sequence[str]) -> str:
    more = len(addresses) - NAMED_MAX
    named = ", ".join(addresses[:NAMED_MAX])
    return named + (f" and {more} more" if more > 0 else "")
