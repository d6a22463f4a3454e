"""Puts the summaries of all hosts together, so that the rules for traces apply to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose import alive, hang
from transport.diagnose.distinct import distinct
from transport.diagnose.facts import Facts, Ready, facts_from
from transport.diagnose.live.columns import Table, chosen, joined, rows_of
from transport.diagnose.live.layout import CLOCKED, TABLES
from transport.diagnose.live.share import HostFile
from transport.diagnose.live.turns import aligned
from transport.ground.units import time_text
from transport.trace.clocks import walk
from transport.trace.gather import Columns
from transport.trace.load import insert
from transport.trace.notes import missing_ranks
from transport.trace.store import Store, new_store
from transport.trace.tables import TABLES as STORED

Array = NDArray[Any]

LATE_NS = 1_000_000_000  # records of the last second may not have come to the files yet
APART_NS = 60_000_000_000  # hosts whose summaries are further apart in time have different clocks
FOREVER_NS = 1 << 62
ENDED = ("Z", "X")  # states of processes that do not run any more
SURE = 2  # readings of a host that must show that a process is stopped or gone
FAR_NS = 1_000_000_000  # clocks that differ by more are reported
# Beginnings of notes that are true of every running job, and are therefore not reported.
USUAL = ("no end: ", "nothing is recorded of weft", "no messages tell how far")


@dataclass(frozen=True, eq=False)
class Job:
    """The job as all hosts see it. dead: as hang.dead() returns it.

    processes: the agents' description of each process, in the order of facts.processes. evidence:
    by process, what its host observed of it. devices: what hosts observed of their devices.
    missing: number of ranks of the job that no host follows, as far as it is known.
    """

    facts: Facts
    dead: list[tuple[int, int, int]]
    notes: list[str]
    processes: list[dict[str, Any]]
    evidence: dict[int, list[dict[str, Any]]]
    devices: list[dict[str, Any]]
    missing: int


def merged(hosts: Sequence[HostFile], job: str | None) -> Job | None:
    """The job of the hosts; None if there is no process. job: its name; None: the latest."""
    chosen_ones, contradictions = _of_job(hosts, job)
    if not chosen_ones:
        return None
    processes = [one for _, one in chosen_ones]
    number_of = {(at, int(one["number"])): new for new, (at, one) in enumerate(chosen_ones)}
    tables = {name: _of_all(hosts, name, number_of) for name in TABLES}
    offsets, notes = _aligned(processes, tables)
    _move(processes, tables, offsets)
    notes += contradictions
    evidence, devices = _evidence(hosts, number_of)
    runs = any(one["state"] not in (None, "", *ENDED) for one in processes)
    until_ns = _seen_until(hosts, processes, offsets) if runs else FOREVER_NS
    large = _large(processes, tables)
    large = None if large is None else _calls_until(*large, until_ns)
    _cut(processes, tables, until_ns)
    with new_store(threads=1) as store:
        _fill(store, processes, tables, large is None)
        calls, edges = (None, None) if large is None else large
        sent = _sent(tables["sent"], tables["connections"])
        end_ns = until_ns if runs else 0
        ready = Ready(
            calls, edges, _in_time(tables["samples"]), sent, end_ns, _states(processes, evidence)
        )
        facts = facts_from(store, ready)
        dead = hang.dead(store, {at: at for at in range(len(processes))})
        notes += [one for one in store.notes() if not one.startswith(USUAL)]
        missing = len(missing_ranks(store.rows)[0])
    return Job(facts, dead, notes, processes, evidence, devices, missing)


def _of_job(
    hosts: Sequence[HostFile], job: str | None
) -> tuple[list[tuple[int, dict[str, Any]]], list[str]]:
    """The processes of a job's last attempt, each with its host's number; notes on conflicts."""
    found = [
        (at, dict(one))
        for at, host in enumerate(hosts)
        for one in host.processes
        if one["last_ns"] is not None and one["first_ns"] is not None
    ]
    if job is None and found:
        job = max(found, key=lambda each: int(each[1]["last_ns"]))[1]["job"]
    mine = [each for each in found if each[1]["job"] == job]
    last = max((int(each[1].get("attempt") or 0) for each in mine), default=0)
    mine = [each for each in mine if int(each[1].get("attempt") or 0) == last]
    # Some launchers restart a rank without counting attempts: of the processes of a rank, the one
    # that began last counts.
    notes = _contradictions(mine)
    begun: dict[int, int] = {}
    for _, one in mine:
        if one["rank"] is not None:
            begun[one["rank"]] = max(begun.get(one["rank"], 0), int(one["first_ns"]))
    mine = [
        each
        for each in mine
        if each[1]["rank"] is None or int(each[1]["first_ns"]) == begun[each[1]["rank"]]
    ]
    # Facts.processes has the same order: by rank, those without a rank last.
    order = sorted(mine, key=lambda each: (each[1]["rank"] is None, each[1]["rank"] or 0))
    return order, notes


def _contradictions(mine: Sequence[tuple[int, dict[str, Any]]]) -> list[str]:
    """Notes on ranks that several hosts run at once, and on different numbers of ranks."""
    notes = []
    hosts_of: dict[int, dict[int, str]] = {}
    for at, one in mine:
        if one["rank"] is not None and one["state"] not in (None, "", *ENDED):
            hosts_of.setdefault(one["rank"], {})[at] = str(one["host"])
    twice = {rank: names for rank, names in hosts_of.items() if len(names) > 1}
    if twice:
        rank, names = min(twice.items())
        notes.append(
            f"rank {rank} runs on {' and '.join(sorted(names.values())[:4])} at once"
            f"{f', and {len(twice) - 1} other ranks on several hosts' if len(twice) > 1 else ''}: "
            "of each, the process that began last is judged"
        )
    sizes = sorted({one["world_size"] for _, one in mine if one["world_size"] is not None})
    if len(sizes) > 1:
        named = ", ".join(map(str, sizes[:4]))
        notes.append(f"WORLD_SIZE differs between processes of the job: {named}")
    return notes


def _of_all(hosts: Sequence[HostFile], name: str, number_of: dict[tuple[int, int], int]) -> Table:
    """The table `name` with the rows of all hosts."""
    return joined(*(_renumbered(host.tables[name], at, number_of) for at, host in enumerate(hosts)))


def _renumbered(table: Table, host: int, number_of: dict[tuple[int, int], int]) -> Table:
    """The rows of the job's processes; the host's numbers of processes become those of the job."""
    own = table["process"]
    known, inverse = np.unique(own, return_inverse=True)
    new = np.array([number_of.get((host, one), -1) for one in known.tolist()] or [-1], np.int64)
    process = new[inverse] if len(own) else own
    return chosen({**table, "process": process}, process >= 0)


def _clock_names(processes: Sequence[dict[str, Any]]) -> list[str]:
    return [str(one.get("clock_name") or one["host"]) for one in processes]


def _aligned(
    processes: Sequence[dict[str, Any]], tables: dict[str, Table]
) -> tuple[dict[str, int], list[str]]:
    """The ns to add to the times of each clock, and notes on clocks that are far off."""
    names = _clock_names(processes)
    clocks = {name: at for at, name in enumerate(dict.fromkeys(names))}
    offsets = dict.fromkeys(clocks, 0)
    if len(clocks) < 2:
        return offsets, []
    of = np.array([clocks[name] for name in names], np.int64)
    found = walk(_bounds(tables["quick"], of))
    notes, hosts = [], list(clocks)
    for clock, one in found.items():
        offsets[hosts[clock]] = one.offset_ns
        if abs(one.offset_ns) >= FAR_NS:
            way = "behind" if one.offset_ns > 0 else "ahead"
            notes.append(
                f"the clock of {hosts[clock]} is {time_text(abs(one.offset_ns))} {way}; "
                "its times were moved"
            )
    return offsets, notes


def _bounds(quick: Table, clock: Array) -> dict[tuple[int, int], tuple[int, int]]:
    """(sender's clock, receiver's clock) -> how far the second is ahead, at least and at most."""
    if not rows_of(quick):
        return {}
    key = quick["pair"].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    key = key ^ quick["message"].astype(np.uint64)
    sends = quick["sends"].astype(bool)
    out, into = np.flatnonzero(sends), np.flatnonzero(~sends)
    into = into[np.argsort(key[into], kind="stable")]
    at = np.searchsorted(key[into], key[out])
    good = at < len(into)
    good[good] = key[into[at[good]]] == key[out[good]]
    out, into = out[good], into[at[good]]
    one, other = clock[quick["process"][out]], clock[quick["process"][into]]
    least = quick["end_ns"][into] - quick["end_ns"][out]
    most = quick["end_ns"][into] - quick["posted_ns"][out]
    made: dict[tuple[int, int], tuple[int, int]] = {}
    rows = zip(one.tolist(), other.tolist(), least.tolist(), most.tolist(), strict=True)
    for a, b, low, high in rows:
        if a == b:
            continue
        for pair, from_ns, to_ns in (((a, b), low, high), ((b, a), -high, -low)):
            known = made.get(pair, (from_ns, to_ns))
            made[pair] = max(known[0], from_ns), min(known[1], to_ns)
    return made


def _move(
    processes: list[dict[str, Any]], tables: dict[str, Table], offsets: dict[str, int]
) -> None:
    """Adds the offsets of clocks to all times."""
    if not any(offsets.values()):
        return
    names = _clock_names(processes)
    ns = np.array([offsets[name] for name in names], np.int64)
    for one, name in zip(processes, names, strict=True):
        for key in ("first_ns", "last_ns", "closed_ns"):
            one[key] = one[key] if one[key] is None else int(one[key]) + offsets[name]
    for table, columns in CLOCKED.items():
        rows = tables[table]
        for name in columns:
            column = rows[name]
            rows[name] = np.where(column >= 0, column + ns[rows["process"]], column)


def _offset_of(host: HostFile, processes: Sequence[dict[str, Any]], offsets: dict[str, int]) -> int:
    names = {str(one.get("clock_name") or one["host"]) for one in host.processes}
    return next((offsets[name] for name in names if name in offsets), 0)


def _large(
    processes: Sequence[dict[str, Any]], tables: dict[str, Table]
) -> tuple[Table, Table] | None:
    """The tables `calls` and `edges`; None: the program does not use NCCL."""
    if not rows_of(tables["calls"]) and not rows_of(tables["comms"]):
        return None
    whole = np.array([bool(one.get("whole")) for one in processes])
    calls = tables["calls"]
    return _common({**calls, "turn": aligned(calls, whole)}), tables["edges"]


def _seen_until(
    hosts: Sequence[HostFile], processes: Sequence[dict[str, Any]], offsets: dict[str, int]
) -> int:
    """The time up to which all hosts have read the traces; later records are left out.

    Otherwise, a host that has read later than others makes them look as if they stood still. Hosts
    that read more than APART_NS before the last one do not count: their clocks differ.
    """
    reads = [host.read_ns + _offset_of(host, processes, offsets) for host in hosts]
    return min(one for one in reads if one > max(reads) - APART_NS) - LATE_NS


def _calls_until(calls: Table, edges: Table, until_ns: int) -> tuple[Table, Table]:
    """The calls and edges as they were at a time: those that ended later count as open."""
    begun = chosen(calls, calls["begin_ns"] <= until_ns)
    late = {name: begun[name] > until_ns for name in ("arrival_ns", "end_ns")}
    begun |= {name: np.where(mask, -1, begun[name]) for name, mask in late.items()}
    return begun, chosen(edges, edges["end_ns"] <= until_ns)


def _cut(processes: Sequence[dict[str, Any]], tables: dict[str, Table], until_ns: int) -> None:
    """Leaves out messages, events, samples and sent segments after a time."""
    for name in ("messages", "events", "samples", "sent"):
        times = tables[name]["end_ns" if name == "messages" else "time_ns"]
        if (times > until_ns).any():
            tables[name] = chosen(tables[name], times <= until_ns)
    for one in processes:
        one["last_ns"] = max(min(one["last_ns"], until_ns), one["first_ns"])


def _states(
    processes: Sequence[dict[str, Any]], evidence: dict[int, list[dict[str, Any]]]
) -> dict[int, str]:
    """The state of each process, as ps shows it, if its host knows it.

    Stopped counts from the second reading on, as debuggers and py-spy stop processes for a moment.
    """
    found = {}
    for at, one in enumerate(processes):
        state = one["state"]
        if state in alive.STOPPED and not any(
            each["kind"] == "stopped" and each["readings"] >= SURE for each in evidence.get(at, ())
        ):
            state = "S"
        if state and state != "?":
            found[at] = str(state)
    return found


def _common(calls: Table) -> Table:
    """Drops calls before the first one that all ranks of their communicator still have.

    Hosts drop old calls at different times, and the rules compare the n-th calls of all ranks.
    """
    if not rows_of(calls):
        return calls
    function = np.unique(calls["function"].astype(str), return_inverse=True)[1]
    groups, group = distinct(calls["comm_id"].view(np.int64), function.ravel())
    sequence = calls["sequence"]
    order = np.lexsort((sequence, calls["process"], group))
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(group[order]) != 0) | (np.diff(calls["process"][order]) != 0)
    least = np.full(groups.shape[1], -1, np.int64)
    np.maximum.at(least, group[order[first]], sequence[order[first]])
    return chosen(calls, (sequence >= least[group]) | (calls["kind"] != "collective"))


def _sent(sent: Table, connections: Table) -> Table:
    """The sent segments with the process at the other end of their connection."""
    ends: dict[int, list[int]] = {}
    pairs = zip(connections["pair"].tolist(), connections["process"].tolist(), strict=True)
    for pair, process in pairs:
        ends.setdefault(pair, []).append(process)
    known, inverse = distinct(sent["pair"].astype(np.uint64).view(np.int64), sent["process"])
    others = []
    for pair, process in zip(known[0].view(np.uint64).tolist(), known[1].tolist(), strict=True):
        both = ends.get(pair, [])
        far = [one for one in both if one != process]
        others.append(far[0] if far else process if len(both) > 1 else -1)
    other = np.array(others or [-1], np.int64)[inverse] if rows_of(sent) else sent["process"]
    made = {name: sent[name] for name in ("path", "time_ns", "sent")}
    made = chosen({**made, "source": sent["process"], "target": other}, other >= 0)
    return _in_time(made)


def _in_time(table: Table) -> Table:
    return chosen(table, np.argsort(table["time_ns"], kind="stable"))


def _fill(
    store: Store, processes: Sequence[dict[str, Any]], tables: dict[str, Table], messages: bool
) -> None:
    """Inserts processes, communicators, connections, events and, if asked for, messages."""
    names = (
        *("trace", "host", "pid", "job", "attempt", "rank", "world_size"),
        *("first_ns", "last_ns", "dropped", "damage", "ended", "closed_ns"),
    )
    none = np.zeros(len(processes), np.int64)
    clock = dict.fromkeys(("removed", "clock", "clock_offset_ns", "clock_error_ns"), none)
    facts = {name: _column([one.get(name) for one in processes]) for name in names}
    insert(store.database, "processes", {"process": np.arange(len(processes)), **clock, **facts})
    for name in ("comms", "connections", "events"):
        if rows_of(tables[name]):
            insert(store.database, name, _nulled(tables[name]))
    if messages and rows_of(tables["messages"]):
        rows = tables["messages"]
        known = {column.name for column in STORED["messages"]}
        insert(store.database, "messages", _nulled({n: c for n, c in rows.items() if n in known}))
        known = {column.name for column in STORED["stripes"]}
        sent = chosen({n: c for n, c in rows.items() if n in known}, rows["sends"])
        if rows_of(sent):
            insert(store.database, "stripes", _nulled(sent))


def _column(values: list[Any]) -> NDArray[Any]:
    """Values of one type as an array; None is masked."""
    missing = [one is None for one in values]
    some: Any = next((one for one in values if one is not None), 0)
    filled = [type(some)() if one is None else one for one in values]
    return np.ma.masked_array(np.array(filled, object if isinstance(some, str) else None), missing)


def _nulled(rows: Table) -> Columns:
    """The rows with NULL instead of -1 in columns of times and of connections."""
    return {
        name: np.ma.masked_equal(column, -1)
        if name.endswith("_ns") or name == "connection"
        else column
        for name, column in rows.items()
    }


def _evidence(
    hosts: Sequence[HostFile], number_of: dict[tuple[int, int], int]
) -> tuple[dict[int, list[dict[str, Any]]], list[dict[str, Any]]]:
    of: dict[int, list[dict[str, Any]]] = {}
    devices: list[dict[str, Any]] = []
    for at, host in enumerate(hosts):
        for one in host.evidence:
            process = number_of.get((at, one.get("process", -1)))
            if process is not None:
                of.setdefault(process, []).append(one)
            elif one.get("process") is None:
                devices.append({**one, "host": host.host})
    return of, devices
