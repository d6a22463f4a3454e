"""The matrix of a trace: what each rank, process or host sent to each other one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.ground.units import quantity_text
from transport.trace.derived import Derived, derive
from transport.trace.inventory import Inventory
from transport.trace.places import (
    ChoiceError,
    Places,
    by_rack,
    chosen_comms,
    places_of,
    with_racks,
)
from transport.trace.store import Store

MEASURES = {
    "bytes": "bytes",
    "messages": "messages",
    "resent_bytes": "bytes",
    "latency_mean": "ns",
    "latency_p99": "ns",
}
KINDS = ("collective", "p2p")
MEASURED, DERIVED, UNKNOWN = 1, 2, 4  # bits of the state of a cell
# Operations without a communicator's ranks have no cells of their own: they are of unknown ranks.
_HAS_TRAFFIC = "SELECT 1 FROM channels UNION ALL SELECT 1 FROM messages LIMIT 1"
_HAS_OPERATIONS = """
SELECT 1 FROM channels UNION ALL
SELECT 1 FROM operations o JOIN comms m ON m.process = o.process AND m.id = o.comm LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Filters:
    """Selects the operations to count by communicator, function, kind, and time of their begin.

    from_ns, to_ns: operations that began in this time, in nanoseconds since the first record.
    """

    comm: str | None = None
    function: str | None = None
    kind: str | None = None
    from_ns: int | None = None
    to_ns: int | None = None

    @property
    def by_operation(self) -> bool:
        return self.function is not None or self.kind is not None


@dataclass(frozen=True, slots=True)
class Matrix:
    """Sums by sender (row) and receiver (column). Only cells with a value are listed.

    sources, targets: rows and columns of the cells, int64. values: float64, in `unit`.
    states: uint8; each is MEASURED, DERIVED or their sum.
    unknown: groups of rows; between the rows of a group an unknown number of bytes was sent.
    notes: a line for each thing that is missing in the numbers.
    racks: the rack of each row, by an inventory; empty: not told.
    """

    what: str
    labels: tuple[str, ...]
    measure: str
    unit: str
    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    values: NDArray[np.float64]
    states: NDArray[np.uint8]
    unknown: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]
    racks: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return len(self.labels)

    @property
    def borders(self) -> list[int]:
        """The rows whose rack is another one than that of the row before."""
        return [at for at in range(1, len(self.racks)) if self.racks[at] != self.racks[at - 1]]

    def dense_values(self) -> NDArray[np.float64]:
        """All cells, shape (size, size); 0 where nothing is known to have been sent."""
        out = np.zeros((self.size, self.size))
        out[self.sources, self.targets] = self.values
        return out

    def dense_states(self) -> NDArray[np.uint8]:
        """The states of all cells, shape (size, size); 0: nothing was sent."""
        out = np.zeros((self.size, self.size), np.uint8)
        out[self.sources, self.targets] = self.states
        for group in self.unknown:
            rows = np.array(group, np.int64)
            out[np.ix_(rows, rows)] |= UNKNOWN
            out[rows, rows] &= ~np.uint8(UNKNOWN)
        return out


def total_text(matrix: Matrix) -> str:
    """The sum of all cells; "?" if no cell is known, and "+ ?" if some are not."""
    total = quantity_text(float(matrix.values.sum()), matrix.unit)
    if not matrix.unknown:
        return total
    return f"{total} + ?" if matrix.values.size else "?"


def state_text(state: int) -> str:
    """The name of a cell's state."""
    names = ((MEASURED, "measured"), (DERIVED, "derived"), (UNKNOWN, "unknown"))
    return " and ".join(name for bit, name in names if state & bit)


def matrix_of(
    store: Store,
    measure: str = "bytes",
    *,
    by_host: bool = False,
    filters: Filters | None = None,
    inventory: Inventory | None = None,
    racks: bool = False,
) -> Matrix:
    """The matrix of one measure. ChoiceError if a filter names something not in the trace.

    inventory: gives rows their racks. racks: one row for each rack of the inventory.
    """
    filters = filters or Filters()
    if measure not in MEASURES:
        raise ChoiceError(f"there is no measure {measure}, only {', '.join(MEASURES)}")
    _check(store, filters)
    comms = chosen_comms(store, filters.comm)
    places = places_of(store, comms, by_host or racks)
    if inventory is not None:
        place = by_rack if racks else with_racks
        places = place(store, places, inventory)
    if not places.labels:
        raise ChoiceError("the trace has no processes to show")
    places.write(store)
    asked = _Asked(store, filters, comms)
    derived = Derived()
    if places.of_member or store.rows(_HAS_OPERATIONS):
        cells = asked.by_channel(measure)
        if measure == "bytes":
            derived = derive(store, places, *asked.operations())
    else:
        cells = asked.by_pair(measure)
    notes = []
    if measure != "bytes" and not store.rows(_HAS_TRAFFIC) and store.rows(_HAS_OPERATIONS):
        derived.unknown.append([*range(len(places.labels))])
        notes.append(f"the trace has no channels and no messages, so {measure} is not known (?)")
    return _assembled(places, measure, cells, derived, notes)


def _check(store: Store, filters: Filters) -> None:
    for value, column in ((filters.function, "function"), (filters.kind, "kind")):
        sql = f"SELECT DISTINCT {column} FROM operations WHERE {column} IS NOT NULL ORDER BY 1"
        known = [one for (one,) in store.rows(sql)] if value is not None else []
        if value is not None and value.lower() not in [one.lower() for one in known]:
            if not known:
                raise ChoiceError(
                    f"the trace has no operations of NCCL, so none of the {column} {value}: leave "
                    "the choice out"
                )
            said = ", ".join(known)
            raise ChoiceError(f"the trace has no operations of the {column} {value}, only: {said}")


class _Asked:
    """Runs the queries for what a trace measured between each sender and receiver."""

    def __init__(self, store: Store, filters: Filters, comms: list[int] | None) -> None:
        self._store = store
        self._filters = filters
        self._comms = comms
        ((first_ns,),) = store.rows("SELECT coalesce(min(first_ns), 0) FROM processes")
        self._from_ns = None if filters.from_ns is None else first_ns + filters.from_ns
        self._to_ns = None if filters.to_ns is None else first_ns + filters.to_ns

    def _where(
        self, time: str, comm_id: str | None, operation: str | None
    ) -> tuple[str, list[Any]]:
        """The filters as SQL conditions, each after AND, and the values of the placeholders."""
        parts: list[str] = []
        values: list[Any] = []
        chosen = (
            (f"{time} >= ?", self._from_ns),
            (f"{time} < ?", self._to_ns),
            (
                f"lower({operation}.function) = lower(?)",
                self._filters.function if operation else None,
            ),
            (f"{operation}.kind = ?", self._filters.kind if operation else None),
            (f"list_contains(?, {comm_id})", self._comms if comm_id else None),
        )
        for text, value in chosen:
            if value is not None:
                parts.append(f" AND {text}")
                values.append(value)
        return "".join(parts), values

    def operations(self) -> tuple[str, list[Any]]:
        return self._where("o.begin_ns", "m.comm_id", "o")

    def by_channel(self, measure: str) -> dict[str, NDArray[Any]]:
        """Cells from channels, and from the messages and stripes that belong to channels."""
        # Latency is that of the send. Other measures use a receive if its sender has no trace.
        latency = measure.startswith("latency")
        which = "c.sends" if latency else "(c.sends OR NOT s.traced)"
        joined = "JOIN operations o ON o.process = c.process AND o.id = c.operation"
        operation = joined if self._filters.by_operation else ""
        where, values = self._where("coalesce(c.begin_ns, c.end_ns)", "m.comm_id", "o")
        if measure in ("bytes", "messages"):
            source, value, of = "channels c", f"sum(c.{measure})", "c"
        elif measure == "resent_bytes":
            source = """stripes t JOIN messages g ON g.process = t.process AND g.connection =
                t.connection AND g.message = t.message AND g.sends = t.sends
                JOIN channels c ON c.process = g.process AND c.id = g.channel_id"""
            value = "sum(t.bytes::DOUBLE * t.resent / greatest(t.segments, 1))"
            of = "t"
        else:
            source = "messages g JOIN channels c ON c.process = g.process AND c.id = g.channel_id"
            value, of = _latency(measure, "g"), "g"
        sql = f"""
            SELECT CASE WHEN c.sends THEN p.spot ELSE s.spot END AS source,
              CASE WHEN c.sends THEN s.spot ELSE p.spot END AS target, {value} AS value
            FROM {source} JOIN comms m ON m.process = c.process AND m.id = c.comm {operation}
            JOIN place p ON p.process = c.process
            LEFT JOIN member s ON s.comm_id = m.comm_id AND s.rank = c.peer
            WHERE {of}.sends = c.sends AND {which} {where} GROUP BY ALL"""
        return self._store.arrays(sql, *values)

    def by_pair(self, measure: str) -> dict[str, NDArray[Any]]:
        """Cells from the messages of connections whose two ends are in the trace."""
        if measure == "resent_bytes":
            table, value = "stripes", "sum(g.bytes::DOUBLE * g.resent / greatest(g.segments, 1))"
        else:
            sums = {"bytes": "sum(g.bytes)", "messages": "count(*)"}
            table, value = "messages", sums.get(measure) or _latency(measure, "g")
        where, values = self._where("g.posted_ns", None, None)
        if measure == "latency_p99":
            inner, outer = "g.end_ns, g.posted_ns, g.status", value
        else:
            counted = f"{value} AS part, count(*) AS n"
            inner = counted
            outer = "sum(g.part * g.n) / sum(g.n)" if measure == "latency_mean" else "sum(g.part)"
        group = "" if measure == "latency_p99" else "GROUP BY g.process, g.connection"
        sql = f"""
            SELECT a.spot AS source, b.spot AS target, {outer} AS value
            FROM (SELECT g.process, g.connection, {inner} FROM {table} g
              WHERE g.sends {where} {group}) g
            JOIN connections c ON c.process = g.process AND c.id = g.connection
            LEFT JOIN connections d ON d.pair = c.pair
              AND (d.process <> c.process OR d.id <> c.id)
            JOIN place a ON a.process = c.process LEFT JOIN place b ON b.process = d.process
            GROUP BY ALL"""
        return self._store.arrays(sql, *values)


def _latency(measure: str, table: str) -> str:
    took = f"CASE WHEN coalesce({table}.status, 0) = 0 THEN {table}.end_ns - {table}.posted_ns END"
    return f"avg({took})" if measure == "latency_mean" else f"quantile_cont({took}, 0.99)"


def _assembled(
    places: Places,
    measure: str,
    cells: dict[str, NDArray[Any]],
    derived: Derived,
    notes: list[str],
) -> Matrix:
    size = len(places.labels)
    known = ~(np.ma.getmaskarray(cells["value"]) | np.ma.getmaskarray(cells["source"]))
    placed = known & ~np.ma.getmaskarray(cells["target"])
    values = np.ma.getdata(cells["value"]).astype(np.float64)
    at = np.ma.getdata(cells["source"]).astype(np.int64) * size
    at += np.ma.getdata(cells["target"]).astype(np.int64)
    at, values = at[placed], values[placed]
    lost = float(np.ma.getdata(cells["value"]).astype(np.float64)[known & ~placed].sum())
    found = [one for one in derived.cells if one[0] is not None and one[1] is not None]
    more_at = np.array([int(a or 0) * size + int(b or 0) for a, b, _ in found], np.int64)
    more = np.array([value for _, _, value in found], np.float64)
    lost += sum(value for a, b, value in derived.cells if a is None or b is None)
    every, inverse = np.unique(np.concatenate([at, more_at]), return_inverse=True)
    totals = np.zeros(every.size)
    np.add.at(totals, inverse, np.concatenate([values, more]))
    states = np.zeros(every.size, np.uint8)
    states[inverse[: at.size]] |= MEASURED
    states[inverse[at.size :]] |= DERIVED
    return Matrix(
        places.what,
        places.labels,
        measure,
        MEASURES[measure],
        every // size,
        every % size,
        totals,
        states,
        tuple(tuple(group) for group in derived.unknown if len(group) > 1),
        (*notes, *_notes(places, measure, lost, derived)),
        places.racks,
    )


def _notes(places: Places, measure: str, lost: float, derived: Derived) -> list[str]:
    notes = []
    if lost and not measure.startswith("latency"):
        unit = MEASURES[measure]
        notes.append(f"{lost:.0f} {unit} are not shown: their peers have no trace and no row")
    if derived.unknown_bytes:
        notes.append(
            f"who sent what is unknown for operations of {derived.unknown_bytes:.0f} bytes (summed "
            "over ranks): their algorithm is not a ring, or the ring's order is not known"
        )
    if derived.unsized:
        notes.append(f"the trace does not tell the size of {derived.unsized} operations (?)")
    if derived.unplaced:
        notes.append(
            f"the trace does not tell between which ranks {derived.unplaced} operations were (?)"
        )
    if places.what == "rank in communicator":
        notes.append("the launcher named no ranks: rows are ranks of the largest communicator")
    return notes
