"""Parses "100 Gb/s", "2 MB" and "10 us" into integer bytes per second, bytes and nanoseconds.

Values that are not a whole number of the unit are refused.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from transport.lab.model import LabModelError, rate_of

_AMOUNT = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]+)")
BYTES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}
TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


def _amount(value: Any, units: dict[str, int], expected: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r}: expected {expected}")
    if isinstance(value, int):
        return value
    if value.strip().isdigit():
        return int(value)
    match = _AMOUNT.fullmatch(value.strip())
    if match is None or match[2] not in units:
        raise ValueError(f"{value!r}: expected {expected}")
    whole = Fraction(match[1].replace("_", "")) * units[match[2]]
    if whole.denominator != 1:
        raise ValueError(f"{value!r} is not a whole number of {next(iter(units))}: round it")
    return int(whole)


def bytes_of(value: Any) -> int:
    """Parses 2_000_000, "2 MB" or "2 MiB" into bytes."""
    return _amount(value, BYTES, 'bytes as a whole number, or text such as "2 MB" or "64 KiB"')


def ns_of(value: Any) -> int:
    """Parses 10_000 or "10 us" into nanoseconds."""
    return _amount(value, TIMES, 'nanoseconds as a whole number, or text such as "10 us"')


def rate(value: Any) -> int:
    """Parses a whole number of bytes per second, or text such as "100 Gb/s"."""
    try:
        return rate_of("", value)
    except LabModelError as error:
        raise ValueError(str(error).removeprefix(" = ")) from None


def time_text(ns: float) -> str:
    """A time as text, such as 1.234 ms."""
    for unit in ("s", "ms", "us"):
        if abs(ns) >= TIMES[unit]:
            return f"{ns / TIMES[unit]:.4g} {unit}"
    return f"{ns:.4g} ns"


def bytes_text(count: float) -> str:
    """A size as text, such as 1.5 MB."""
    for unit in ("GB", "MB", "kB"):
        if abs(count) >= BYTES[unit]:
            return f"{count / BYTES[unit]:.4g} {unit}"
    return f"{count:.4g} B"
