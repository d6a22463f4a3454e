"""Sizes, rates, times, counts and shares: parses them from text, and writes them as text.

Output has decimal units (kB, MB, GB), and binary ones (KiB, MiB) only for powers of two. A parsed
size or time must be a whole number of bytes or nanoseconds; a rate is rounded to bytes per second.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

_AMOUNT = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]+)")
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?)(b/s|bit/s|bps|B/s)")
_PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BYTES = {
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
_TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
A_RATE = 'a rate: bytes/s as a whole number, or text such as "8 Gb/s" or "1 GB/s"'

DIGITS = 4
_DECIMAL = ("", "k", "M", "G", "T", "P")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
# Units of time: length in ns, name, and the number from which on the next unit is used.
_DURATIONS = (
    *((1, "ns", 1000), (10**3, "us", 1000), (10**6, "ms", 1000), (10**9, "s", 120)),
    *((60 * 10**9, "min", 120), (3600 * 10**9, "h", math.inf)),
)
_PLACES_MAX = 6  # digits after the decimal point
_NS_SHOWN_MIN = 0.001  # a shorter time is a rounding error of floating point, and written as 0 ns


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
    return _amount(value, _BYTES, 'bytes as a whole number, or text such as "2 MB" or "64 KiB"')


def ns_of(value: Any) -> int:
    """Parses 10_000 or "10 us" into nanoseconds."""
    return _amount(value, _TIMES, 'nanoseconds as a whole number, or text such as "10 us"')


def rate_of(value: Any) -> int:
    """Parses a whole number of bytes per second, or text such as "100 Gb/s"."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r}: expected {A_RATE}")
    number, prefix, unit = match.groups()
    return round(Fraction(number) * _PREFIXES[prefix] / (1 if unit == "B/s" else 8))


def _number(value: float, digits: int) -> str:
    """The value with `digits` significant digits, without zeros at the end of a fraction."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    text = f"{value:.{min(max(places, 0), _PLACES_MAX)}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text if text != "-0" else "0"


def _scaled(value: float, digits: int) -> tuple[str, str]:
    """The value as a number below 1,000, and the decimal prefix of its unit."""
    at = 0
    while at + 1 < len(_DECIMAL) and abs(float(_number(value, digits))) >= 1000:
        value /= 1000
        at += 1
    return _number(value, digits), _DECIMAL[at]


def bytes_text(count: float, digits: int = DIGITS) -> str:
    """A size as text, such as 1.5 MB."""
    number, prefix = _scaled(count, digits)
    return f"{number} {prefix}B"


def binary_text(count: int) -> str:
    """A size that is a power of two or a multiple of one, such as 64 KiB."""
    at = 0
    while at + 1 < len(_BINARY) and abs(count) >= 1 << 10 * (at + 1):
        at += 1
    return f"{_number(count / (1 << 10 * at), DIGITS)} {_BINARY[at]}"


def span_text(power: int) -> str:
    """The sizes of at least 2**power bytes and less than twice as many, such as 64-128 KiB."""
    if power <= 0:
        return "0-2 B"
    least, most = binary_text(1 << power), binary_text(2 << power)
    number, _, unit = least.partition(" ")
    return f"{number}-{most}" if most.endswith(f" {unit}") else f"{least}-{most}"


def rate_text(bytes_per_s: float, digits: int = DIGITS) -> str:
    """A rate of data as text, such as 1.5 GB/s."""
    return f"{bytes_text(bytes_per_s, digits)}/s"


def bit_rate_text(bytes_per_s: float, digits: int = 6) -> str:
    """The rate of a link as text, such as 100 Gb/s."""
    number, prefix = _scaled(bytes_per_s * 8, digits)
    return f"{number} {prefix}b/s"


def count_text(count: float, digits: int = 3) -> str:
    """A number of things, or of things per second, such as 12.3k."""
    return "".join(_scaled(count, digits))


def time_text(ns: float, digits: int = DIGITS) -> str:
    """A time as text, such as 1.234 ms, 83 us or 4 min."""
    if abs(ns) < _NS_SHOWN_MIN:
        return "0 ns"
    for scale, unit, until in _DURATIONS:
        number = _number(ns / scale, digits)
        if not abs(float(number)) >= until:
            return f"{number} {unit}"
    return f"{ns:g} ns"


def percent(share: float, places: int = 1, *, signed: bool = False) -> str:
    """A share from 0 to 1 in percent, such as 12.3 %; signed: a change, such as +12.3 %.

    places: digits after the point. A share too small for two digits is written with two
    significant digits instead, such as 0.012 %.
    """
    value = 100 * share
    is_small = abs(value) < 10 ** (1 - places)
    number = _number(value, 2) if is_small else f"{value:.{places}f}"
    sign = "+" if signed and not number.startswith("-") else ""
    return f"{sign}{number} %"


def counted(count: int, noun: str, many: str = "") -> str:
    """A number of things: "1 host", "2 hosts", "2 processes" of ("process", "processes")."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"


def quantity_text(value: float, unit: str) -> str:
    """A value in "bytes" or "ns" as text; of another unit, a whole number."""
    if unit == "bytes":
        return bytes_text(value)
    return time_text(value) if unit == "ns" else f"{value:.0f}"
