"""Reads profiles of accelerators from TOML: the shipped ones, and files of users.

A file has a table for each accelerator, named as --gpu names it. docs/ESTIMATION.md, Accelerators,
describes the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transport.estimate.generations import GENERATIONS
from transport.estimate.tables import TableError, inner, known_keys, number, text, texts, whole
from transport.ground import toml
from transport.ground.text import similar

FILE_BYTES_MAX = 1 << 20
# Types whose dense rate a profile may have.
TYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")
# Figures that every profile has -> the least that is no mistake of a unit.
NEEDED = {"flops": 1e9, "memory_bytes": 1e6, "memory_bytes_per_s": 1e6}
CLOCK_MIN = 0.01
KEYS = {
    *(*NEEDED, "generation", "sms", "array", "clock"),
    *("dense", "power_w", "links", "source", "price"),
}
SMS_MAX, ARRAY_MAX = 10_000, 4_096
LEAST, MOST = 1e-9, 1e24  # of any figure


class GpuError(ValueError):
    """An unknown GPU, a wrong profile, or an impossible efficiency."""


@dataclass(frozen=True)
class Price:
    """What an hour of one accelerator costs, in US dollars; who said so, and when."""

    dollars_per_hour: float
    source: str
    date: str


@dataclass(frozen=True)
class Facts:
    """What a data sheet says besides the figures that every estimate needs.

    dense: operations a second by type, without sparsity. links: names of the links between such
    accelerators. power_w, price: None: not known.
    """

    dense: tuple[tuple[str, float], ...] = ()
    power_w: float | None = None
    links: tuple[str, ...] = ()
    source: str = ""
    price: Price | None = None


UNKNOWN = Facts()


def read(file: Path) -> dict[str, dict[str, Any]]:
    """The fields of each accelerator of a file. GpuError: one line that names the file and key."""
    try:
        tables = toml.read(file, FILE_BYTES_MAX)
    except toml.TomlError as error:
        raise GpuError(str(error)) from None
    if not tables:
        raise GpuError(f"{file} has no accelerator: give a [name] table for each")
    try:
        return {name: _fields(name, tables) for name in tables}
    except TableError as error:
        raise GpuError(f"{file}: {error}") from None


def _fields(name: str, tables: Mapping[str, Any]) -> dict[str, Any]:
    table = inner(tables, name, example=f" ([{name}] above its keys)")
    where = f"{name}."
    known_keys(table, KEYS, where)
    made: dict[str, Any] = {
        key: number(table, key, where, least=low, most=MOST) for key, low in NEEDED.items()
    }
    if "generation" in table:
        made["generation"] = _generation(table, where)
    if "sms" in table:
        made["sms"] = whole(table, "sms", where, most=SMS_MAX)
    if "array" in table:
        made["array"] = whole(table, "array", where, most=ARRAY_MAX)
    if "clock" in table:
        made["clock"] = number(table, "clock", where, least=CLOCK_MIN, most=1)
    made["facts"] = Facts(
        dense=_dense(table, where),
        power_w=_rate(table, "power_w", where) if "power_w" in table else None,
        links=texts(table, "links", where),
        source=text(table, "source", where) if "source" in table else "",
        price=_price(table, where) if "price" in table else None,
    )
    return made


def _dense(table: Mapping[str, Any], where: str) -> tuple[tuple[str, float], ...]:
    """Operations a second by type; empty: not said."""
    if "dense" not in table:
        return ()
    dense = inner(table, "dense", where, " such as { bf16 = 989.4 }, in Tflop/s")
    known_keys(dense, TYPES, f"{where}dense.")
    return tuple((key, _rate(dense, key, f"{where}dense.") * 1e12) for key in dense)


def _generation(table: Mapping[str, Any], where: str) -> str:
    found = text(table, "generation", where)
    if found not in GENERATIONS:
        hint = similar(found, list(GENERATIONS))
        raise TableError(f"{where}generation: {found!r}: known are {', '.join(GENERATIONS)}{hint}")
    return found


def _price(tables: Mapping[str, Any], within: str) -> Price:
    table = inner(tables, "price", within, " of dollars_per_hour, source and date")
    where = f"{within}price."
    known_keys(table, {"dollars_per_hour", "source", "date"}, where)
    dollars = _rate(table, "dollars_per_hour", where)
    return Price(dollars, text(table, "source", where), str(table.get("date") or "?"))


def _rate(table: Mapping[str, Any], key: str, where: str) -> float:
    """A number above 0."""
    return number(table, key, where, least=LEAST, most=MOST)
