"""Tests how often to save, and goodput, by hand."""

import math

import pytest

from transport.estimate.failures import Failures


def test_failures__intervals_of_young_and_daly() -> None:
    """A save of 50 s, a failure every 10,000 s: sqrt(2 x 50 x 10,000) = 1,000 s."""
    one = Failures(10_000.0, 50.0, 0.0)
    assert one.young_s == pytest.approx(1_000.0)
    # save / (2 mtbf) = 1 / 400, whose root is 1 / 20: 1,000 (1 + 1 / 60 + 1 / 3,600) - 50.
    assert one.daly_s == pytest.approx(1_000 * (1 + 1 / 60 + 1 / 3_600) - 50)
    assert Failures(10.0, 20.0, 0.0).daly_s == 10.0


def test_failures__goodput() -> None:
    one = Failures(10_000.0, 50.0, 1_000.0)
    expected = 0.095 / (math.exp(0.1) * (math.exp(0.1) - 1))
    assert one.goodput(950.0) == pytest.approx(expected)
    assert one.goodput(one.daly_s) >= max(one.goodput(800.0), one.goodput(1_200.0))
    assert Failures(0.001, 50.0, 1_000.0).goodput(1.0) == 0.0
