"""Tests sizes, counts, times and shares as text."""

from transport.live.text import count, duration, share, size


def test_text__three_digits_and_a_unit() -> None:
    values = [0, 7, 999, 999.7, 1000, 12_345, 123_456, 9_999_999, 3e9, 5e18]
    assert [size(value) for value in values] == [
        *("0 B", "7 B", "999 B", "1.00 KB", "1.00 KB", "12.3 KB", "123 KB", "10.0 MB"),
        *("3.00 GB", "5000 PB"),
    ]
    assert [count(value) for value in (0, 0.25, 12, 12_345)] == ["0", "0.2", "12", "12.3k"]


def test_text__durations_from_ns() -> None:
    values = [0, 500, 83_000, 1_200_000, 45e6, 1.2e9, 59e9, 119e9, 121e9, 7200e9, 86_400e9]
    assert [duration(value) for value in values] == [
        *("0 us", "0.5 us", "83 us", "1.2 ms", "45 ms", "1.2 s", "59 s", "119 s", "2 min"),
        *("2 h", "24 h"),
    ]


def test_text__shares_in_percent() -> None:
    assert [share(value) for value in (0, 0.000_2, 0.015, 0.5)] == [
        "0 %",
        "0.02 %",
        "1.5 %",
        "50 %",
    ]
