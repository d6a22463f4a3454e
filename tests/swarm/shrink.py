"""Minimises a failing scenario: tries smaller ones and keeps those that still fail.

The caller's function runs a scenario and returns whether it fails in the same way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.swarm.draw import LIMIT_NS, Tables

RUNS_MAX = 300
# Table -> key whose value may be halved -> its least value.
HALVED = {
    "network": {
        "hosts": 2,
        "hosts_per_leaf": 1,
        "spines": 1,
        "pods": 1,
        "planes": 1,
        "rails": 1,
        "queue_bytes": 256,
        "pause_bytes": 256,
        "resume_bytes": 0,
        "cores": 1,
    },
    "hosts": {"paths": 1, "ahead": 1, "segment_bytes": 1_024, "burst_bytes_max": 4_160},
    "workload": {
        "size_bytes": 0,
        "repeats": 1,
        "senders": 1,
        "receivers": 1,
        "tokens": 1,
        "token_bytes": 1,
        "combine_token_bytes": 1,
        "top_k": 1,
        "channels": 1,
        "slices": 1,
        "window": 1,
        "start_ns": 0,
        "duration_ns": 1,
    },
    "events": {"at_ns": 0, "until_ns": 1, "flap_ns": 2},
}
NEEDED = {
    "network": {"topology", "hosts"},
    "workload": {"pattern"},
    "events": {"link", "at_ns"},
    "hosts": set(),
    "nodes": {"name", "kind"},
    "links": {"from", "to"},
}


@dataclass(frozen=True)
class Shrunk:
    """The smallest failing scenario found, and the number of runs."""

    tables: Tables
    runs: int


def weight(tables: Mapping[str, Any]) -> int:
    """The size of a scenario: its keys and the names in its lists."""
    count = 0
    for value in tables.values():
        if isinstance(value, Mapping):
            count += 1 + weight(value)
        elif isinstance(value, list):
            count += sum(1 + weight(one) if isinstance(one, Mapping) else 1 for one in value)
        else:
            count += 1
    return count


def shrink(tables: Tables, fails: Callable[[Tables], bool], runs_max: int = RUNS_MAX) -> Shrunk:
    """The smallest scenario that still `fails`, found in at most runs_max runs from `tables`."""
    best, runs = copy.deepcopy(tables), 0
    found = True
    while found:
        found = False
        for smaller in candidates(best):
            if runs >= runs_max:
                return Shrunk(best, runs)
            if smaller == best:
                continue
            runs += 1
            if fails(smaller):
                best, found = smaller, True
                break
    return Shrunk(best, runs)


def candidates(tables: Tables) -> Iterator[Tables]:
    """Smaller scenarios, those with the largest reduction first."""
    for step in (
        _without_entries,
        _without_tables,
        _plainer_policies,
        _plainer_shapes,
        _halved,
        _without_keys,
    ):
        yield from step(tables)


def _without_entries(tables: Tables) -> Iterator[Tables]:
    """Scenarios without half of the faults or jobs, then without each single fault or job."""
    for name in ("events", "workload", "links"):
        entries = tables.get(name, [])
        least = 1 if name == "workload" else 0
        size = len(entries)
        while size >= 1:
            for first in range(0, len(entries), size):
                left = entries[:first] + entries[first + size :]
                if len(left) >= least:
                    yield _with(tables, name, left)
            size //= 2


def _without_tables(tables: Tables) -> Iterator[Tables]:
    for name in ("samples", "events", "policies", "hosts"):
        if name in tables:
            yield {key: value for key, value in tables.items() if key != name}


def _plainer_policies(tables: Tables) -> Iterator[Tables]:
    own = tables.get("policies", {})
    for family, text in own.items():
        yield _with(tables, "policies", {k: v for k, v in own.items() if k != family})
        if text != "fixed":
            yield _with(tables, "policies", {**own, family: "fixed"})
        name, colon, _ = text.partition(":")
        if colon:
            yield _with(tables, "policies", {**own, family: name})


def _plainer_shapes(tables: Tables) -> Iterator[Tables]:
    """Scenarios with a simpler network: a dumbbell, two tiers, or fewer hosts."""
    own = tables.get("network", {})
    bare = {
        k: v
        for k, v in own.items()
        if k in ("rate", "delay_ns", "queue_bytes", "trim", "loss", "pause_bytes", "resume_bytes")
    }
    rest = {k: v for k, v in tables.items() if k not in ("nodes", "links")}
    for hosts, leaf, spines in ((2, 2, 1), (2, 1, 1), (2, 1, 2), (4, 2, 2), (8, 4, 2)):
        if own.get("topology", "fat_tree") == "fat_tree" and own.get("hosts", 0) <= hosts:
            break
        made = {"hosts": hosts, "hosts_per_leaf": leaf, "spines": spines}
        yield {**_with_all_hosts(rest), "network": {**bare, **made}}
    if own.get("tiers") == 3:
        yield _with(
            tables, "network", {k: v for k, v in own.items() if k not in ("tiers", "pods", "cores")}
        )
    for number, job in enumerate(tables["workload"]):
        if isinstance(job.get("hosts"), list) and len(job["hosts"]) > 2:
            ranks = job["hosts"]
            for kept in (ranks[: max(len(ranks) // 2, 2)], ranks[:-1], ranks[1:]):
                yield _with_entry(tables, "workload", number, {**job, "hosts": kept})
        if job.get("pattern") != "permutation":
            plain = {k: job[k] for k in ("size_bytes", "start_ns", "hosts", "repeats") if k in job}
            yield _with_entry(tables, "workload", number, {"pattern": "permutation", **plain})


def _with_all_hosts(tables: Tables) -> Tables:
    """Removes the keys of jobs that name hosts or ranks, because the network has changed."""
    jobs = [
        {k: v for k, v in job.items() if k not in ("hosts", "to", "from", "senders", "receivers")}
        for job in tables["workload"]
    ]
    return {**tables, "workload": jobs}


def _halved(tables: Tables) -> Iterator[Tables]:
    for name, keys in HALVED.items():
        own = tables.get(name)
        for number, entry in enumerate(own if isinstance(own, list) else [own or {}]):
            for key, least in keys.items():
                value = entry.get(key)
                if not isinstance(value, int) or value <= least:
                    continue
                for less in dict.fromkeys((least, max(value // 2, least))):
                    smaller = {**entry, key: less}
                    if isinstance(own, list):
                        yield _with_entry(tables, name, number, smaller)
                    else:
                        yield _with(tables, name, smaller)


def _without_keys(tables: Tables) -> Iterator[Tables]:
    """Scenarios without one of their keys, so that the key's default applies."""
    for name, needed in NEEDED.items():
        own = tables.get(name)
        if isinstance(own, list):
            for number, entry in enumerate(own):
                for key in [key for key in entry if key not in needed]:
                    left = {k: v for k, v in entry.items() if k != key}
                    yield _with_entry(tables, name, number, left)
        elif own:
            for key in [key for key in own if key not in needed]:
                yield _with(tables, name, {k: v for k, v in own.items() if k != key})
    if tables.get("limit_ns", LIMIT_NS) > 2_000_000_000:
        yield {**tables, "limit_ns": 2_000_000_000}


def _with(tables: Tables, name: str, value: Any) -> Tables:
    """The tables with one value replaced, or removed if it is empty."""
    if not value:
        return {key: one for key, one in tables.items() if key != name}
    return {**tables, name: value}


def _with_entry(tables: Tables, name: str, number: int, entry: Tables) -> Tables:
    entries = list(tables[name])
    entries[number] = entry
    return {**tables, name: entries}
