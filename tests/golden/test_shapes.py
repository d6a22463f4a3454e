"""Tests that the committed traces have the shapes that the papers describe.

Plots of the traces are in docs/golden; README.md describes the shapes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from . import traces
from .tables import names

SEGMENT = 4_160
NS_PER_BYTE = 0.8  # time per byte on the link of the standard traces

Array = np.ndarray[Any, Any]


def part(stage: str, column: str, from_ms: float, until_ms: float) -> Array:
    columns = traces.read(stage)
    ms = columns["at_us"] / 1e3
    return columns[column][(ms >= from_ms) & (ms < until_ms)]


def share(stage: str, flow: int, from_ms: float, until_ms: float) -> float:
    """Bytes that the flow delivered, as a share of the link's capacity."""
    delivered = part(stage, f"delivered_{flow}", from_ms, until_ms)
    steps = len(delivered) - 1
    return float((delivered[-1] - delivered[0]) * NS_PER_BYTE / (steps * traces.SAMPLE_NS))


def queue_us(stage: str, from_ms: float, until_ms: float) -> Array:
    return part(stage, "queue", from_ms, until_ms) * NS_PER_BYTE / 1e3


def cuts(window: Array, least: float = 0.02) -> list[tuple[int, float]]:
    """The samples after which the window fell, with the ratio of the window after to before."""
    left = window[1:] / window[:-1]
    return [(int(at), float(left[at])) for at in np.flatnonzero(left < 1 - least)]


CONTROLLED = [name for name in names("window") if name != "fixed"]


@pytest.mark.parametrize("name", CONTROLLED)
def test_standard__a_newcomer_gets_its_share_and_gives_it_back(name: str) -> None:
    stage = f"standard_{name}"
    assert share(stage, 0, 10, 20) >= 0.8
    for flow in (0, 1):
        assert 0.3 <= share(stage, flow, 40, 60) <= 0.65
        assert 0.3 <= share(stage, flow, 70, 85) <= 0.65  # after the burst of losses
    columns = traces.read(stage)
    left_ms = columns["at_us"][np.argmax(columns["delivered_1"])] / 1e3
    assert 85 <= left_ms <= 135
    assert share(stage, 0, left_ms + 12, left_ms + 22) >= 0.8


def test_standard__fixed_fills_the_queue_whatever_happens() -> None:
    assert set(part("standard_fixed", "window_0", 1, 150)) == {4 << 20}
    assert queue_us("standard_fixed", 5, 150).max() > 800


def test_aimd__saws_between_a_window_and_its_half() -> None:
    window = part("wide_aimd", "window_0", 2_000, 60_000) / SEGMENT
    falls = cuts(window)
    assert len(falls) >= 2
    for _, left in falls:
        assert left == pytest.approx(0.5, abs=0.02)
    climb = window[falls[0][0] + 2 : falls[1][0]]  # growth between two cuts: linear
    line = np.polyval(np.polyfit(np.arange(len(climb)), climb, 1), np.arange(len(climb)))
    assert np.abs(climb - line).max() < 0.02 * climb.max()
    small = part("standard_aimd", "window_0", 10, 20)
    assert 0.4 <= small.min() / small.max() <= 0.6


def test_cubic__is_concave_to_its_old_peak_and_convex_beyond() -> None:
    window = part("wide_cubic", "window_0", 2_000, 60_000) / SEGMENT
    falls = cuts(window, 0.1)
    assert len(falls) >= 3
    for _, left in falls:
        assert left == pytest.approx(0.7, abs=0.03)
    longest = max(((b - a, a, b) for (a, _), (b, _) in pairwise(falls)))
    first, second = longest[1] + 2, longest[2]
    slope = np.diff(window[first:second])
    third = len(slope) // 3
    early, middle, late = (float(slope[i * third : (i + 1) * third].mean()) for i in range(3))
    assert early > 3 * middle  # growth slows down up to the plateau
    assert late > 3 * middle  # growth speeds up after the plateau
    assert float(slope.min()) >= 0


def test_dctcp__saws_little_and_holds_the_queue_at_the_mark() -> None:
    window = part("standard_dctcp", "window_0", 10, 20)
    assert window.min() / window.max() > 0.9  # small cuts; for aimd the ratio is 0.5
    assert share("standard_dctcp", 0, 10, 20) > 0.95
    delay = queue_us("standard_dctcp", 10, 20)
    assert 30 <= delay.mean() <= 55  # in us; ECN marking begins at a queueing delay of 52 us
    assert delay.min() > 10


def test_swift__settles_at_its_target_and_scales_it_with_the_flows() -> None:
    alone, two = queue_us("standard_swift", 10, 20), queue_us("standard_swift", 45, 60)
    # The target delay is twice the minimum RTT of 50 us, and more for smaller windows.
    assert 100 <= alone.mean() < two.mean() <= 300
    assert alone.std() < 0.2 * alone.mean()
    assert two.std() < 0.2 * two.mean()


def test_timely__settles_between_its_thresholds() -> None:
    delay = queue_us("standard_timely", 95, 118)
    assert 50 < delay.mean() < 500
    assert delay.std() < 0.25 * delay.mean()
    rates = [part("standard_timely", f"pacing_{flow}", 95, 118).mean() for flow in (0, 1)]
    assert rates[0] == pytest.approx(rates[1], rel=0.1)


def test_dcqcn__is_cut_less_and_less_and_climbs_back_by_halves() -> None:
    rate = part("standard_dcqcn", "pacing_0", 7, 20)
    falls = cuts(rate, 0.2)
    assert len(falls) >= 4
    left = [one for _, one in falls]
    assert left[0] < 0.7
    assert left[-1] > left[0] + 0.05  # later cuts are smaller: alpha decays while marks are rare
    for at, _ in falls[:4]:
        # Fast recovery regains half of the lost rate every 105 us. The time from
        # a cut to the next sample varies, so the bound is loose.
        lost, regained = rate[at] - rate[at + 1], rate[at + 3] - rate[at + 1]
        assert regained > 0.4 * lost
        assert rate[at + 5] - rate[at + 4] < 0.5 * regained  # then it grows linearly


def test_nscc__keeps_delay_near_one_round_trip() -> None:
    delay = queue_us("standard_nscc", 10, 20)
    assert 30 <= delay.mean() <= 100
    assert share("standard_nscc", 0, 10, 20) > 0.95


def test_bbr__cycles_through_its_gains_and_drains_for_the_round_trip() -> None:
    rate = part("standard_bbr", "pacing_0", 12, 20)
    levels = np.median(rate)
    assert np.any(np.isclose(rate, 1.25 * levels, rtol=0.05))
    assert np.any(np.isclose(rate, 0.75 * levels, rtol=0.05))
    assert np.isclose(rate, levels, rtol=0.03).mean() > 0.5
    window = part("standard_bbr", "window_0", 5, 20) / SEGMENT
    assert window.min() < 6 < 40 < np.median(window)
