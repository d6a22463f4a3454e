"""Observations of single paths: what was sent and lost on each, and its round-trip time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import Facts
from transport.diagnose.places import Crossings, crossings
from transport.diagnose.windows import Windows
from transport.plan.routes import Routes

Array = NDArray[Any]

PATHS_MAX = 256
# Queues are full if a path's round-trip time is this many times its own earlier one.
GROWN_RATIO = 3.0


@dataclass(frozen=True, eq=False)
class Paths:
    """One column for each path that carried something.

    ends: [column, 3] sender, receiver and number of the path. sent, lost: [window, column]
    segments. alone: lost segments whose neighbours arrived. timeouts, downs: [window, column] how
    often the path timed out and became unusable. rtt_ns: [window, column] median round-trip time,
    NaN: no sample. links: [column] numbers of the links that the path crosses, in order; empty
    without routes. back: the same for the path of its acknowledgments.
    """

    ends: Array
    sent: Array
    lost: Array
    alone: Array
    timeouts: Array
    downs: Array
    rtt_ns: Array
    links: list[tuple[int, ...]]
    names: tuple[str, ...]
    back: list[tuple[int, ...]]

    @cached_property
    def crossings(self) -> Crossings:
        return crossings(self.links)

    @cached_property
    def round_trips(self) -> Crossings:
        """The links that each path crosses, and after them those that its acknowledgments cross."""
        there, back = self.crossings, crossings(self.back)
        later = back.hop + int(there.hop.max(initial=-1)) + 1
        parts = (there.path, back.path), (there.link, back.link), (there.hop, later)
        return Crossings(*(np.concatenate(each) for each in parts))

    @cached_property
    def pair(self) -> Array:
        """[column]: sender and receiver as one number."""
        return self.ends[:, 0] << 32 | self.ends[:, 1]


def paths_of(facts: Facts, windows: Windows, routes: Routes | None) -> Paths:
    what = facts.downs["what"].astype(str)
    parts = (facts.sent, facts.losses, facts.downs, facts.samples)
    sent, lost, down, sampled = map(_key, parts)
    every = np.unique(np.concatenate([one[one >= 0] for one in (sent, lost, down, sampled)]))
    shape = (max(windows.count, 1), len(every))

    def summed(part: dict[str, Array], key: Array, values: Array) -> Array:
        made = np.zeros(shape)
        good = (key >= 0) & (values > 0)
        at = windows.of(part["time_ns"][good]), np.searchsorted(every, key[good])
        np.add.at(made, at, values[good].astype(np.float64))
        return made

    tables = (
        summed(facts.sent, sent, facts.sent["sent"]),
        summed(facts.losses, lost, facts.losses["segments"]),
        summed(facts.losses, lost, facts.losses["segments"] == 1),
        summed(facts.downs, down, what == "timeout"),
        summed(facts.downs, down, what == "path_down"),
    )
    rtt = _medians(facts.samples, sampled, every, windows, shape)
    ends = np.stack([every >> 40, every >> 8 & 0xFFFF_FFFF, every & 0xFF], axis=1)
    names = routes.links if routes is not None else ()
    back = _links(facts, ends[:, [1, 0, 2]], routes)
    return Paths(ends, *tables, rtt, _links(facts, ends, routes), names, back)


def _key(part: dict[str, Array]) -> Array:
    """Sender, receiver and path as one number; -1 if the receiver is not known."""
    source, target = part["source"].astype(np.int64), part["target"].astype(np.int64)
    path = np.clip(part["path"].astype(np.int64), 0, PATHS_MAX - 1)
    return np.where((source >= 0) & (target >= 0), source << 40 | target << 8 | path, -1)


def _medians(
    samples: dict[str, Array], key: Array, every: Array, windows: Windows, shape: tuple[int, int]
) -> Array:
    made = np.full(shape, np.nan)
    good = (key >= 0) & (samples["rtt_ns"] > 0)
    if not good.any():
        return made
    at = windows.of(samples["time_ns"][good]) * len(every) + np.searchsorted(every, key[good])
    values = samples["rtt_ns"][good].astype(np.float64)
    order = np.lexsort((values, at))
    found, starts, counts = np.unique(at[order], return_index=True, return_counts=True)
    made.ravel()[found] = values[order][starts + counts // 2]
    return made


def _links(facts: Facts, ends: Array, routes: Routes | None) -> list[tuple[int, ...]]:
    if routes is None:
        return [()] * len(ends)
    hosts = hosts_of(facts, routes)
    return [
        routes.of.get((hosts[source], hosts[target], path), ())
        for source, target, path in ends.tolist()
    ]


def hosts_of(facts: Facts, routes: Routes) -> list[str]:
    """The name that the routes have for each process's host: by its address, else its own name."""
    names = {address: host for host, address in routes.addresses.items()}
    found = []
    for number, process in enumerate(facts.processes):
        known = [names[one] for one in facts.addresses.get(number, ()) if one in names]
        found.append(known[0] if known else process.host)
    return found
