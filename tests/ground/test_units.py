"""Tests that sizes, rates, times, counts and shares are parsed and written in one way."""

import math

import pytest

from transport.ground.units import (
    binary_text,
    bit_rate_text,
    bytes_of,
    bytes_text,
    count_text,
    ns_of,
    percent,
    quantity_text,
    rate_of,
    rate_text,
    span_text,
    time_text,
)


def test_units__are_parsed() -> None:
    assert bytes_of("2 MB") == 2_000_000
    assert bytes_of("1.5 KiB") == 1536
    assert ns_of("10 us") == 10_000
    assert ns_of("0.5 us") == 500
    assert rate_of("100 Gb/s") == 12_500_000_000
    assert bytes_of("1") == 1
    for wrong in (True, 1.5, "", "x MB"):
        with pytest.raises(ValueError, match="expected"):
            bytes_of(wrong)


def test_bytes_text__has_significant_digits_and_a_decimal_unit() -> None:
    values = [0, 7, 999, 999.7, 1000, 12_345, 123_456, 999_960, 9_999_999, 3e9, 5e18]
    assert [bytes_text(value, 3) for value in values] == [
        *("0 B", "7 B", "999 B", "1 kB", "1 kB", "12.3 kB", "123 kB", "1 MB", "10 MB"),
        *("3 GB", "5000 PB"),
    ]
    assert (bytes_text(1_500_000), bytes_text(12_345)) == ("1.5 MB", "12.35 kB")
    assert rate_text(258.8e6) == "258.8 MB/s"


def test_binary_text__is_for_powers_of_two() -> None:
    values = (7, 1 << 16, 25 << 20, 1 << 30, 1536)
    assert [binary_text(one) for one in values] == ["7 B", "64 KiB", "25 MiB", "1 GiB", "1.5 KiB"]


def test_bit_rate_text__is_read_back() -> None:
    for text in ("1 Gb/s", "2.5 Tb/s", "8 kb/s", "100 Mb/s"):
        assert bit_rate_text(rate_of(text)) == text


def test_count_text__has_three_digits() -> None:
    assert [count_text(value) for value in (0, 0.25, 12, 12_345)] == ["0", "0.25", "12", "12.3k"]


def test_time_text__from_ns() -> None:
    values = [0, 500, 83_000, 1_200_000, 45e6, 1.2e9, 59e9, 119e9, 121e9, 7200e9, 86_400e9]
    assert [time_text(value, 2) for value in values] == [
        *("0 ns", "500 ns", "83 us", "1.2 ms", "45 ms", "1.2 s", "59 s", "119 s", "2 min"),
        *("2 h", "24 h"),
    ]
    assert (time_text(1_234_000), time_text(-1_500), time_text(999_999)) == (
        *("1.234 ms", "-1.5 us", "1 ms"),
    )
    assert (time_text(math.inf), time_text(math.nan)) == ("inf ns", "nan ns")


def test_time_text__a_rounding_error_is_zero() -> None:
    values = (3.576e-07, -3.576e-07, 1.2e-4, -0.0, 0.25, -0.25)
    assert [time_text(value) for value in values] == [*["0 ns"] * 4, "0.25 ns", "-0.25 ns"]


def test_percent__has_a_place_or_two_digits() -> None:
    values = (0, 0.000_2, 0.004_56, 0.015, 0.5, 0.123_4, 0.999_99, -0.0321, 1e-12)
    assert [percent(value) for value in values] == [
        *("0 %", "0.02 %", "0.46 %", "1.5 %", "50.0 %", "12.3 %", "100.0 %", "-3.2 %", "0 %"),
    ]
    assert [percent(value, 0) for value in values] == [
        *("0 %", "0.02 %", "0.46 %", "1.5 %", "50 %", "12 %", "100 %", "-3.2 %", "0 %"),
    ]
    assert [percent(value, signed=True) for value in (0.1, 0, -0.1)] == [
        *("+10.0 %", "+0 %", "-10.0 %"),
    ]


def test_quantity_text__by_unit() -> None:
    shown = [quantity_text(1500, unit) for unit in ("bytes", "ns", "operations")]
    assert shown == ["1.5 kB", "1.5 us", "1500"]


def test_span_text__names_the_unit_once_if_both_ends_have_it() -> None:
    assert [span_text(power) for power in (0, 1, 9, 10, 16, 19, 20)] == [
        *("0-2 B", "2-4 B", "512 B-1 KiB", "1-2 KiB", "64-128 KiB", "512 KiB-1 MiB", "1-2 MiB")
    ]
