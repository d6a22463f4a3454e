"""The matrices of a report, folded until each is small enough for its page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from transport.plan.routes import UNKNOWN as UNKNOWN_NODE, Routes
from transport.trace import matrix_files
from transport.trace.inventory import Inventory
from transport.trace.matrix import UNKNOWN, Matrix, matrix_of
from transport.trace.places import places_of
from transport.trace.store import Store

MEASURES = ("bytes", "messages", "latency_mean")
CELLS_BYTES_MAX = 250_000  # size of one matrix in the page


@dataclass(frozen=True)
class Shown:
    """A matrix as the page has it. fold: how many ranks a row and a column stand for.

    data: for the script of the page. whole: the matrix before it was folded.
    """

    whole: Matrix
    fold: int
    data: dict[str, Any]


def shown(
    store: Store,
    routes: Routes | None,
    inventory: Inventory | None = None,
    most_bytes: int = CELLS_BYTES_MAX,
) -> list[Shown]:
    """The matrices of the measures by rank, and by host if hosts have several ranks.

    inventory: gives rows their racks; without one, routes do. ChoiceError if the trace has no
    processes.
    """
    racks = {} if routes is None else racks_of(routes)
    hosts = hosts_of(store)
    made = _by(store, False, hosts, racks, inventory, most_bytes)
    size, count = made[0].whole.size, len(set(hosts.values()))
    if 1 < count < size:
        made += _by(store, True, hosts, racks, inventory, most_bytes)
    return made


def _by(
    store: Store,
    by_host: bool,
    hosts: Mapping[int, str],
    racks: Mapping[str, str],
    inventory: Inventory | None,
    most_bytes: int,
) -> list[Shown]:
    found = [
        matrix_of(store, measure, by_host=by_host, inventory=inventory) for measure in MEASURES
    ]
    if by_host:
        hosts = dict(enumerate(found[0].labels))
    return [fitted(with_unknown(one, found[0]), hosts, racks, most_bytes) for one in found]


def fitted(
    matrix: Matrix, hosts: Mapping[int, str], racks: Mapping[str, str], most_bytes: int
) -> Shown:
    """The matrix folded until its data has at most `most_bytes` as JSON, if that is possible."""
    fold = 1
    while True:
        one = folded(matrix, fold)
        data = matrix_files.data_of(one, logarithmic=False)
        if len(json.dumps(data)) <= most_bytes or one.size <= 2:
            return Shown(matrix, fold, data | {"borders": borders(matrix, hosts, racks, fold)})
        fold *= 2


def with_unknown(matrix: Matrix, known: Matrix) -> Matrix:
    """The matrix with the unknown cells of `known`, and with one for each cell that only `known`
    has: something was sent there, and the trace does not tell this measure of it."""
    at = matrix.sources * matrix.size + matrix.targets
    more = np.setdiff1d(known.sources * known.size + known.targets, at)
    return replace(
        matrix,
        sources=np.concatenate([matrix.sources, more // known.size]),
        targets=np.concatenate([matrix.targets, more % known.size]),
        values=np.concatenate([matrix.values, np.zeros(more.size)]),
        states=np.concatenate([matrix.states, np.full(more.size, UNKNOWN, np.uint8)]),
        unknown=matrix.unknown or known.unknown,
    )


def folded(matrix: Matrix, fold: int) -> Matrix:
    """The matrix with one row for each `fold` rows: sums of cells, of latencies the largest."""
    if fold == 1:
        return matrix
    size = -(-matrix.size // fold)
    every, inverse = np.unique(
        matrix.sources // fold * size + matrix.targets // fold, return_inverse=True
    )
    values, states = np.zeros(every.size), np.zeros(every.size, np.uint8)
    join = np.maximum if matrix.measure.startswith("latency") else np.add
    join.at(values, inverse, matrix.values)
    np.bitwise_or.at(states, inverse, matrix.states)
    starts = range(0, matrix.size, fold)
    labels = [matrix.labels[at : at + fold] for at in starts]
    racks = [list(dict.fromkeys(matrix.racks[at : at + fold])) for at in starts if matrix.racks]
    groups = {tuple(sorted({row // fold for row in group})) for group in matrix.unknown}
    return replace(
        matrix,
        labels=tuple(one[0] if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in labels),
        sources=every // size,
        targets=every % size,
        values=values,
        states=states,
        unknown=tuple(sorted(one for one in groups if len(one) > 1)),
        racks=tuple(
            one[0] if len(one) == 1 else f"{one[0]} and {len(one) - 1} more" for one in racks
        ),
    )


def hosts_of(store: Store) -> dict[int, str]:
    """Row of a matrix -> its host, for the rows of processes with a trace."""
    host = dict(store.rows("SELECT process, host FROM processes"))
    places = places_of(store, None, by_host=False)
    return {row: host[process] for process, row in places.of_process.items()}


def racks_of(routes: Routes) -> dict[str, str]:
    """Host -> the switch that all its routes begin at; hosts of several switches are left out."""
    first: dict[str, set[str]] = {}
    for (source, _, _), links in routes.of.items():
        if links:
            first.setdefault(source, set()).add(routes.links[links[0]].partition(">")[2])
    return {
        host: next(iter(leaves))
        for host, leaves in first.items()
        if len(leaves) == 1 and not next(iter(leaves)).startswith(UNKNOWN_NODE)
    }


def borders(
    matrix: Matrix, hosts: Mapping[int, str], racks: Mapping[str, str], fold: int
) -> Sequence[tuple[int, str]]:
    """(row, kind) of each line between two racks or hosts; of folded rows where they meet it.

    racks: of hosts, for a matrix whose rows have no racks.
    """

    def rack(row: int) -> str:
        return matrix.racks[row] if matrix.racks else racks.get(hosts.get(row, ""), "")

    made = []
    for row in range(fold, matrix.size, fold):
        if rack(row - 1) != rack(row):
            made.append((row // fold, "rack"))
        elif hosts.get(row - 1, "") != hosts.get(row, ""):
            made.append((row // fold, "host"))
    return made
