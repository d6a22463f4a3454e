"""Tests the window policies, interpreted: growth, size and frequency of cuts.

The expected numbers come from the papers.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from congestion.registry import find

from .rig import SEGMENT, US, Rig, WindowRig

EVERY = [
    "aimd",
    "bbr",
    "cubic",
    "dcqcn",
    "dctcp",
    "hpcc",
    "nscc",
    "poseidon",
    "powertcp",
    "strack",
    "swift",
    "timely",
]

# The network for which Ultra Ethernet chose its constants: 100 Gb/s, 12 us, segments of 4 KiB.
REFERENCE = {
    "segment_bytes": 4_096,
    "link_bytes_per_s": 12_500_000_000,
    "rtt_min_ns": 12_000,
    "srtt_ns": 12_000,
    "rtt_ns": 12_000,
}


def swift(window_bytes: float = 200 * SEGMENT) -> Rig:
    rig = Rig(find("window", "swift"))
    rig.call("on_start", window_bytes_max=1 << 24, hint_window_bytes=window_bytes)
    return rig


def ack(rig: Rig, now_us: int, rtt_us: int, acked: int = 10, **more: float) -> float:
    given = {
        "srtt_ns": 100 * US,
        "rtt_min_ns": 50 * US,
        "window_bytes_max": 1 << 24,
        "acked_bytes": acked * SEGMENT,
        "acked_segments": acked,
    }
    answer = rig.call("on_ack", now_ns=now_us * US, rtt_ns=rtt_us * US, **(given | more))
    return float(answer["window_bytes"])


def test_swift__starts_from_the_hint_or_a_quarter() -> None:
    rig = Rig(find("window", "swift"))
    assert rig.call("on_start", window_bytes_max=1 << 24)["window_bytes"] == 1 << 22
    hinted = rig.call("on_start", window_bytes_max=1 << 24, hint_window_bytes=3e6)
    assert hinted["window_bytes"] == 3e6


def test_swift__grows_by_its_increase_once_per_window_acknowledged() -> None:
    rig = swift(200 * SEGMENT)
    window = ack(rig, 1_000, 60, acked=200)
    assert window == pytest.approx((200 + 4) * SEGMENT)


def test_swift__cuts_once_per_round_trip() -> None:
    rig = swift(1_600 * SEGMENT)
    windows = [ack(rig, 10_000 + 10 * step, 2_000) for step in range(41)]
    cuts = sum(later < earlier for earlier, later in itertools.pairwise(windows))
    assert windows[0] < 1_600 * SEGMENT
    assert cuts == 4  # one per RTT of 100 us, in 400 us


def test_swift__cuts_by_the_excess_and_at_most_by_half() -> None:
    slight, heavy = swift(), swift()
    assert ack(slight, 10_000, 200) > 0.8 * 200 * SEGMENT
    assert ack(heavy, 10_000, 100_000) == 100 * SEGMENT


def test_swift__one_late_sample_is_noise() -> None:
    rig = swift()
    ack(rig, 10_000, 60)
    before = ack(rig, 10_010, 60)
    assert ack(rig, 10_020, 5_000) > before


def test_swift__does_not_grow_without_demand_and_knows_no_marks() -> None:
    rig = swift()
    assert ack(rig, 10_000, 60, app_limited=1) == 200 * SEGMENT
    assert ack(rig, 10_010, 60, ecn_segments=1) == ack(swift(), 10_010, 60) > 200 * SEGMENT


def lose(rig: Rig, now_us: int, segments: int) -> float:
    return float(
        rig.call(
            "on_loss",
            now_ns=now_us * US,
            srtt_ns=100 * US,
            rtt_min_ns=50 * US,
            lost_bytes=segments * SEGMENT,
            lost_segments=segments,
            window_bytes_max=1 << 24,
        )["window_bytes"]
    )


def test_swift__tolerates_corruption_and_cuts_once_on_congestion() -> None:
    rig = swift()
    assert lose(rig, 10_000, 2) == 200 * SEGMENT
    assert lose(rig, 10_010, 90) == 100 * SEGMENT
    assert lose(rig, 10_020, 90) == 100 * SEGMENT
    assert lose(rig, 10_150, 90) == 50 * SEGMENT


def test_swift__does_not_collapse_under_scheduling_noise() -> None:
    """Noise as on loopback: RTTs of 50 to 500 us without any queue do not shrink the window."""
    rig, draw, now_us, window = swift(32 * SEGMENT), random.Random(5), 10_000, 0.0
    for _ in range(3_000):
        now_us += 35
        window = ack(rig, now_us, draw.randint(50, 500), acked=8, srtt_ns=275 * US)
    assert window > 100 * SEGMENT


def test_swift__holds_the_queue_near_its_target() -> None:
    """On a link of 3 GB/s with 50 us, swift keeps the queueing delay between 50 and 200 us."""
    rig, now_us, window, queue_us = swift(1_000 * SEGMENT), 10_000.0, 1_000.0 * SEGMENT, 0.0
    for _ in range(4_000):
        queue_us = max(window / 3_000 - 50, 0.0)
        now_us += 8 * SEGMENT / 3_000
        rtt_us = int(50 + queue_us)
        window = ack(rig, int(now_us), rtt_us, acked=8, srtt_ns=rtt_us * US)
    assert 50 < queue_us < 200


def test_swift__repeated_timeouts_end_at_the_least_window() -> None:
    rig = swift()
    fields = {"srtt_ns": 100 * US, "window_bytes_max": 1 << 24}
    windows = [
        rig.call("on_timeout", now_ns=(10_000 + 1_000 * i) * US, **fields)["window_bytes"]
        for i in range(3)
    ]
    assert windows == [200 * SEGMENT, 100 * SEGMENT, 16 * SEGMENT]


@given(
    st.lists(
        st.tuples(st.integers(0, 10**7), st.integers(0, 10**8), st.integers(0, 500)), max_size=40
    )
)
def test_swift__stays_between_its_limits(steps: list[tuple[int, int, int]]) -> None:
    rig, now_ns = swift(), 10**9
    for gap_ns, rtt_ns, acked in steps:
        now_ns += gap_ns
        window = rig.call(
            "on_ack",
            now_ns=now_ns,
            rtt_ns=rtt_ns,
            srtt_ns=rtt_ns,
            rtt_min_ns=20_000,
            acked_bytes=acked * SEGMENT,
            window_bytes_max=1 << 24,
        )["window_bytes"]
        assert 16 * SEGMENT <= window <= 1 << 24


@pytest.mark.parametrize("name", ["aimd", "dctcp", "cubic"])
def test_reno_like__slow_start_doubles_from_ten_segments(name: str) -> None:
    rig = WindowRig(name)
    assert rig.start == 10
    assert rig.ack(1_000, 10) == 20
    assert rig.ack(1_100, 20) == 40
    assert rig.ack(1_200, 40, app_limited=1) == 40


@pytest.mark.parametrize(("name", "segments"), [("aimd", 101), ("dctcp", 101), ("cubic", 101)])
def test_reno_like__one_segment_a_round_trip_after_another_policy(
    name: str, segments: float
) -> None:
    assert WindowRig(name, 100).ack(1_000, 100) == pytest.approx(segments)


@pytest.mark.parametrize(("name", "left"), [("aimd", 0.5), ("dctcp", 0.5), ("cubic", 0.7)])
def test_reno_like__a_loss_cuts_once_per_round_trip(name: str, left: float) -> None:
    rig = WindowRig(name, 100)
    assert rig.lose(1_000) == pytest.approx(100 * left)
    assert rig.lose(1_099) == pytest.approx(100 * left)
    assert rig.lose(1_100) == pytest.approx(100 * left * left)


@pytest.mark.parametrize("name", ["aimd", "cubic"])
def test_reno_like__a_mark_counts_as_a_loss(name: str) -> None:
    marked, lost = WindowRig(name, 100), WindowRig(name, 100)
    assert marked.ack(1_000, 10, marked=1) == lost.lose(1_000)


@pytest.mark.parametrize("name", ["aimd", "dctcp", "cubic"])
def test_reno_like__the_second_timeout_in_a_row_ends_at_two_segments(name: str) -> None:
    rig = WindowRig(name, 100)
    assert rig.tell("on_timeout", 10_000) in (50, pytest.approx(70))
    assert rig.tell("on_timeout", 20_000) == 2
    rig.ack(30_000, 2)
    assert rig.tell("on_timeout", 40_000) >= 2


def test_dctcp__alpha_follows_the_share_of_marks_by_a_sixteenth_a_round_trip() -> None:
    rig = WindowRig("dctcp", 100)
    assert rig.state("alpha") == 1.0
    for round_trip in range(16):
        rig.ack(1_000 + 100 * round_trip, 10)
    assert rig.state("alpha") == pytest.approx(0.356, abs=1e-3)  # = (15/16) ** 16
    for round_trip in range(100):
        rig.ack(3_000 + 100 * round_trip, 100, marked=25)
    assert rig.state("alpha") == pytest.approx(0.25, abs=1e-3)


def test_dctcp__cuts_by_half_of_alpha() -> None:
    rig = WindowRig("dctcp", 100)
    assert rig.ack(1_000, 100, marked=100) == pytest.approx(50)  # alpha is 1 at the start
    rig = WindowRig("dctcp", 1_000)
    for round_trip in range(200):
        rig.flow["window_bytes"] = 1_000 * SEGMENT
        rig.ack(1_000 + 100 * round_trip, 100, marked=25)
    rig.flow["window_bytes"] = 1_000 * SEGMENT
    assert rig.ack(50_000, 100, marked=25) == pytest.approx(875, rel=1e-3)


SLOW = {"rtt_ns": 200_000 * US, "srtt_ns": 200_000 * US, "rtt_min_ns": 200_000 * US}


def curve(rig: WindowRig, until_s: float, since_s: float = 0.0) -> float:
    """Acknowledges a full window every 200 ms until `until_s` after the cut; returns the window."""
    window = 0.0
    for step in range(round(since_s * 5) + 1, round(until_s * 5) + 1):
        window = rig.ack(1e6 + step * 2e5, rig.flow["window_bytes"][0] / SEGMENT)
    return window


def test_cubic__passes_the_points_of_its_curve() -> None:
    """After a cut from 100 to 70 segments, the window is 100 again after cbrt(30 / 0.4) s."""
    rig = WindowRig("cubic", 100, SLOW)
    assert rig.lose(1e6) == pytest.approx(70)
    assert rig.state("origin_s") == pytest.approx(4.217, abs=1e-3)
    # Expected is the cubic function one RTT later: 100 + 0.4 * (t + 0.2 - 4.217) ** 3.
    assert curve(rig, 2.0) == pytest.approx(96.72, abs=0.1)
    assert curve(rig, 4.0, 2.0) == pytest.approx(100.0, abs=0.1)
    assert curve(rig, 7.0, 4.0) == pytest.approx(110.6, abs=0.2)


def test_cubic__a_lower_peak_gives_way_by_fast_convergence() -> None:
    rig = WindowRig("cubic", 100, SLOW)
    rig.lose(1e6)
    rig.lose(2e6)  # at a window of 70 segments, below the old peak of 100
    assert rig.state("peak_bytes") == pytest.approx(0.85 * 70 * SEGMENT)


def test_cubic__is_reno_where_round_trips_are_short() -> None:
    rig = WindowRig("cubic", 100)
    rig.lose(1_000)
    # RFC 9438: in a round trip, W_est grows by alpha = 3 * (1 - beta) / (1 + beta); beta is 0.7.
    assert rig.ack(1_100, 70) == pytest.approx(70 + 9 / 17, abs=1e-3)
    for step in range(60):
        rig.ack(1_200 + 100 * step, rig.flow["window_bytes"][0] / SEGMENT)
    before = rig.flow["window_bytes"][0] / SEGMENT
    assert before > 100
    assert rig.ack(9_000, before) == pytest.approx(before + 1, abs=1e-2)


def test_cubic__idle_time_is_not_on_the_curve() -> None:
    rig = WindowRig("cubic", 100, SLOW)
    rig.lose(1e6)
    rig.ack(1e6 + 1e5, 10)
    rig.ack(1e6 + 9e6, 10, app_limited=1)
    assert rig.ack(1e6 + 9.1e6, 10) < 85


def nscc(window_bytes: float, **params: float) -> WindowRig:
    return WindowRig("nscc", window_bytes / 4_096, REFERENCE, rtt_ns_min=0, hold_ns=0, **params)


def gain(rig: WindowRig, acked: float, rtt_us: float, marked: int = 0) -> float:
    """The bytes that one acknowledgment adds to the window, without the constant increase."""
    before = float(rig.flow["window_bytes"][0])
    rig.flow["steady_ns"] = 1 << 61
    return rig.ack(1_000, acked / 4_096, marked, rtt_ns=int(rtt_us * US)) * 4_096 - before


def test_nscc__starts_with_one_and_a_half_products() -> None:
    rig = WindowRig("nscc", 0, REFERENCE, rtt_ns_min=0, hold_ns=0)
    assert rig.start * 4_096 == 225_000  # 1.5 times 100 Gb/s * 12 us


def test_nscc__without_marks_below_the_target_it_grows_with_the_room() -> None:
    assert gain(nscc(98_304), 98_304, 18) == pytest.approx(4 * 4_096 / 2)
    assert gain(nscc(98_304), 98_304, 15) == pytest.approx(4 * 4_096 * 3 / 4)


def test_nscc__without_marks_above_the_target_it_grows_fairly() -> None:
    assert gain(nscc(98_304), 98_304, 30) == pytest.approx(5 * 4_096)


def test_nscc__marks_below_the_target_change_nothing() -> None:
    assert gain(nscc(98_304), 98_304, 18, marked=24) == 0


def test_nscc__marks_above_the_target_cut_by_the_excess_once_per_round_trip() -> None:
    for rtt_us, left in ((30, 1 - 0.8 * 6 / 18), (120, 0.5)):
        rig = nscc(200_000)
        rig.flow["delay_ns"] = (rtt_us - 12) * US  # the value after a long time at this RTT
        fields = {"rtt_ns": rtt_us * US, "srtt_ns": rtt_us * US, "app_limited": 1}
        assert rig.ack(1_000, 4, 4, **fields) * 4_096 == pytest.approx(200_000 * left)
        assert rig.ack(1_010, 4, 4, **fields) * 4_096 == pytest.approx(200_000 * left)


def test_nscc__a_window_without_delay_starts_the_fast_increase() -> None:
    rig = nscc(81_920)
    assert gain(rig, 81_920, 12) == pytest.approx(4 * 4_096)
    assert gain(rig, 40_960, 12) == pytest.approx(40_960 / 4)


def test_nscc__the_constant_increase_comes_once_per_round_trip() -> None:
    rig = nscc(100_000)
    marked = {"rtt_ns": 18 * US}
    assert rig.ack(1_000, 24, 24, **marked) * 4_096 == pytest.approx(100_000 + 0.15 * 4_096)
    assert rig.ack(1_006, 24, 24, **marked) * 4_096 == pytest.approx(100_000 + 0.15 * 4_096)
    assert rig.ack(1_012, 24, 24, **marked) * 4_096 == pytest.approx(100_000 + 0.3 * 4_096)


def test_nscc__after_a_collapse_the_window_is_what_came_through() -> None:
    rig = nscc(200_000)
    rig.ack(1_000, 1)  # starts the period in which delivered bytes are counted
    rig.lose(1_005)
    window = rig.ack(1_025, 5, inflight_bytes=100_000) * 4_096
    assert window == pytest.approx(5 * 4_096)  # the bytes delivered in 24 us
    fields = {"rtt_ns": 100 * US}
    for step in range(20):  # marks of segments sent before the cut do not cut again
        assert rig.ack(1_026 + step, 1, 1, **fields) * 4_096 == pytest.approx(5 * 4_096)


def test_nscc__a_loss_takes_its_bytes_and_no_more_when_enough_came_through() -> None:
    rig = nscc(200_000)
    rig.ack(1_000, 1)
    before = rig.flow["window_bytes"][0]
    assert rig.lose(1_005, 2) * 4_096 == pytest.approx(before - 2 * 4_096)
    assert rig.ack(1_025, 50) * 4_096 > 190_000


def test_nscc__an_idle_flow_does_not_collapse() -> None:
    rig = nscc(200_000)
    rig.ack(1_000, 1)
    rig.lose(1_005)
    assert rig.ack(1_025, 1, app_limited=1) * 4_096 > 190_000


@pytest.mark.parametrize("name", EVERY)
def test_windows__never_below_two_segments_nor_above_the_cap(name: str) -> None:
    rig = WindowRig(name, 100, {"window_bytes_max": 200 * SEGMENT})
    for step in range(100):
        assert rig.lose(1_000 + 1_000 * step, 50) >= 2
    for step in range(4_000):
        assert rig.ack(200_000 + 100 * step, 200) <= 200


@pytest.mark.parametrize("name", EVERY)
def test_windows__a_hint_that_is_no_number_is_ignored(name: str) -> None:
    assert WindowRig(name, float("nan")).start == WindowRig(name).start


def timely(queue_us: float) -> WindowRig:
    """A flow of timely at half of 10 Gb/s, RTT 20 us; `queue_us`: the previous delay sample."""
    network = {"link_bytes_per_s": 1_250_000_000, "rtt_min_ns": 20 * US, "srtt_ns": 20 * US}
    rig = WindowRig("timely", 0, network)
    rig.flow["paths"][0, 0] = 1
    rig.flow["queues_ns"][0, 0] = queue_us * US
    rig.flow["sampled_ns"][0, 0] = 980 * US
    return rig


def test_timely__compares_samples_of_one_path_over_the_time_between_them() -> None:
    rig = timely(100)
    rate_after(rig, 120, path=1)  # the path's first sample gives no gradient
    assert rig.state("difference_ns") == 0.0
    rate_after(rig, 140, 1_040)
    # The queueing delay grew by 20 us in the three round trips between the samples.
    assert rig.state("difference_ns") == pytest.approx(0.875 * 20 * US / 3)


def rate_after(rig: WindowRig, rtt_us: float, now_us: float = 1_000, **fields: Any) -> float:
    rig.ack(now_us, 10, rtt_ns=int(rtt_us * US), **fields)
    return float(rig.answer["pacing_bytes_per_s"])


def test_timely__below_the_lower_threshold_it_adds_a_thousandth_of_the_link() -> None:
    assert rate_after(timely(0), 60) == pytest.approx(625e6 + 1.25e6)
    assert rate_after(timely(0), 60, app_limited=1) == 625e6


def test_timely__beyond_the_upper_threshold_it_cuts_by_the_excess_once_a_round_trip() -> None:
    rig = timely(600)
    want = 625e6 * (1 - 0.8 * (1 - 520 / 620))
    assert rate_after(rig, 620, srtt_ns=620 * US) == pytest.approx(want)
    assert rate_after(rig, 620, 1_100, srtt_ns=620 * US) == pytest.approx(want)


@pytest.mark.parametrize(
    ("before_us", "weight"),
    [(100, 0.5), (90, 1.0), (110, 0.0), (98, 0.5 + 2 * 0.875 * 2 / 20)],
)
def test_timely__between_them_the_gradient_weighs_the_error(
    before_us: float, weight: float
) -> None:
    error = (120 - 70) / 70
    want = 625e6 * (1 - 0.008 * weight * error) + 1.25e6 * (1 - weight)
    assert rate_after(timely(before_us), 120) == pytest.approx(want)


def test_timely__updates_once_per_least_round_trip() -> None:
    rig = timely(0)
    first = rate_after(rig, 30)
    assert rate_after(rig, 30, 1_019) == first
    assert rate_after(rig, 30, 1_020) > first


def dcqcn() -> WindowRig:
    """A flow of dcqcn on a link of 40 Gb/s, with an RTT far shorter than dcqcn's periods."""
    return WindowRig("dcqcn", 0, {"link_bytes_per_s": 5_000_000_000, "srtt_ns": 5 * US})


def test_dcqcn__starts_at_line_rate_and_the_first_mark_halves_it() -> None:
    rig = dcqcn()
    assert rig.answer["pacing_bytes_per_s"] == 5e9
    assert rate_after(rig, 5, 50, marked=1) == pytest.approx(2.5e9)
    assert rate_after(rig, 5, 99, marked=1) == pytest.approx(2.5e9)  # one mark in 50 us counts
    assert rate_after(rig, 5, 100, marked=1) == pytest.approx(1.25e9)


def test_dcqcn__recovers_by_halves_then_adds_a_thousandth() -> None:
    rig = dcqcn()
    rate_after(rig, 5, 0)
    rig.flow["target_rate"], rig.flow["rate"], rig.flow["timer_ns"] = 2e9, 1e9, 0
    rates = [rate_after(rig, 5, 55 * stage) for stage in range(1, 6)]
    assert rates[:4] == pytest.approx([1.5e9, 1.75e9, 1.875e9, 1.9375e9])
    assert rates[4] == pytest.approx((2.005e9 + 1.9375e9) / 2)


def test_dcqcn__far_from_the_last_mark_it_adds_more_and_more() -> None:
    rig = dcqcn()
    rig.flow["target_rate"], rig.flow["rate"], rig.flow["timer_ns"] = 2e9, 2e9, 0
    rig.flow["timer_stages"], rig.flow["byte_stages"] = 6, 7
    assert rate_after(rig, 5, 55) == pytest.approx((2e9 + 2.1e9) / 2)  # R_HAI: 2 * 1 % of the link


def test_dcqcn__alpha_decays_by_a_256th_each_period_also_for_periods_without_events() -> None:
    rig = dcqcn()
    rate_after(rig, 5, 55)
    assert rig.state("alpha") == pytest.approx(255 / 256)
    rate_after(rig, 5, 55 * 11)
    assert rig.state("alpha") == pytest.approx((255 / 256) ** 11)


def test_dcqcn__the_byte_counter_is_a_stage_every_ten_megabytes() -> None:
    rig = dcqcn()
    rig.flow["target_rate"], rig.flow["rate"] = 2e9, 1e9
    rig.ack(10, 10e6 / SEGMENT - 1)
    assert rig.answer["pacing_bytes_per_s"] == 1e9
    rig.ack(11, 2)
    assert rig.answer["pacing_bytes_per_s"] == 1.5e9


class Pipe:
    """bbr on a link of 1 GB/s, 100 us: a round trip delivers a window, at most 100 KB."""

    def __init__(self) -> None:
        self.rig = WindowRig("bbr")
        self.now_us, self.delivered, self.window = 0.0, 0, self.rig.start * SEGMENT

    def round_trip(self, rtt_us: float = 100, **fields: Any) -> float:
        """Plays one round trip; returns the pacing rate divided by the link's."""
        self.now_us += 100
        self.delivered += int(min(self.window, 100_000))
        more = {"delivered_bytes": self.delivered, "rtt_ns": int(rtt_us * US)} | fields
        self.window = self.rig.ack(self.now_us, 10, **more) * SEGMENT
        return float(self.rig.answer["pacing_bytes_per_s"]) / 1e9


def test_bbr__starts_up_drains_and_cruises() -> None:
    pipe = Pipe()
    gains = [pipe.round_trip(inflight_bytes=200_000) for _ in range(6)]
    assert gains[:3] == pytest.approx([2.885] * 3)  # STARTUP lasts three round trips
    assert gains[3:] == pytest.approx([1 / 2.885] * 3)
    cycle = [pipe.round_trip(inflight_bytes=90_000) for _ in range(16)]
    assert sorted(cycle[:8]) == pytest.approx([0.75, *[1.0] * 6, 1.25])
    assert cycle[8:] == pytest.approx(cycle[:8])
    assert pipe.window == pytest.approx(2 * 100_000 + 60_000)


def test_bbr__the_rate_is_the_highest_of_ten_round_trips() -> None:
    pipe = Pipe()
    for _ in range(12):
        pipe.round_trip(inflight_bytes=90_000)
    pipe.delivered += 50_000
    pipe.round_trip()
    assert pipe.rig.state("best_rate") == pytest.approx(1.5e9)
    for _ in range(9):
        pipe.round_trip()
    assert pipe.rig.state("best_rate") == pytest.approx(1.5e9)
    pipe.round_trip()
    assert pipe.rig.state("best_rate") == pytest.approx(1e9)


def test_bbr__too_little_to_send_is_no_low_rate() -> None:
    pipe = Pipe()
    pipe.round_trip()
    for _ in range(30):
        pipe.window = 10_000
        pipe.round_trip(app_limited=1)
    assert pipe.rig.state("best_rate") == pytest.approx(1e9)


def test_bbr__looks_for_the_round_trip_when_it_has_not_seen_it_for_long() -> None:
    pipe = Pipe()
    for _ in range(12):
        pipe.round_trip(inflight_bytes=90_000)
    pipe.now_us += 4_000
    pipe.round_trip(rtt_us=150)
    assert pipe.rig.state("rtt_ns") == 100 * US  # the minimum RTT is valid for 5 ms
    pipe.now_us += 1_500
    pipe.round_trip(rtt_us=150)
    assert pipe.rig.state("rtt_ns") == 150 * US
    assert pipe.window <= 4 * SEGMENT  # PROBE_RTT drains the queue, with 4 segments in flight
    for _ in range(8):
        pipe.round_trip(rtt_us=90)
    assert pipe.window == pytest.approx(2 * 90_000 + 60_000, rel=0.01)


def test_bbr__a_loss_while_it_looks_for_the_round_trip_lowers_nothing() -> None:
    pipe = Pipe()
    for _ in range(12):
        pipe.round_trip(inflight_bytes=90_000)
    before = pipe.window
    pipe.now_us += 5_500
    pipe.round_trip(rtt_us=100.5)
    assert pipe.window <= 4 * SEGMENT
    for _ in range(2):
        pipe.rig.lose(pipe.now_us, 20)
        pipe.round_trip(inflight_bytes=4 * SEGMENT)
    assert pipe.rig.state("bound_bytes") == 0.0
    pipe.round_trip(inflight_bytes=90_000)
    assert pipe.window == pytest.approx(before, rel=0.05)


def test_bbr__losses_are_a_share_of_what_was_in_flight() -> None:
    pipe = Pipe()
    for _ in range(12):
        pipe.round_trip(inflight_bytes=90_000)
    pipe.rig.lose(pipe.now_us, 1)  # 1 of 22 segments is too few to count
    pipe.round_trip(inflight_bytes=90_000)
    assert pipe.rig.state("bound_bytes") == 0.0
    before = pipe.rig.state("window_bytes")
    pipe.rig.lose(pipe.now_us, 8)
    pipe.round_trip(inflight_bytes=90_000)
    assert pipe.rig.state("bound_bytes") == pytest.approx(0.7 * before, rel=0.01)


def test_bbr__cruises_at_the_rate_of_the_policy_that_it_replaces() -> None:
    rig = WindowRig("bbr", 50, {"delivered_bytes": 1 << 40, "rand": 0.5})
    rate = 50 * SEGMENT / 100e-6
    assert rig.answer["pacing_bytes_per_s"] == pytest.approx(rate)
    rig.ack(100, 50, delivered_bytes=(1 << 40) + 50 * SEGMENT)
    assert rig.state("best_rate") == pytest.approx(rate)


def test_dcqcn__the_rest_of_a_stage_counts_for_the_next() -> None:
    rig = dcqcn()
    rig.tell("on_ack", 1, acked_bytes=14_000_000)
    assert (rig.state("byte_stages"), rig.state("unstaged_bytes")) == (1, 4e6)
    rig.tell("on_ack", 2, acked_bytes=6_000_000)
    assert (rig.state("byte_stages"), rig.state("unstaged_bytes")) == (2, 0.0)


def test_swift__a_host_that_holds_acknowledgments_has_a_window_of_its_own() -> None:
    rig = swift()
    ack(rig, 10_000, 60, ack_delay_ns=30 * US)  # the normal acknowledgment delay
    before = ack(rig, 10_100, 60, ack_delay_ns=200 * US)
    assert before > 200 * SEGMENT  # no cut: the minimum delay was short until now
    window = ack(rig, 10_200, 60, ack_delay_ns=200 * US)
    assert window == pytest.approx(before * (1 - 0.8 * (200 - 100) / 200))
    assert rig.flow["window_bytes"][0] > before
    for step in range(100):
        window = ack(rig, 10_400 + 100 * step, 60, acked=int(window / SEGMENT))
    assert window > 250 * SEGMENT
