"""The bytes that a job sends from host to host: from a trace, a ring of hosts, or a file."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from transport.errors import InvalidArgumentError
from transport.ground import toml
from transport.plan.routes import Routes, side

Demand = dict[tuple[str, str], int]  # (sender, receiver) -> bytes
RING_BYTES = 1_000_000_000


class DemandError(InvalidArgumentError):
    """A demand cannot be read, or names hosts that the routes lack."""


def of_ring(hosts: Sequence[str], sent_bytes: int = RING_BYTES) -> Demand:
    """Each host sends to the next one, the last one to the first."""
    if len(hosts) < 2 or len(set(hosts)) != len(hosts):
        raise DemandError(
            f"a ring needs two or more hosts, each once, not: {', '.join(hosts) or 'none'}"
        )
    return {(one, hosts[(at + 1) % len(hosts)]): sent_bytes for at, one in enumerate(hosts)}


def of_trace(folder: Path, job: str | None = None) -> Demand:
    """The bytes that the hosts of a traced job sent to each other."""
    from transport.trace import TraceError, TraceExtraError, matrix_of, open_store

    try:
        with open_store(folder, job=job) as store:
            found = matrix_of(store, by_host=True)
    except (TraceError, TraceExtraError) as error:
        raise DemandError(str(error)) from None
    ends = zip(found.sources.tolist(), found.targets.tolist(), found.values.tolist(), strict=True)
    sent = {(found.labels[a], found.labels[b]): round(value) for a, b, value in ends if a != b}
    return {pair: count for pair, count in sent.items() if count > 0}


def of_file(file: Path) -> Demand:
    """Rows of from, to and bytes in a TOML file ([[demand]]) or a JSON file."""
    try:
        found: Any = json.loads(file.read_text()) if file.suffix == ".json" else toml.read(file)
    except OSError as error:
        raise DemandError(f"cannot read {file}: {error.strerror}") from None
    except toml.TomlError as error:
        raise DemandError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise DemandError(f"{file} is not JSON: {error}") from None
    rows = found.get("demand") if isinstance(found, dict) else found
    if not isinstance(rows, list) or not rows:
        raise DemandError(f"{file}: no demand: give rows of [[demand]] with from, to and bytes")
    sent: Demand = defaultdict(int)
    for number, row in enumerate(rows, 1):
        source, target, count = _row(row, f"{file}: row {number}")
        sent[source, target] += count
    return dict(sent)


def _row(row: Any, where: str) -> tuple[str, str, int]:
    try:
        values = row if isinstance(row, list) else [row[key] for key in ("from", "to", "bytes")]
        source, target, count = values
    except (KeyError, TypeError, ValueError):
        raise DemandError(f"{where}: expected from, to and bytes, not {row!r:.60}") from None
    good = isinstance(source, str) and isinstance(target, str) and source != target
    if not good or type(count) is not int or count <= 0:
        raise DemandError(
            f"{where}: expected two different hosts and a positive number of bytes, not {row!r:.60}"
        )
    return source, target, count


def over_ends(demand: Mapping[tuple[str, str], int], routes: Routes) -> Demand:
    """Splits the bytes between two hosts equally over their NICs of equal side, as host0/left.

    If a name is that of a NIC, as host0/left, only this NIC is used. DemandError if the routes do
    not connect two hosts.
    """
    pairs = {ends[:2] for ends in routes.of}
    names = sorted({end for pair in pairs for end in pair})
    ends_of: dict[str, list[str]] = defaultdict(list)
    for name in names:
        ends_of[name.partition("/")[0]].append(name)
    made: Demand = {}
    for (source, target), count in demand.items():
        chosen = [_ends(one, names, ends_of) for one in (source, target)]
        both = [
            (one, other)
            for one in chosen[0]
            for other in chosen[1]
            if side(one) == side(other) and (one, other) in pairs
        ]
        if not both:
            raise DemandError(
                f"the routes have no way from {source} to {target}: run weft plan probe on {source}"
            )
        for pair in both:
            made[pair] = made.get(pair, 0) + count // len(both)
    return made


def _ends(name: str, names: Iterable[str], ends_of: Mapping[str, list[str]]) -> list[str]:
    if name in names:
        return [name]
    if name in ends_of:
        return ends_of[name]
    close = get_close_matches(name, [*names, *ends_of], 1)
    meant = f", do you mean {close[0]}?" if close else ": probe it first"
    raise DemandError(f"the routes have no host {name}{meant}")
