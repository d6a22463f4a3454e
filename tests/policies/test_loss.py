"""Tests the loss policies, interpreted: lost segments, timers, probes. Numbers are from papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from congestion.registry import find, policies

from .rig import SEGMENT, US, Rig

EVERY = [name for family, name in policies() if family == "loss"]


def loss(name: str) -> Rig:
    return Rig(find("loss", name), 4)


def tell(rig: Rig, now_us: float, hook: str = "on_ack", **fields: Any) -> Mapping[str, Any]:
    """Calls a hook, with times in us: an RTT of 100 us and a timeout of 1 ms, on path 1."""
    usual: dict[str, Any] = {
        "path": 1,
        "rtt_min_ns": 80 * US,
        "srtt_ns": 100 * US,
        "rto_ns": 1_000 * US,
    }
    usual |= {"acked_segments": 1, "window_bytes": 100 * SEGMENT, "probed_sent_ns": -1}
    times = {"newest_acked": -1, "oldest_inflight": -1, "newest_inflight": -1} | {
        name: fields.pop(name) for name in list(fields) if name.endswith(("acked", "inflight"))
    }
    sent = {f"{name}_sent_ns": int(us * US) if us >= 0 else -1 for name, us in times.items()}
    return rig.call(hook, now_ns=int(now_us * US), **(usual | sent | fields))


@pytest.mark.parametrize("name", [name for name in EVERY if name != "rack"])
def test_loss__a_tail_ends_by_the_timeout(name: str) -> None:
    rig = loss(name)
    tail: dict[str, Any] = {"oldest_inflight": 9_000, "newest_inflight": 9_040}
    assert tell(rig, 9_900, **tail)["lost_sent_before_ns"] == -1
    assert tell(rig, 9_999, "on_timer", **tail)["lost_sent_before_ns"] <= 9_000 * US
    assert tell(rig, 10_050, "on_timer", **tail)["lost_sent_before_ns"] > 9_040 * US


@pytest.mark.parametrize("name", EVERY)
def test_loss__order_is_no_loss(name: str) -> None:
    rig = loss(name)
    for step in range(50):
        fields: dict[str, Any] = {"newest_acked": 9_900 + step, "oldest_inflight": 9_901 + step}
        answer = tell(rig, 10_000 + step, **fields, newest_inflight=9_990 + step)
        assert answer["lost_sent_before_ns"] <= (9_900 + step) * US
        assert answer["lost_below_seq"] == -1


@pytest.mark.parametrize("name", ["go_back_n", "selective", "sleek"])
def test_loss__a_timeout_of_the_oldest_gives_up_the_flight(name: str) -> None:
    """The timeout of the oldest segment on a dead path declares all segments in flight lost."""
    flight: dict[str, Any] = {"oldest_inflight": 9_000, "newest_inflight": 9_990}
    answer = tell(loss(name), 10_000, "on_timer", **flight)
    assert answer["lost_sent_before_ns"] == 9_990 * US + 1


def test_go_back_n__a_hole_costs_the_whole_flight_of_its_path() -> None:
    rig = loss("go_back_n")
    answer = tell(rig, 10_000, newest_acked=9_900, oldest_inflight=9_899, newest_inflight=9_990)
    assert answer["lost_sent_before_ns"] == 9_990 * US + 1


def test_selective__three_delivered_after_a_hole_make_it_lost() -> None:
    rig = loss("selective")
    verdicts = [
        tell(rig, 10_000 + step, newest_acked=9_901 + step, oldest_inflight=9_900)
        for step in range(3)
    ]
    assert [verdict["lost_sent_before_ns"] for verdict in verdicts] == [-1, -1, 9_901 * US]


def test_selective__a_later_hole_waits_for_three_of_its_own() -> None:
    rig = loss("selective")
    tell(rig, 10_000, newest_acked=9_901, oldest_inflight=9_900, acked_segments=3)
    later = [
        tell(rig, 10_001 + step, newest_acked=9_911 + step, oldest_inflight=9_910)
        for step in range(3)
    ]
    assert [verdict["lost_sent_before_ns"] for verdict in later] == [-1, -1, 9_911 * US]


def test_selective__reordering_within_the_distance_is_no_loss() -> None:
    rig = loss("selective")
    for step in range(100):  # in each step, two later segments overtake one segment
        hole: dict[str, Any] = {
            "newest_acked": 9_902 + 4 * step,
            "oldest_inflight": 9_900 + 4 * step,
        }
        assert tell(rig, 10_000 + 4 * step, **hole)["lost_sent_before_ns"] == -1
        assert tell(rig, 10_001 + 4 * step, **hole)["lost_sent_before_ns"] == -1
        filled: dict[str, Any] = {
            "newest_acked": 9_902 + 4 * step,
            "oldest_inflight": 9_904 + 4 * step,
        }
        assert tell(rig, 10_002 + 4 * step, **filled)["lost_sent_before_ns"] == -1


def test_selective__a_needless_resend_doubles_the_distance() -> None:
    rig = loss("selective")
    tell(rig, 9_990, spurious_segments=1)
    verdicts = [
        tell(rig, 10_000 + step, newest_acked=9_901 + step, oldest_inflight=9_900)
        for step in range(6)
    ]
    assert [verdict["lost_sent_before_ns"] for verdict in verdicts] == [-1] * 5 + [9_901 * US]


def test_selective__a_distance_once_needed_is_forgotten_and_the_parameters_stay_in_force() -> None:
    rig = loss("selective")
    for step in range(4):
        tell(rig, 9_900 + step, spurious_segments=1)
    assert rig.state("patience") == 16
    forget_us = 1_025 * 100
    for step in range(1, 7):
        tell(rig, 10_000 + step * forget_us, srtt_ns=100 * US)
    assert rig.state("patience") == 1
    rig.params["threshold_segments"] = 1
    hole: dict[str, Any] = {"newest_acked": 1_000_001, "oldest_inflight": 1_000_000}
    assert tell(rig, 1_000_100, **hole)["lost_sent_before_ns"] == 1_000_001 * US


def sleek_ack(rig: Rig, now_us: float, sacked: int, **fields: Any) -> int:
    """The loss cutoff in us: segments sent before it are lost; -1: none."""
    usual: dict[str, Any] = {
        "cumulative_seq": 1_000,
        "highest_acked_seq": 1_200,
        "sacked_segments": sacked,
    }
    usual |= {"newest_acked": now_us - 100, "oldest_inflight": now_us - 200}
    usual |= {"newest_inflight": now_us, "window_bytes": 40 * SEGMENT}
    horizon_ns = int(tell(rig, now_us, **(usual | fields))["lost_sent_before_ns"])
    return horizon_ns if horizon_ns < 0 else horizon_ns // US


def test_sleek__recovers_what_was_overtaken_when_one_and_a_half_windows_are_out_of_order() -> None:
    rig = loss("sleek")
    assert sleek_ack(rig, 10_000, 59) == -1
    assert sleek_ack(rig, 10_001, 60) == 9_901
    assert sleek_ack(rig, 10_002, 200) == -1  # no second declaration in this recovery


def test_sleek__five_segments_are_the_least() -> None:
    rig = loss("sleek")
    assert sleek_ack(rig, 10_000, 4, window_bytes=2 * SEGMENT) == -1
    assert sleek_ack(rig, 10_001, 5, window_bytes=2 * SEGMENT) == 9_901


def test_sleek__each_path_gives_up_once() -> None:
    rig = loss("sleek")
    assert sleek_ack(rig, 10_000, 60) == 9_900
    assert sleek_ack(rig, 10_100, 60, path=2) == 10_000
    assert sleek_ack(rig, 10_101, 60, path=2) == -1


def test_sleek__ends_when_the_cumulative_position_passes_what_was_delivered_at_its_start() -> None:
    rig = loss("sleek")
    sleek_ack(rig, 10_000, 60)
    assert sleek_ack(rig, 10_100, 90, cumulative_seq=1_200) == -1
    after: dict[str, Any] = {"cumulative_seq": 1_201, "highest_acked_seq": 1_400}
    assert sleek_ack(rig, 10_150, 60, **after) == -1  # resent segments are in flight
    assert sleek_ack(rig, 10_300, 60, **after) == 10_200


def test_sleek__a_pause_is_asked_about_once_and_the_answer_waits_for_held_acknowledgments() -> None:
    rig = loss("sleek")
    tail: dict[str, Any] = {
        "newest_acked": 9_850,
        "oldest_inflight": 9_900,
        "newest_inflight": 9_910,
    }
    answer = tell(rig, 10_000, **tail)
    assert answer["next_check_ns"] == (9_910 + 3 * 100 + 50) * US
    answer = tell(rig, 10_260, "on_timer", **tail)
    assert (answer["probe"], answer["lost_sent_before_ns"]) == (1, -1)
    assert tell(rig, 10_300, "on_timer", **tail)["probe"] == 0
    back: dict[str, Any] = {"probed_sent_ns": 10_260 * US, **tail}
    answer = tell(rig, 10_360, **back)
    assert (answer["lost_sent_before_ns"], answer["next_check_ns"]) == (-1, 10_410 * US)
    assert tell(rig, 10_410, "on_timer", **back)["lost_sent_before_ns"] == 10_260 * US
