"""The rows and columns of a matrix: which ranks, processes or hosts they stand for."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from transport.errors import InvalidArgumentError
from transport.trace.gather import Columns
from transport.trace.inventory import UNKNOWN, Inventory
from transport.trace.load import insert
from transport.trace.store import Store

RANKS_MAX = 16_384  # limit of ranks, because a matrix with more rows would not fit into memory


class ChoiceError(InvalidArgumentError):
    """The trace lacks a requested communicator, operation or measure; the message lists others."""


@dataclass(frozen=True, slots=True)
class Places:
    """The rows of a matrix; its columns are the same.

    what: "rank", "rank in communicator", "process", "host" or "rack".
    labels: the name of each row.
    of_process: process -> its row. Several processes can share a row.
    of_member: (comm_id, rank in the communicator) -> its row, also for some ranks without a trace.
    racks: the rack of each row; empty: there is no inventory, or rows are racks.
    """

    what: str
    labels: tuple[str, ...]
    of_process: dict[int, int]
    of_member: dict[tuple[int, int], int]
    racks: tuple[str, ...] = ()

    def without_trace(self) -> list[int]:
        """The matrix rows to which `of_process` maps no process: their ranks have no trace."""
        return sorted(set(range(len(self.labels))) - set(self.of_process.values()))

    def write(self, store: Store) -> None:
        """Makes temporary tables for queries; `spot` is the number of a row of the matrix.

        place: the row of each process. member: the row of each rank of a communicator, and whether
        it is the row of a process with a trace.
        """
        database = store.database
        database.execute("CREATE OR REPLACE TEMP TABLE place (process INTEGER, spot INTEGER)")
        sql = "TEMP TABLE member (comm_id UBIGINT, rank INTEGER, spot INTEGER, traced BOOLEAN)"
        database.execute(f"CREATE OR REPLACE {sql}")
        processes = np.array([*self.of_process.keys()], np.int32)
        at = np.array([*self.of_process.values()], np.int32)
        insert(database, "place", {"process": processes, "spot": at})
        absent = set(self.without_trace())
        rows: Columns = {
            "comm_id": np.array([comm_id for comm_id, _ in self.of_member], np.uint64),
            "rank": np.array([rank for _, rank in self.of_member], np.int32),
            "spot": np.array([*self.of_member.values()], np.int32),
            "traced": np.array([one not in absent for one in self.of_member.values()], np.bool_),
        }
        insert(database, "member", rows)


@dataclass(frozen=True, slots=True)
class _Member:
    comm_id: int
    process: int
    rank: int
    ranks: int


def chosen_comms(store: Store, text: str | None) -> list[int] | None:
    """The ids of the communicators that a name or id selects; None: all."""
    if text is None:
        return None
    known = store.rows("SELECT DISTINCT comm_id, name FROM comms WHERE comm_id IS NOT NULL")
    found = {i for i, name in known if text in (name, str(i), f"{i:x}", f"0x{i:x}", f"{i:016x}")}
    if not found:
        names = sorted({f"{name or 'unnamed'} ({i:016x})" for i, name in known})
        more = ", ..." if names[8:] else ""
        said = ", ".join(names[:8]) + more or "none"
        raise ChoiceError(f"the trace has no communicator {text}; it has {said}")
    return sorted(found)


def with_racks(store: Store, found: Places, inventory: Inventory) -> Places:
    """The rows with the rack of each; hosts are sorted so that those of a rack are neighbours."""
    sql = "SELECT process, coalesce(rank, -1), coalesce(host, '') FROM processes ORDER BY 1"
    racks = [UNKNOWN] * len(found.labels)
    if found.what == "rank":
        racks = [inventory.spot(int(label)).rack for label in found.labels]
    for process, rank, host in store.rows(sql):
        if process in found.of_process:
            racks[found.of_process[process]] = inventory.spot(rank, host).rack
    if found.what != "host":
        return replace(found, racks=tuple(racks))
    names = list(dict.fromkeys(racks))
    order = sorted(range(len(racks)), key=lambda at: names.index(racks[at]))
    row = {old: new for new, old in enumerate(order)}
    return Places(
        found.what,
        tuple(found.labels[at] for at in order),
        {process: row[at] for process, at in found.of_process.items()},
        {member: row[at] for member, at in found.of_member.items()},
        tuple(racks[at] for at in order),
    )


def by_rack(store: Store, by_host: Places, inventory: Inventory) -> Places:
    """One row for each rack; by_host: the rows by host."""
    racks = with_racks(store, by_host, inventory)
    labels = tuple(dict.fromkeys(racks.racks))
    row = [labels.index(rack) for rack in racks.racks]
    return Places(
        "rack",
        labels,
        {process: row[at] for process, at in racks.of_process.items()},
        {member: row[at] for member, at in racks.of_member.items()},
    )


def places_of(store: Store, comms: Collection[int] | None, by_host: bool) -> Places:
    """The rows of a matrix of the communicators `comms`; None: of all traffic."""
    processes = store.rows("SELECT process, rank, host, pid, world_size FROM processes ORDER BY 1")
    sql = "SELECT comm_id, process, rank, ranks FROM comms WHERE comm_id IS NOT NULL"
    rows = store.rows(sql)
    members = [
        _Member(comm_id, process, rank, ranks or 0)
        for comm_id, process, rank, ranks in rows
        if rank is not None
    ]
    if comms is not None:
        members = [one for one in members if one.comm_id in comms]
        # A process may not know its rank in the communicator.
        chosen = {process for comm_id, process, *_ in rows if comm_id in comms}
        processes = [one for one in processes if one[0] in chosen]
    if by_host:
        hosts = list(dict.fromkeys(host for _, _, host, _, _ in processes))
        of_host = {process: hosts.index(host) for process, _, host, _, _ in processes}
        return Places("host", tuple(hosts), of_host, _rows_of(members, of_host))
    # Processes without communicators, such as a launcher, need no rank.
    in_comms = {one.process for one in members}
    ranks = {process: rank for process, rank, _, _, _ in processes if rank is not None}
    named = ranks.keys() >= in_comms and (in_comms or len(ranks) == len(processes))
    if ranks and named and all(0 <= rank < RANKS_MAX for rank in ranks.values()):
        # Any rank of the job may belong to a communicator whose ranks are not known.
        open_ = any(rank is None and comm_id in (comms or ()) for comm_id, _, rank, _ in rows)
        every = comms is None or open_
        sizes = [size or 0 for _, _, _, _, size in processes] if every else []
        return _by_rank(ranks, members, max(sizes, default=0))
    if members:
        return _by_largest(members)
    labels = tuple(f"{host}:{pid}" for _, _, host, pid, _ in processes)
    of_process = {process: at for at, (process, *_) in enumerate(processes)}
    return Places("process", labels, of_process, {})


def _by_rank(ranks: dict[int, int], members: list[_Member], size: int) -> Places:
    """One row per rank of the job. A communicator of all ranks adds ranks without a trace."""
    known = {*ranks.values(), *range(min(size, RANKS_MAX))}
    groups: dict[int, list[_Member]] = {}
    for one in members:
        groups.setdefault(one.comm_id, []).append(one)
    alike = {
        comm_id: max(one.ranks for one in group)
        for comm_id, group in groups.items()
        if all(ranks[one.process] == one.rank for one in group)
        and max(one.ranks for one in group) >= len(known)
    }
    known |= {rank for count in alike.values() for rank in range(min(count, RANKS_MAX))}
    row_of = {rank: at for at, rank in enumerate(sorted(known))}
    rows = {process: row_of[rank] for process, rank in ranks.items()}
    found = {
        (comm_id, rank): row_of[rank]
        for comm_id, count in alike.items()
        for rank in range(min(count, RANKS_MAX))
    }
    return Places("rank", tuple(map(str, sorted(known))), rows, found | _rows_of(members, rows))


def _by_largest(members: list[_Member]) -> Places:
    """One row for each rank of the largest communicator; other processes have no row."""
    largest = max(members, key=lambda one: (one.ranks, -one.comm_id))
    own = [one for one in members if one.comm_id == largest.comm_id]
    size = min(max(largest.ranks, *(one.rank + 1 for one in own), 1), RANKS_MAX)
    rows = {one.process: one.rank for one in own if 0 <= one.rank < size}
    found = {(largest.comm_id, rank): rank for rank in range(size)}
    labels = tuple(map(str, range(size)))
    return Places("rank in communicator", labels, rows, found | _rows_of(members, rows))


def _rows_of(members: Iterable[_Member], rows: dict[int, int]) -> dict[tuple[int, int], int]:
    return {(one.comm_id, one.rank): rows[one.process] for one in members if one.process in rows}
