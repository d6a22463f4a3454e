"""Differences of times that were added up in floating point."""

from __future__ import annotations

from math import isclose

ROUNDING = 1e-9  # relative difference below which two times are equal


def difference_ns(longer_ns: float, shorter_ns: float) -> float:
    """The difference of two times; 0 if they differ only by rounding."""
    equal = isclose(longer_ns, shorter_ns, rel_tol=ROUNDING)
    return 0.0 if equal else longer_ns - shorter_ns
