"""Tests the groups of message sizes, and which quantiles are judged."""

import numpy as np
import pytest

from transport.sim import by_size


@pytest.mark.parametrize(
    ("payload", "largest", "ends"),
    [
        (4_096, 0, [4_096]),
        (4_096, 4_096, [4_096]),
        (4_096, 4_097, [4_096, 10_000]),
        (4_096, 1_000_000, [4_096, 10_000, 100_000, 1_000_000]),
        (65_464, 100_001, [65_464, 100_000, 1_000_000]),
        (10_000, 10_001, [10_000, 100_000]),
    ],
)
def test_by_size__one_packet_then_decades(payload: int, largest: int, ends: list[int]) -> None:
    assert by_size.bounds(payload, largest) == ends


def test_by_size__every_transfer_is_in_one_group() -> None:
    sizes = np.array([0, 1, 4_096, 4_097, 10_000, 10_001, 2_000_000])
    rows = by_size.rows(sizes, np.arange(1, 8), 4_096)
    assert [row["transfers"] for row in rows] == [3, 2, 1, 1]
    assert [by_size.label(row) for row in rows] == [
        *("one packet", "4.096 kB to 10 kB", "10 kB to 100 kB", "1 MB to 10 MB"),
    ]
    assert [row["slowdown_max"] for row in rows] == [3, 5, 6, 7]
    assert by_size.rows(sizes[:0], np.zeros(0), 4_096) == []


@pytest.mark.parametrize(
    ("name", "least"), [("p50", 6), ("p95", 60), ("p99", 300), ("p999", 3_000)]
)
def test_by_size__few_transfers_have_no_high_quantile(name: str, least: int) -> None:
    values = np.linspace(1, 2, least)
    (row,) = by_size.rows(np.ones(least), values, 4_096)
    assert row[f"slowdown_{name}"] == pytest.approx(1 + float(f"0.{name[1:]}"))
    (row,) = by_size.rows(np.ones(least - 1), values[1:], 4_096)
    assert row[f"slowdown_{name}"] is None
