"""Finds the process that its peers cannot reach, or that hears nothing from them, in a standstill.

A stopped process and one behind a dead NIC look alike to their peers. But a process that runs
complains as well: its own paths fail, and it hears nothing from peers that it waits for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, Place

Array = NDArray[Any]

ALL_PATHS = 0.8  # a peer cannot be reached if this share of the paths to it failed
ENDS_MIN = 2  # a process has failed rather than its peer if it cannot talk to so many peers
NAMED_MAX = 4
TIMEOUT_QUERY = (
    "SELECT process, peer, what, count(*) FROM events "
    "WHERE what IN ('timeout', 'path_down', 'peer_quiet') GROUP BY ALL"
)
Pair = tuple[int, int]


def complaints(facts: Facts, from_ns: int) -> dict[Pair, int]:
    """(process, peer) -> since when the process cannot reach the peer or hears nothing from it.

    It cannot reach it if nearly all paths to it failed after from_ns and did not recover. It hears
    nothing if it waited for the peer, whose engine also left probes of several paths unanswered.
    """
    downs = facts.downs
    rows = zip(*(downs[name].tolist() for name in ("source", "target", "path", "what", "time_ns")),
               strict=True)  # fmt: skip
    failed: dict[Pair, dict[int, int]] = {}
    quiet: dict[Pair, int] = {}
    for source, target, path, what, when in rows:
        if target < 0:
            continue
        if what == "path_up":
            failed.get((source, target), {}).pop(path, None)
            quiet.pop((source, target), None)
        elif what == "path_down" and when >= from_ns:
            failed.setdefault((source, target), {}).setdefault(path, when)
        elif what == "peer_quiet" and when >= from_ns:
            quiet.setdefault((source, target), when)
    made = {
        pair: min(paths.values()) for pair, paths in failed.items()
        if paths and len(paths) >= ALL_PATHS * _paths(facts, pair)
    }  # fmt: skip
    for pair, when in quiet.items():
        if not _heard(facts, pair, when):
            made[pair] = min(made.get(pair, when), when)
    return dict(sorted(made.items()))


def _paths(facts: Facts, pair: Pair) -> int:
    """How many paths from a process to another one are known."""
    known = (facts.samples["source"] == pair[0]) & (facts.samples["target"] == pair[1])
    return len(np.unique(facts.samples["path"][known]))


def _heard(facts: Facts, pair: Pair, since_ns: int) -> bool:
    """Whether the process heard from the peer after a time: a message, or an acknowledgment."""
    source, target = facts.edges["source"], facts.edges["target"]
    between = ((source == pair[0]) & (target == pair[1])) | (
        (source == pair[1]) & (target == pair[0])
    )
    return bool((facts.edges["end_ns"][between] > since_ns).any())


def cut_off(facts: Facts, from_ns: int, since_ns: int) -> Finding | None:
    """The process that most complaints are about or come from: it is stopped, or its NIC is dead.

    from_ns: when complaints that explain the standstill can have begun. since_ns: its begin.
    """
    found = complaints(facts, from_ns)
    if not found:
        return None
    others: dict[int, set[int]] = {}
    for one, another in found:
        others.setdefault(one, set()).add(another)
        others.setdefault(another, set()).add(one)
    # Complaints of both ends count twice: one that is accused and complains itself runs.
    weight = {one: sum(one in pair for pair in found) for one in others}
    accused = {target for _, target in found}
    best = max(weight[one] for one in accused)
    alike = [one for one in sorted(others) if weight[one] >= best]
    alike.sort(key=lambda one: (-weight[one], one not in accused))
    one, peers = alike[0], sorted(others[alike[0]])
    both = any((target, source) in found for source, target in found if one in (source, target))
    complains = any(source == one for source, _ in found)
    first_ns = min(when for pair, when in found.items() if one in pair)
    if not complains and facts.processes[one].last_ns < first_ns:
        return _stopped(facts, one, peers)
    rest = [each for each in alike[1:] if weight[each] == weight[one]]
    certain = both or len(peers) >= ENDS_MIN
    return _dead_nic(facts, one, peers, rest, since_ns, both=both, certain=certain)


def _names(facts: Facts, processes: list[int]) -> str:
    return ", ".join(facts.name(one) for one in processes[:NAMED_MAX])


def _dead_nic(
    facts: Facts, one: int, peers: list[int], rest: list[int], since_ns: int, *, both: bool,
    certain: bool,
) -> Finding:  # fmt: skip
    name = facts.name(one)
    place = Place(
        "nic", f"NIC of {name}", (facts.processes[one].rank,),
        candidates=tuple(f"NIC of {facts.name(each)}" for each in rest),
    )  # fmt: skip
    said = "and both ends say so" if both else "as one end says"
    ends = ", or that of ".join(facts.name(each) for each in (one, *rest))
    return Finding(
        "communication_hang", place, since_ns, facts.end_ns, 0.95 if certain else 0.5, certain,
        f"All paths between {name} and {_names(facts, peers)} fail, {said}: no packet passes the "
        f"NIC of {ends}, or its link.",
        TIMEOUT_QUERY, "Check the link, the cable and the port of its NIC.",
    )  # fmt: skip


def _stopped(facts: Facts, one: int, peers: list[int]) -> Finding:
    name, process = facts.name(one), facts.processes[one]
    silent_ns = facts.end_ns - process.last_ns
    return Finding(
        "non_communication_hang", Place("rank", name, (process.rank,)), process.last_ns,
        facts.end_ns, 0.9, True,
        f"All paths from {_names(facts, peers)} to {name} fail, and its process has recorded "
        f"nothing for {silent_ns / 1e6:.1f} ms: it does not run.",
        TIMEOUT_QUERY, "See whether it is stopped (ps shows state T), swapping or frozen; "
        "py-spy dump shows where it is.",
    )  # fmt: skip
