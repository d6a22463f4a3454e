"""Sizes, rates and times as short text."""

from __future__ import annotations

SIZES = ("B", "KB", "MB", "GB", "TB", "PB")
COUNTS = ("", "k", "M", "G", "T", "P")


def _scaled(value: float, units: tuple[str, ...], gap: str) -> str:
    """The value as text, with three significant digits and a decimal prefix."""
    at = 0
    while abs(value) >= 999.5 and at < len(units) - 1:
        value /= 1000
        at += 1
    digits = 0 if abs(value) >= 99.95 or (at == 0 and value == int(value)) else 1
    if at and abs(value) < 9.995:
        digits = 2
    return f"{value:.{digits}f}{gap}{units[at]}".rstrip()


def size(value_bytes: float) -> str:
    """A size in bytes: "3 B", "3.00 MB"."""
    return _scaled(value_bytes, SIZES, " ")


def count(value: float) -> str:
    """A number of things, or of things per second: "12", "1.25k"."""
    return _scaled(value, COUNTS, "")


def duration(value_ns: float) -> str:
    """A length of time: "83 us", "1.2 ms", "1.2 s", "4 min", "3 h"."""
    for unit_ns, unit, until in ((1e3, "us", 1e3), (1e6, "ms", 1e3), (1e9, "s", 120)):
        scaled = value_ns / unit_ns
        if scaled < until * 0.9995:
            return f"{scaled:.1f} {unit}" if 0 < scaled < 9.95 else f"{scaled:.0f} {unit}"
    minutes = value_ns / 60e9
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def share(value: float) -> str:
    """A share from 0 to 1 in percent: "0 %", "0.02 %", "12 %"."""
    percent = 100 * value
    if percent == 0 or percent >= 9.95:
        return f"{percent:.0f} %"
    return f"{percent:.1f} %" if percent >= 0.1 else f"{percent:.2g} %"
