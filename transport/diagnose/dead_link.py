"""Finds a link all of whose paths have become unusable, while other paths still carry data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, Place, shared
from transport.diagnose.loss_places import LOSS_ADVICE, LOSS_QUERY
from transport.diagnose.paths import Paths
from transport.diagnose.seen import Seen
from transport.plan.routes import undirected

Array = NDArray[Any]

MIN = 2  # a dead link has at least this many paths
SHARE = 0.9  # share of the paths in use over a dead link that must be dead
COVERED = 0.8  # share of all dead paths that must cross a dead link
WINDOWS = 2.0  # a dead path has been unusable for longer than this many usual time windows
WEIGHT = 1e9  # of the finding: paths that stay unusable are better evidence than lost segments


def dead_link(seen: Seen) -> Finding | None:
    """A link all of whose paths have become unusable, while other paths still carry data."""
    paths = seen.paths
    if paths is None or not paths.names:
        return None
    since = _dead_since(seen.facts)
    ends = [since.get((int(a), int(b), int(c)), -1) for a, b, c in paths.ends]
    since_ns = np.array(ends, np.int64)
    # A path that was given up by mistake is usable again after some milliseconds.
    dead = (since_ns >= 0) & (seen.facts.end_ns - since_ns > WINDOWS * seen.windows.usual_ns)
    if dead.sum() < MIN:
        return None
    candidates = seen.places_of_paths
    count = candidates.summed(dead.astype(np.float64))
    # A path works if it has carried something since the first of the dead paths died.
    first = int(seen.windows.of(since_ns[dead].min(keepdims=True))[0]) + 1
    alive = (since_ns < 0) & (paths.sent[first:].sum(axis=0) > 0)
    used = count + candidates.summed(alive.astype(np.float64))
    good = (count >= MIN) & (count >= SHARE * used)
    links = [
        at
        for at in np.flatnonzero(good).tolist()
        if candidates.every[at].place.kind == "link"
        and _covers(paths, candidates.every[at].place.name, dead)
    ]
    if not links or not alive.any():
        return None
    best = min(links, key=lambda at: (-count[at], candidates.every[at].rank))
    place = candidates.every[best].place
    alike = [at for at in links if count[at] == count[best]]
    names = dict.fromkeys(candidates.every[at].place.name for at in alike)
    names.pop(place.name)
    place = Place("link", place.name, (), "", tuple(names))
    return Finding(
        "network_loss",
        place,
        int(since_ns[dead].min()),
        seen.facts.end_ns,
        shared(0.95, place),
        True,
        f"All {int(count[best])} paths in use that cross {place.name} became unusable and stayed "
        f"so; {int(alive.sum())} other paths carry on.",
        LOSS_QUERY,
        LOSS_ADVICE["link"],
        weight=WEIGHT,
    )


def _covers(paths: Paths, link: str, dead: Array) -> bool:
    """Whether the packets or acknowledgments of nearly all dead paths cross the link."""
    crossed = paths.round_trips
    mine = np.array([undirected(name) == link for name in paths.names])
    across = np.zeros(len(dead), bool)
    across[crossed.path[mine[crossed.link]]] = True
    return bool((dead & across).sum() >= COVERED * dead.sum())


def _dead_since(facts: Facts) -> dict[tuple[int, int, int], int]:
    """Sender, receiver and path -> since when it is unusable, for those that still are."""
    downs = facts.downs
    found: dict[tuple[int, int, int], int] = {}
    columns = (downs[name].tolist() for name in ("source", "target", "path", "what", "time_ns"))
    for source, target, path, what, time_ns in zip(*columns, strict=True):
        if what == "path_up":
            found.pop((source, target, path), None)
        elif what == "path_down":
            found.setdefault((source, target, path), int(time_ns))
    return found
