"""Finds the process that its peers cannot reach, or that hears nothing from them, in a standstill.

A stopped process and one behind a dead NIC look alike to their peers. But a process that runs
complains as well: its own paths fail, and it hears nothing from peers that it waits for.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose import alive
from transport.diagnose.distinct import distinct
from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, Place
from transport.diagnose.stopped import Stalls
from transport.ground.units import time_text

Array = NDArray[Any]

ALL_PATHS = 0.8  # a peer cannot be reached if this share of the paths to it failed
NAMED_MAX = 4
COMPLAINS_NS = 8_000_000_000  # a process that hears nothing complains after 6.3 s, by default
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
    rows = zip(
        *(downs[name].tolist() for name in ("source", "target", "path", "what", "time_ns")),
        strict=True,
    )
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
    if not any(failed.values()) and not quiet:
        return {}
    known, heard_ns, stalls = known_paths(facts), _heard_ns(facts), Stalls(facts)
    # The number of paths that is assumed for pairs whose paths were never sampled.
    most = max(known.values(), default=0)
    made = {
        pair: min(paths.values())
        for pair, paths in failed.items()
        if paths and len(paths) >= ALL_PATHS * known.get(pair, most)
    }
    for (source, target), when in quiet.items():
        heard = max(heard_ns.get((source, target), 0), heard_ns.get((target, source), 0))
        # A peer that was stopped and resumed later was not out of reach.
        if heard <= when and not stalls.covers(target, when):
            made[source, target] = min(made.get((source, target), when), when)
    # A process that ended normally was not out of reach. One whose call has not ended did not.
    inside = set(facts.calls["process"][facts.calls["end_ns"] < 0].tolist())
    gone_ns = {
        at: one.last_ns for at, one in enumerate(facts.processes) if one.ended and at not in inside
    }
    return {
        pair: made[pair]
        for pair in sorted(made)
        if pair[1] not in gone_ns or made[pair] <= gone_ns[pair[1]]
    }


def known_paths(facts: Facts) -> dict[Pair, int]:
    """(process, peer) -> how many paths between them are known."""
    table = facts.samples
    if "path" not in table or not len(table["path"]):
        return {}
    rows = distinct(table["source"], table["target"], table["path"])[0]
    pairs, of = distinct(rows[0], rows[1])
    ends = zip(*pairs.tolist(), strict=True)
    return dict(zip(ends, np.bincount(of).tolist(), strict=True))


def _heard_ns(facts: Facts) -> dict[Pair, int]:
    """(sender, receiver) -> when the last message between them was acknowledged."""
    edges = facts.edges
    if not len(edges["end_ns"]):
        return {}
    pairs, which = distinct(edges["source"], edges["target"])
    last = np.zeros(pairs.shape[1], np.int64)
    np.maximum.at(last, which, edges["end_ns"].astype(np.int64))
    return dict(zip(zip(*pairs.tolist(), strict=True), last.tolist(), strict=True))


def cut_off(facts: Facts, from_ns: int, since_ns: int) -> Finding | None:
    """The process that appears in most complaints(): it is stopped, or its NIC is dead.

    from_ns: earlier complaints are ignored, as they cannot explain the standstill. since_ns: when
    the standstill began.
    """
    found = complaints(facts, from_ns)
    if not found:
        return None
    others: dict[int, set[int]] = {}
    for one, another in found:
        others.setdefault(one, set()).add(another)
        others.setdefault(another, set()).add(one)
    # The complaints that a process made or that name it. Two processes that complain of each other
    # get two each; a stopped process makes none.
    weight = Counter(one for pair in found for one in pair)
    accused = {target for _, target in found}
    order = sorted(others, key=lambda each: (-weight[each], each not in accused, each))
    one, peers = order[0], sorted(others[order[0]])
    first_ns = min(when for pair, when in found.items() if one in pair)
    complains = any(source == one for source, _ in found)
    runs = facts.states.get(one, "") not in ("", *alive.STOPPED)
    if not complains and not runs and facts.processes[one].last_ns < first_ns:
        return _stopped(facts, one, peers, first_ns)
    rest = [each for each in order[1:] if weight[each] == weight[one]]
    both = complains and one in accused
    if both and rest == peers and len(rest) == 1:
        return _dead_pair(facts, one, rest[0], since_ns)
    hosts = _two_hosts(facts, list(found))
    if both and rest and hosts:
        return _dead_network(facts, hosts, sorted(others), since_ns)
    # The NIC of a process that others still hear works.
    works = _heard_later(facts, found)
    if len(rest) == 1 and one not in works and rest[0] in works:
        return _dead_nic(facts, one, peers, [], since_ns, both=both, ran=True)
    # Several that cannot reach it, although it ran, are as good as both ends of one pair.
    ran = one in accused and len(peers) > 1
    return _dead_nic(facts, one, peers, rest, since_ns, both=both, ran=ran)


def _two_hosts(facts: Facts, pairs: list[Pair]) -> tuple[str, ...]:
    """The hosts of some pairs, if each has its ends on the same two."""
    hosts = {frozenset(facts.processes[end].host for end in pair) for pair in pairs}
    (first, *more) = hosts
    return tuple(sorted(first)) if not more and len(first) == 2 else ()


def _dead_network(facts: Facts, hosts: tuple[str, ...], ends: list[int], since_ns: int) -> Finding:
    ranks = tuple(facts.processes[one].rank for one in ends)
    return Finding(
        "communication_hang",
        Place("network", f"the network between {hosts[0]} and {hosts[1]}", ranks),
        since_ns,
        facts.end_ns,
        0.9,
        True,
        f"All paths between {hosts[0]} and {hosts[1]} fail, and both ends of several pairs say "
        f"so ({_names(facts, ends)}).",
        TIMEOUT_QUERY,
        "See what changed on these hosts and between them: a firewall, a link, a switch. weft "
        "doctor --serve and --peer test it.",
    )


def _heard_later(facts: Facts, found: dict[Pair, int]) -> set[int]:
    """The processes that exchanged messages with others after the first complaint."""
    first_ns = min(found.values())
    pairs = (pair for pair, when in _heard_ns(facts).items() if when > first_ns)
    return {one for pair in pairs for one in pair}


def _names(facts: Facts, processes: list[int]) -> str:
    more = len(processes) - NAMED_MAX
    named = ", ".join(facts.name(one) for one in processes[:NAMED_MAX])
    return named + (f" and {more} more" if more > 0 else "")


def _dead_pair(facts: Facts, one: int, another: int, since_ns: int) -> Finding:
    """The finding for two processes that cannot reach each other, if no third tells which fails."""
    names = f"{facts.name(one)} and {facts.name(another)}"
    ranks = (facts.processes[one].rank, facts.processes[another].rank)
    return Finding(
        "communication_hang",
        Place("pair", names, ranks),
        since_ns,
        facts.end_ns,
        0.9,
        True,
        f"All paths between {names} fail, and both ends say so: no packet passes the NIC of one "
        "of them, its link, or the network between them.",
        TIMEOUT_QUERY,
        "Check the links, the cables and the ports of both NICs.",
    )


def _dead_nic(
    facts: Facts,
    one: int,
    peers: list[int],
    rest: list[int],
    since_ns: int,
    *,
    both: bool,
    ran: bool = False,
) -> Finding:
    """ran: its process ran when others could not reach it, and no other NIC explains that."""
    name, certain = facts.name(one), (both or ran) and not rest
    place = Place(
        "nic",
        f"NIC of {name}",
        (facts.processes[one].rank,),
        candidates=tuple(f"NIC of {facts.name(each)}" for each in rest[:NAMED_MAX]),
    )
    said = "and both ends say so" if both else "as one end says"
    if ran and not both and len(peers) > 1:
        said = f"as they say, and {name} ran"
    if ran and not both and len(peers) == 1:
        said += f", which reaches others while {name} does not"
    ends = ", or that of ".join(facts.name(each) for each in (one, *rest[:NAMED_MAX]))
    return Finding(
        "communication_hang",
        place,
        since_ns,
        facts.end_ns,
        0.95 if certain else 0.5,
        certain,
        f"All paths between {name} and {_names(facts, peers)} fail, {said}: no packet passes the "
        f"NIC of {ends}, or its link.",
        TIMEOUT_QUERY,
        "Check the link, the cable and the port of its NIC.",
    )


def _stopped(facts: Facts, one: int, peers: list[int], first_ns: int) -> Finding:
    name, process = facts.name(one), facts.processes[one]
    silent_ns = facts.end_ns - process.last_ns
    # A real process that runs, and hears nothing, complains in the end. Before, and if it is a
    # simulated one, it is as silent behind a dead NIC.
    unknown = facts.simulated or facts.end_ns - first_ns < COMPLAINS_NS
    candidates = (f"NIC of {name}",) if unknown else ()
    place = Place("rank", name, (process.rank,), candidates=candidates)
    return Finding(
        "non_communication_hang",
        place,
        process.last_ns,
        facts.end_ns,
        0.9,
        True,
        f"All paths from {_names(facts, peers)} to {name} fail, and its process has recorded "
        f"nothing for {time_text(silent_ns)}: it does not run.",
        TIMEOUT_QUERY,
        "See whether it is stopped (ps shows state T), swapping or frozen; "
        "py-spy dump shows where it is.",
    )
