"""The links between switches that paths cross, and the paths of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.paths import Paths
from transport.plan.routes import undirected

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Way:
    """One direction of a link. hop: how many links the paths cross before it, at least. paths:
    those over it."""

    hop: int
    paths: Array


@dataclass(frozen=True, eq=False)
class Link:
    """A link between switches. either: the paths that cross it, or whose acknowledgments do."""

    name: str
    ways: tuple[Way, ...]
    either: Array


def links_of(paths: Paths) -> list[Link]:
    """The links between switches that at least one path crosses, by name."""
    crossed, both = paths.crossings, paths.round_trips
    shown, number = np.unique([undirected(one) for one in paths.names], return_inverse=True)
    either = _parts(number[both.link], both.path)
    ways: dict[int, list[Way]] = {}
    hops = _parts(crossed.link, crossed.hop, unique=False)
    for link, mine in _parts(crossed.link, crossed.path).items():
        way = Way(int(hops[link].min()), mine)
        ways.setdefault(int(number[link]), []).append(way)
    return [Link(str(shown[one]), tuple(ways[one]), either[one]) for one in sorted(ways)]


def _parts(key: Array, values: Array, *, unique: bool = True) -> dict[int, Array]:
    """The values of the rows with each key, each value once if they are to be unique."""
    if not len(key):
        return {}
    order = np.argsort(key, kind="stable")
    keys, starts = np.unique(key[order], return_index=True)
    parts = np.split(values[order], starts[1:])
    return {
        one: np.unique(part) if unique else part
        for one, part in zip(keys.tolist(), parts, strict=True)
    }
