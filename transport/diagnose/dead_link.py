"""Finds a link all of whose paths have become unusable, while other paths still carry data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, Place
from transport.diagnose.links import links_of
from transport.diagnose.loss_places import LOSS_ADVICE, LOSS_QUERY
from transport.diagnose.seen import Seen

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
    # A path works if it has carried something since the first of the dead paths died.
    first = int(seen.windows.of(since_ns[dead].min(keepdims=True))[0]) + 1
    alive = (since_ns < 0) & (paths.sent[first:].sum(axis=0) > 0)
    count = {}
    for one in links_of(paths):
        over = np.concatenate([way.paths for way in one.ways])
        died, used = int(dead[over].sum()), int((dead | alive)[over].sum())
        covers = int(dead[one.either].sum()) >= COVERED * dead.sum()
        if died >= max(MIN, SHARE * used) and covers:
            count[one.name] = died
    if not count or not alive.any():
        return None
    most = max(count.values())
    alike = [name for name, died in count.items() if died == most]
    place = Place("link", alike[0], (), "", tuple(alike[1:]))
    return Finding(
        "network_loss",
        place,
        int(since_ns[dead].min()),
        seen.facts.end_ns,
        0.95,
        True,
        f"All {most} paths in use that cross {place.name} became unusable and stayed "
        f"so; {int(alive.sum())} other paths carry on.",
        LOSS_QUERY,
        LOSS_ADVICE["link"],
        weight=WEIGHT,
    )


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
