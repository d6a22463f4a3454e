"""The presets `paper`: where they follow the paper and the defaults do not."""

from typing import Any

import pytest

from congestion.registry import find

from .rig import SEGMENT, US, WindowRig


def of_paper(name: str, network: dict[str, float]) -> WindowRig:
    return WindowRig(name, 0, network, **find("window", name).presets["paper"])


def rate_after(rig: WindowRig, now_us: float, rtt_us: float, acked: float, **fields: Any) -> float:
    rig.ack(now_us, acked, rtt_ns=int(rtt_us * US), **fields)
    return float(rig.answer["pacing_bytes_per_s"])


def timely() -> WindowRig:
    """A flow at half of 10 Gb/s with a least RTT of 20 us."""
    return of_paper("timely", {"link_bytes_per_s": 1_250_000_000, "rtt_min_ns": 20 * US})


def test_timely__its_thresholds_are_of_the_whole_rtt() -> None:
    completion = 16_000 / SEGMENT + 1
    assert rate_after(timely(), 1_000, 49, completion) == pytest.approx(625e6 + 1.25e6)
    error = (60 - 50) / 50  # the first sample has no gradient, so the weight is a half
    want = 625e6 * (1 - 0.008 * 0.5 * error) + 0.5 * 1.25e6
    assert rate_after(timely(), 1_000, 60, completion) == pytest.approx(want)


def test_timely__beyond_the_upper_threshold_each_completion_cuts() -> None:
    rig, want = timely(), 625e6
    for step in range(3):  # 100 us apart, in a round trip of 600 us
        want *= 1 - 0.8 * (1 - 500 / 600)
        rate = rate_after(rig, 1_000 + 100 * step, 600, 16_000 / SEGMENT + 1)
        assert rate == pytest.approx(want)


def test_timely__a_part_of_a_completion_changes_nothing() -> None:
    rig = timely()
    assert rate_after(rig, 1_000, 30, 8_000 / SEGMENT) == 625e6
    assert rate_after(rig, 1_100, 30, 8_000 / SEGMENT + 1) > 625e6
