"""Finds a link or receiving NIC with longer round trips than all others like it.

What is slow from the beginning has no past to be compared with. Links that are crossed at the same
place of equally long paths are alike, and so are NICs, if the job sends no less through the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.finding import Finding, Place
from transport.diagnose.links import links_of
from transport.diagnose.paths import Paths
from transport.diagnose.seen import Seen
from transport.diagnose.slow import SLOW_ADVICE

Array = NDArray[Any]

WINDOWS_MIN = 4  # a shorter trace shows only how a job begins
PATHS_MIN = 2  # a place is compared by at least so many paths with round trips
OTHERS_MIN = {"link": 1, "nic": 6}  # and with so many others
# A place is slow if its round trips take this many times those of the slowest other one, while
# these differ by less. A quarter of its paths may be quicker.
SLOWER, ALIKE = 1.4, 1.2
SLOWER_OF_TWO = 3.0  # if there is a single other one, of which is not known how much they differ
QUICKER = 0.25
TRIED_MAX = 16  # so many of the slowest places are compared with the others
LOADED = 1.3  # a place that carries this many times as much as others has a queue by that

QUERY = (
    "SELECT process, peer, path, median(rtt_ns) AS rtt_ns, count(*) FROM path_samples GROUP BY ALL "
    "ORDER BY process, peer, path"
)


@dataclass(frozen=True, eq=False)
class _Group:
    """Paths through one place. step: groups of one step are alike: for links, how many others the
    paths cross before; -1: NICs. related: paths that a slow place may slow as well."""

    place: Place
    step: int
    paths: Array
    related: Array


@dataclass(frozen=True, eq=False)
class _Slow:
    """A slow place: its round trips, and those of the slowest other one."""

    group: _Group
    rtt_ns: float
    others_ns: float

    @property
    def ratio(self) -> float:
        return self.rtt_ns / self.others_ns


@dataclass(frozen=True, eq=False)
class _Times:
    """What is known of each path. rtt_ns: NaN: not known. carried: segments. length: in links."""

    rtt_ns: Array
    carried: Array
    length: Array

    def of(self, paths: Array, length: int) -> Array:
        """The known round-trip times of those of some paths that cross so many links."""
        found: Array = self.rtt_ns[paths[self.length[paths] == length]]
        return found[~np.isnan(found)]


def long_round_trips(seen: Seen) -> Finding | None:
    """A link or receiving NIC with longer round trips than all others like it."""
    paths = seen.paths
    if paths is None or not len(paths.ends) or seen.windows.count < WINDOWS_MIN:
        return None
    # What begins in the course of the trace lasts in its second half.
    rtt: Array = np.nanmedian(paths.rtt_ns[len(paths.rtt_ns) // 2 :], axis=0)
    carried = (paths.sent - np.minimum(paths.lost, paths.sent)).sum(axis=0)
    times = _Times(rtt, carried, np.array([len(each) for each in paths.links]))
    slow = _slow_places(times, _of_links(paths) + _of_receivers(seen, paths))
    if not slow:
        return None
    slow = [one for one in slow if _stands_alone(times, one, slow)] or slow
    chosen, alike = _first(slow)
    place = replace(chosen.group.place, candidates=alike)
    kind = "congestion" if place.kind == "link" else "communication_slow"
    # A host that is busy answers late as well. Simulated hosts are not. Two NICs are rarely slow at
    # once, but another job on their hosts makes them so.
    receivers = np.unique(paths.ends[chosen.group.paths, 1])
    certain = seen.facts.simulated or (place.kind == "link" and len(receivers) > 1)
    certain = certain and (place.kind == "link" or not alike)
    what = {"link": "over any other link like it", "nic": "to any other NIC"}[place.kind]
    return Finding(
        kind,
        place,
        *seen.windows.span(0, seen.windows.count - 1),
        0.95,
        certain,
        f"Round trips {'over' if place.kind == 'link' else 'to'} {place.name} take "
        f"{chosen.rtt_ns / 1e3:.1f} us, those {what} {chosen.others_ns / 1e3:.1f} us or less "
        f"({chosen.ratio:.1f} times), and it carries no more than these.",
        QUERY,
        SLOW_ADVICE[place.kind],
        weight=chosen.ratio,
        more={"times": round(chosen.ratio, 2)},
    )


def _of_links(paths: Paths) -> list[_Group]:
    return [
        _Group(Place("link", one.name), way.hop, way.paths, one.either)
        for one in (links_of(paths) if paths.names else [])
        for way in one.ways
    ]


def _of_receivers(seen: Seen, paths: Paths) -> list[_Group]:
    made = []
    for one in np.unique(paths.ends[:, 1]).tolist():
        name, ranks = f"NIC of {seen.facts.name(one)}", (seen.facts.processes[one].rank,)
        mine, own = (np.flatnonzero(paths.ends[:, side] == one) for side in (1, 0))
        made.append(_Group(Place("nic", name, ranks), -1, mine, np.concatenate([mine, own])))
    return made


def _slow_places(times: _Times, groups: list[_Group]) -> list[_Slow]:
    """The places that are slow beside all others of their step."""
    found: dict[str, _Slow] = {}
    for step in sorted({one.step for one in groups}):
        alike = [one for one in groups if one.step == step]
        load = float(np.median([times.carried[one.paths].sum() for one in alike]))
        for length in np.unique(times.length).tolist():
            levels = np.array([_level(times.of(one.paths, length)) for one in alike])
            known = np.flatnonzero(~np.isnan(levels))
            for at in known[np.argsort(-levels[known], kind="stable")][:TRIED_MAX].tolist():
                one = alike[at]
                if times.carried[one.paths].sum() > LOADED * load:
                    continue
                slow = _slow_beside(times, length, alike, levels, one)
                if slow is None or _is_usual_elsewhere(times, length, alike, one):
                    continue
                name = one.place.name
                found[name] = max(found.get(name, slow), slow, key=lambda each: each.ratio)
    return list(found.values())


def _is_usual_elsewhere(times: _Times, length: int, alike: list[_Group], one: _Group) -> bool:
    """Whether the round trips of a place are as usual on its paths of another length: then only
    some senders, or other places that they cross, are slow."""
    for other in np.setdiff1d(np.unique(times.length), length).tolist():
        level = _level(times.of(one.paths, other))
        rest = np.array([_level(times.of(each.paths, other)) for each in alike if each is not one])
        if level < ALIKE * float(np.nanmedian(rest)):
            return True
    return False


def _stands_alone(times: _Times, one: _Slow, slow: list[_Slow]) -> bool:
    """Whether a place is still slow without the paths that it shares with another slow place."""
    for other in slow:
        rest = np.setdiff1d(one.group.paths, other.group.related)
        known = rest[~np.isnan(times.rtt_ns[rest])]
        if other is one or len(known) < PATHS_MIN:
            continue
        if float(np.quantile(times.rtt_ns[known], QUICKER)) < SLOWER * one.others_ns:
            return False
    return True


def _level(rtt_ns: Array) -> float:
    return float(np.quantile(rtt_ns, QUICKER)) if len(rtt_ns) >= PATHS_MIN else np.nan


def _slow_beside(
    times: _Times, length: int, alike: list[_Group], levels: Array, one: _Group
) -> _Slow | None:
    """How slow a place is beside all others, without the paths that it slows; None: it is not.

    levels: [group] the _level of each of the places alike, over all of its paths.
    """
    related = np.zeros(len(times.length), bool)
    related[one.related] = True
    others = np.full(len(alike), np.nan)
    for at, (each, level) in enumerate(zip(alike, levels.tolist(), strict=True)):
        if each.place.name == one.place.name:
            continue
        apart = ~related[each.paths]
        others[at] = level if apart.all() else _level(times.of(each.paths[apart], length))
    others = others[~np.isnan(others)]
    if len(others) < OTHERS_MIN[one.place.kind]:
        return None
    slow = _Slow(one, _level(times.of(one.paths, length)), float(others.max()))
    least = SLOWER if len(others) > 1 else SLOWER_OF_TWO
    if slow.others_ns > ALIKE * float(np.median(others)) or not slow.ratio >= least:
        return None
    return slow


def _first(slow: list[_Slow]) -> tuple[_Slow, tuple[str, ...]]:
    """The slow place that is named, and the names of those that cannot be told from it.

    Packets wait in front of a slow link, so of links that the same paths cross it is the first.
    """
    nics = [one for one in slow if one.group.place.kind == "nic"]

    def of_a_nic(link: _Slow) -> bool:
        """Whether all its paths go to one slow NIC, which other paths reach as well."""
        return any(
            len(link.group.paths) < len(one.group.paths)
            and np.isin(link.group.paths, one.group.paths).all()
            for one in nics
        )

    links = [one for one in slow if one.group.place.kind == "link" and not of_a_nic(one)]
    links.sort(key=lambda one: (one.group.step, -one.ratio))
    nics.sort(key=lambda one: -one.ratio)
    if not links:
        chosen, rest = nics[0], nics[1:]
    else:
        # A NIC all of whose paths cross the link, and no others, may be slow instead.
        chosen = links[0]
        same = (one for one in nics if np.array_equal(one.group.paths, chosen.group.paths))
        rest = [*links[1:], *same]
    return chosen, tuple(one.group.place.name for one in rest)
