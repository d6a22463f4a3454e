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


def dcqcn(**network: float) -> WindowRig:
    """A flow on a link of 40 Gb/s whose smoothed RTT is longer than the paper's periods."""
    given = {"link_bytes_per_s": 5_000_000_000, "srtt_ns": 200 * US} | network
    return of_paper("dcqcn", given)


def test_dcqcn__marks_count_every_50_us_also_within_a_long_round_trip() -> None:
    rig = dcqcn()
    assert rate_after(rig, 50, 200, 1, marked=1) == pytest.approx(2.5e9)
    assert rate_after(rig, 100, 200, 1, marked=1) == pytest.approx(1.25e9)


def test_dcqcn__alpha_and_the_rate_have_timers_of_their_own() -> None:
    rig = dcqcn()
    rig.params["timer_period_ns"] = 300 * US
    rate_after(rig, 50, 200, 1, marked=1)  # restarts both timers
    rate_after(rig, 50 + 56, 200, 1)
    assert rig.state("alpha") == pytest.approx(255 / 256)
    assert rig.state("timer_stages") == 0
    rate_after(rig, 50 + 301, 200, 1)
    assert rig.state("alpha") == pytest.approx((255 / 256) ** 5)
    assert rig.state("timer_stages") == 1


def test_dcqcn__sent_bytes_move_the_counter() -> None:
    rig = dcqcn()
    rate_after(rig, 1, 200, 1, delivered_bytes=1_000_000, inflight_bytes=8_000_000)
    assert rig.state("byte_stages") == 0
    rate_after(rig, 2, 200, 1, delivered_bytes=2_000_000, inflight_bytes=9_000_000)
    assert (rig.state("byte_stages"), rig.state("unstaged_bytes")) == (1, 1e6)


def test_dcqcn__the_timer_raises_a_rate_that_is_not_used() -> None:
    rig = dcqcn()
    assert rate_after(rig, 50, 200, 1, marked=1) == pytest.approx(2.5e9)
    assert rate_after(rig, 106, 200, 1, app_limited=1) == pytest.approx(3.75e9)


def bbr() -> WindowRig:
    """A flow that cruises at 100 MB/s with an RTT of 100 us, and that has ten rates."""
    rig = of_paper("bbr", {"rand": 0.5})
    rig.flow["mode"], rig.flow["round"], rig.flow["round_ns"] = 2, 10, 1_000 * US
    rig.flow["rates"], rig.flow["best_rate"], rig.flow["rtt_ns"] = 1e8, 1e8, 100 * US
    return rig


def round_trips(rig: WindowRig, first: int, count: int, rate: float, **fields: Any) -> None:
    """Round trips, each of which delivers what a rate gives in 100 us."""
    for step in range(first, first + count):
        delivered = rig.state("round_bytes") + int(rate * 100e-6)
        now_us = 1_000 + 100 * (step + 1)
        rig.tell("on_ack", now_us, acked_segments=1, delivered_bytes=delivered, **fields)


def test_bbr__too_little_sent_lowers_no_rate_but_ages_the_filter() -> None:
    rig = bbr()
    round_trips(rig, 0, 12, 1e7, app_limited=1)
    assert rig.state("best_rate") == 1e8
    round_trips(rig, 12, 1, 1e7)  # acknowledges what was sent while there was little to send
    assert rig.state("best_rate") == 1e8
    round_trips(rig, 13, 1, 6e7)
    assert rig.state("best_rate") == pytest.approx(6e7)


def test_bbr__a_short_lack_of_data_leaves_the_older_rates_in_the_filter() -> None:
    rig = bbr()
    round_trips(rig, 0, 5, 1e7, app_limited=1)
    round_trips(rig, 5, 3, 6e7)
    assert rig.state("best_rate") == 1e8
    round_trips(rig, 8, 2, 6e7)
    assert rig.state("best_rate") == pytest.approx(6e7)
