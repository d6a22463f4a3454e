"""Reads profiles of accelerators from TOML: the shipped ones, and files of users.

A file has a table for each accelerator, named as --gpu names it. docs/ESTIMATION.md, Accelerators,
describes the keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transport.estimate.generations import GENERATIONS
from transport.ground import toml

FILE_BYTES_MAX = 1 << 20
# Types whose dense rate a profile may have.
TYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")
# Figures that every profile has -> the least that is no mistake of a unit.
NEEDED = {"flops": 1e9, "memory_bytes": 1e6, "memory_bytes_per_s": 1e6}
CLOCK_MIN = 0.01
KEYS = {*NEEDED, "generation", "sms", "clock", "dense", "power_w", "links", "source", "price"}
SMS_MAX = 10_000


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
        size = file.stat().st_size
    except OSError as error:
        raise GpuError(f"cannot read {file}: {error.strerror}") from None
    if size > FILE_BYTES_MAX:
        raise GpuError(f"{file} is {size:,} bytes; at most {FILE_BYTES_MAX:,} are read")
    try:
        tables = toml.read(file)
    except toml.TomlError as error:
        raise GpuError(str(error)) from None
    if not tables:
        raise GpuError(f"{file} has no accelerator: give a [name] table for each")
    try:
        return {name: _fields(name, table) for name, table in tables.items()}
    except GpuError as error:
        raise GpuError(f"{file}: {error}") from None


def _fields(name: str, table: Any) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise GpuError(f"{name}: must be in a table: give a [name] line above it")
    _known_keys(table, KEYS, f"{name}.")
    made: dict[str, Any] = {key: _number(table, key, name, low) for key, low in NEEDED.items()}
    if "generation" in table:
        made["generation"] = _generation(table, name)
    if "sms" in table:
        made["sms"] = _sms(table, name)
    if "clock" in table:
        made["clock"] = _clock(table, name)
    dense = table.get("dense", {})
    if not isinstance(dense, Mapping):
        raise GpuError(f"{name}.dense: expected a table such as {{ bf16 = 989.4 }}, in Tflop/s")
    _known_keys(dense, set(TYPES), f"{name}.dense.")
    links = table.get("links", [])
    if not isinstance(links, list) or not all(isinstance(one, str) for one in links):
        raise GpuError(f"{name}.links: expected a list of names of links")
    made["facts"] = Facts(
        dense=tuple((key, _number(dense, key, f"{name}.dense") * 1e12) for key in dense),
        power_w=_number(table, "power_w", name) if "power_w" in table else None,
        links=tuple(links),
        source=_text(table, "source", name) if "source" in table else "",
        price=_price(table["price"], f"{name}.price") if "price" in table else None,
    )
    return made


def _generation(table: Mapping[str, Any], where: str) -> str:
    found = _text(table, "generation", where)
    if found not in GENERATIONS:
        raise GpuError(f"{where}.generation: {found!r}: known are {', '.join(GENERATIONS)}")
    return found


def _sms(table: Mapping[str, Any], where: str) -> int:
    found = table["sms"]
    if isinstance(found, bool) or not isinstance(found, int) or not 0 < found <= SMS_MAX:
        raise GpuError(f"{where}.sms: {found!r}: must be a whole number of 1 to {SMS_MAX:,}")
    return found


def _clock(table: Mapping[str, Any], where: str) -> float:
    found = _number(table, "clock", where, CLOCK_MIN)
    if found > 1:
        raise GpuError(f"{where}.clock: {found}: must be at most 1")
    return found


def _price(table: Any, where: str) -> Price:
    if not isinstance(table, Mapping):
        raise GpuError(f"{where}: expected a table of dollars_per_hour, source and date")
    _known_keys(table, {"dollars_per_hour", "source", "date"}, f"{where}.")
    dollars = _number(table, "dollars_per_hour", where)
    return Price(dollars, _text(table, "source", where), str(table.get("date") or "?"))


def _known_keys(table: Mapping[str, Any], known: set[str], where: str) -> None:
    if strange := sorted(set(table) - known):
        raise GpuError(f"unknown key {where}{strange[0]}: known are {', '.join(sorted(known))}")


def _number(table: Mapping[str, Any], key: str, where: str, low: float = 0.0) -> float:
    found = table.get(key)
    if found is None:
        raise GpuError(f"{where}.{key}: missing: give a number")
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise GpuError(f"{where}.{key}: expected a number, not {found!r}")
    if not (math.isfinite(found) and low <= found <= 1e24 and found > 0):
        least = f"at least {low:g}" if low else "more than 0"
        raise GpuError(f"{where}.{key}: {found}: must be {least} and at most 1e24")
    return found


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    found = table.get(key)
    if not isinstance(found, str) or not found:
        raise GpuError(f"{where}.{key}: missing: give a text")
    return found
