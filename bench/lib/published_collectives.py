"""Reads published times of NCCL's operations: one set to fit estimates to, and one held out.

A row of reference/collectives_fit.csv or collectives_held_out.csv is one size of a table that its
source prints; the column `assumed` names what the source leaves open. A table is in one set only:
the sets were chosen by source before any error was known, so that both have A100s and Hopper, one
node and several. Of each table a few sizes are taken, from 8 bytes to 16 GiB. Two addresses could
not be found again. Not taken are AWS (EFA), Google (TCPXO) and AMD, whose networks links.toml does
not have, and a table whose own author calls it broken.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from transport.estimate.collectives import ALGORITHMS

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
SETS = {
    "fit": REFERENCE / "collectives_fit.csv",
    "held out": REFERENCE / "collectives_held_out.csv",
}
SIZE_MAX = 1 << 20  # bytes of a file that is read
NUMBER_MAX = 1 << 40
TEXTS = ("run", "source", "operation", "inside", "between")
NUMBERS = ("size_bytes", "gpus", "gpus_per_node")
COLUMNS = (
    *("run", "source", "operation", "size_bytes", "gpus", "gpus_per_node", "nics_per_node"),
    *("inside", "between", "time_us", "assumed"),
)


class PublishedTimeError(ValueError):
    """A file of published times that is not valid; names file, line and column."""


@dataclass(frozen=True)
class PublishedTime:
    """A published time. size_bytes: as nccl-tests count it. nics_per_node: 0: one for each GPU."""

    run: str
    source: str
    operation: str
    size_bytes: int
    gpus: int
    gpus_per_node: int
    nics_per_node: int
    inside: str
    between: str
    time_us: float
    assumed: str

    @property
    def table(self) -> str:
        """The table of the source that the row is of."""
        return self.run.rpartition(",")[0]


def read(file: Path) -> list[PublishedTime]:
    """The rows of a file. PublishedTimeError: it is not valid."""
    try:
        if file.stat().st_size > SIZE_MAX:
            raise PublishedTimeError(f"{file}: more than {SIZE_MAX} bytes")
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PublishedTimeError(f"cannot read {file}: {error}") from None
    return list(_rows(file, lines))


def _rows(file: Path, lines: list[str]) -> Iterator[PublishedTime]:
    kept = [(at, line) for at, line in enumerate(lines, 1) if line and line[0] != "#"]
    if not kept or kept[0][1] != ",".join(COLUMNS):
        raise PublishedTimeError(f"{file}: the columns must be {','.join(COLUMNS)}")
    seen: set[str] = set()
    for at, line in kept[1:]:
        try:
            found = _row(line)
            if found.run in seen:
                raise PublishedTimeError(f"run: {found.run}: there are two of this name")
        except (PublishedTimeError, csv.Error) as error:
            raise PublishedTimeError(f"{file}, line {at}: {error}") from None
        seen.add(found.run)
        yield found


def _row(line: str) -> PublishedTime:
    (parts,) = csv.reader([line], strict=True)
    if len(parts) != len(COLUMNS):
        raise PublishedTimeError(f"it has {len(parts)} columns: give {len(COLUMNS)}")
    cells = dict(zip(COLUMNS, parts, strict=True))
    if missing := [name for name in TEXTS if not cells[name].strip()]:
        raise PublishedTimeError(f"{missing[0]}: missing: give a text")
    if cells["operation"] not in ALGORITHMS:
        raise PublishedTimeError(f"operation: must be one of {', '.join(ALGORITHMS)}")
    numbers = {name: _number(cells, name) for name in NUMBERS}
    if numbers["gpus"] > numbers["gpus_per_node"] and numbers["gpus"] % numbers["gpus_per_node"]:
        raise PublishedTimeError("gpus: must be a multiple of gpus_per_node, or less")
    nics = _number(cells, "nics_per_node") if cells["nics_per_node"] else 0
    return PublishedTime(
        run=cells["run"],
        source=cells["source"],
        operation=cells["operation"],
        size_bytes=numbers["size_bytes"],
        gpus=numbers["gpus"],
        gpus_per_node=numbers["gpus_per_node"],
        nics_per_node=nics,
        inside=cells["inside"],
        between=cells["between"],
        time_us=_time_us(cells["time_us"]),
        assumed=cells["assumed"],
    )


def _number(cells: Mapping[str, str], name: str) -> int:
    text = cells[name]
    if not (text.isascii() and text.isdigit() and len(text) < 14):
        raise PublishedTimeError(f"{name}: {text!r}: must be a whole number")
    if not 1 <= int(text) <= NUMBER_MAX:
        raise PublishedTimeError(f"{name}: {text}: must be 1 to {NUMBER_MAX}")
    return int(text)


def _time_us(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise PublishedTimeError(f"time_us: {text!r}: must be a number") from None
    if not 0 < value <= 1e9:
        raise PublishedTimeError(f"time_us: {text}: must be above 0 and at most 1e9")
    return value
