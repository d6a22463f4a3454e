"""Decides what the shipped policies do: when they grow, cut, leave a path, or call a segment lost.

Never touches the compiler: runs them interpreted.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from congestion.api import GOOD, TIMEOUT, Policy
from congestion.registry import find
from transport.compiler.interpret import Interpreted

SEGMENT = 8_192
US = 1_000


class Rig:
    """One flow of one policy."""

    def __init__(self, policy: Policy, shared: int = 1, **params: float) -> None:
        self.policy = policy
        self.runner = Interpreted(policy)
        self.flow, self.shared = policy.flow.zeros(), policy.shared.zeros(shared)
        self.params = policy.params.filled()
        for name, value in params.items():
            self.params[name] = value

    def call(self, hook: str, **fields: float) -> Mapping[str, Any]:
        event, result = self.policy.family.event.zeros(), self.policy.family.result.zeros()
        event["segment_bytes"] = SEGMENT
        for name, value in fields.items():
            event[name] = value
        self.runner.run(
            hook, flow=self.flow, shared=self.shared, params=self.params, event=event, result=result
        )
        return {name: result[name][0].item() for name in result.dtype.names}


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
    assert cuts == 4  # 400 us of acknowledgments, 100 us of RTT


def test_swift__cuts_by_the_excess_and_at_most_by_half() -> None:
    slight, heavy = swift(), swift()
    assert ack(slight, 10_000, 200) > 0.8 * 200 * SEGMENT
    assert ack(heavy, 10_000, 100_000) == 100 * SEGMENT


def test_swift__one_late_sample_is_noise() -> None:
    rig = swift()
    ack(rig, 10_000, 60)
    before = ack(rig, 10_010, 60)
    assert ack(rig, 10_020, 5_000) > before


def test_swift__does_not_grow_without_demand_or_under_marks() -> None:
    rig = swift()
    assert ack(rig, 10_000, 60, app_limited=1) == 200 * SEGMENT
    assert ack(rig, 10_010, 60, ecn_segments=1) == 200 * SEGMENT


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
    """Loopback: 50 to 500 us with no queue behind them, one acknowledgment for eight segments."""
    rig, draw, now_us, window = swift(32 * SEGMENT), random.Random(5), 10_000, 0.0
    for _ in range(3_000):
        now_us += 35
        window = ack(rig, now_us, draw.randint(50, 500), acked=8, srtt_ns=275 * US)
    assert window > 100 * SEGMENT


def test_swift__holds_the_queue_near_its_target() -> None:
    """A link of 3 GB/s behind 50 us: the queue is what the window exceeds their product by."""
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


def picks(rig: Rig, count: int, **fields: float) -> list[int]:
    """Over a grid of draws, so that no seed decides."""
    chosen = []
    for step in range(count):
        draws = {"rand": (step * 0.618034) % 1.0, "rand2": (step * 0.414214) % 1.0}
        chosen.append(rig.call("pick", n_paths=len(rig.shared), **draws, **fields)["path"])
    return chosen


def peer(name: str, paths: int = 8) -> Rig:
    rig = Rig(find("path", name), paths)
    rig.shared["usable"] = 1
    return rig


def feed(rig: Rig, path: int, kind: int, rtt_us: int = 0, now_ns: int = 10**9) -> None:
    rig.call(
        "on_feedback",
        now_ns=now_ns,
        kind=kind,
        path=path,
        rtt_ns=rtt_us * US,
        n_paths=len(rig.shared),
    )


@pytest.mark.parametrize("name", ["fixed", "oblivious", "power_of_two"])
def test_paths__use_all_and_none_that_is_dead(name: str) -> None:
    rig = peer(name)
    rig.shared["usable"][3] = 0
    assert set(picks(rig, 400, now_ns=10**9)) == {0, 1, 2, 4, 5, 6, 7}


@pytest.mark.parametrize("name", ["fixed", "oblivious", "power_of_two"])
def test_paths__a_resend_takes_another_path(name: str) -> None:
    rig = peer(name)
    assert 5 not in picks(rig, 200, now_ns=10**9, is_resend=1, avoid_path=5)
    rig.shared["usable"] = [0, 0, 0, 0, 0, 1, 0, 0]
    assert set(picks(rig, 50, now_ns=10**9, is_resend=1, avoid_path=5)) == {5}


@pytest.mark.parametrize("name", ["fixed", "oblivious", "power_of_two"])
def test_paths__one_path_and_no_usable_path_still_answer(name: str) -> None:
    assert set(picks(peer(name, 1), 20, now_ns=10**9)) == {0}
    dead = peer(name)
    dead.shared["usable"] = 0
    assert set(picks(dead, 50, now_ns=10**9)) <= set(range(8))


def test_power_of_two__prefers_the_faster() -> None:
    rig = peer("power_of_two", 2)
    for _ in range(50):
        feed(rig, 0, GOOD, 500)
        feed(rig, 1, GOOD, 50)
    assert set(picks(rig, 50, now_ns=10**9 + 1)) == {1}


def test_power_of_two__leaves_a_path_that_timed_out_and_comes_back() -> None:
    rig = peer("power_of_two")
    for path in range(8):
        feed(rig, path, GOOD, 100)
    feed(rig, 2, TIMEOUT)
    assert 2 not in picks(rig, 200, now_ns=10**9 + 9_000_000)
    assert 2 in picks(rig, 200, now_ns=10**9 + 11_000_000)
    feed(rig, 2, TIMEOUT, now_ns=10**9 + 20_000_000)  # rests twice as long
    assert 2 not in picks(rig, 200, now_ns=10**9 + 39_000_000)
    assert 2 in picks(rig, 200, now_ns=10**9 + 41_000_000)


def test_power_of_two__a_path_that_swallows_everything_does_not_win_forever() -> None:
    rig = peer("power_of_two", 4)
    for path in (0, 1, 3):
        for _ in range(20):
            feed(rig, path, GOOD, 100)
    chosen = picks(rig, 400, now_ns=10**9 + 1)
    assert 1 <= chosen.count(2) <= 8


def test_power_of_two__what_was_slow_is_tried_again() -> None:
    rig = peer("power_of_two", 2)
    for _ in range(50):
        feed(rig, 0, GOOD, 100)
        feed(rig, 1, GOOD, 900)
    assert 1 not in picks(rig, 100, now_ns=10**9 + 1)
    for _ in range(50):
        feed(rig, 0, GOOD, 600, now_ns=10**9 + 15_000_000)  # path 1's measurement has aged
    assert 1 in picks(rig, 100, now_ns=10**9 + 15_000_001)


def judge(rig: Rig, hook: str = "on_ack", **fields: Any) -> Mapping[str, Any]:
    usual = {"path": 1, "rtt_min_ns": 80 * US, "srtt_ns": 100 * US, "rto_ns": 1_000 * US}
    return rig.call(hook, **(usual | fields))


def test_rack__what_was_sent_a_window_before_the_newest_delivered_is_lost() -> None:
    rig = Rig(find("loss", "rack"), 4)
    answer = judge(
        rig, now_ns=10_000 * US, newest_acked_sent_ns=9_900 * US, oldest_inflight_sent_ns=9_890 * US
    )
    assert answer["lost_sent_before_ns"] == (9_900 - 20) * US  # a quarter of 80 us
    assert answer["next_check_ns"] == (9_890 + 100 + 20) * US + 1
    later = judge(
        rig,
        "on_timer",
        now_ns=answer["next_check_ns"],
        newest_acked_sent_ns=9_900 * US,
        oldest_inflight_sent_ns=9_890 * US,
    )
    assert 9_890 * US < later["lost_sent_before_ns"] <= 9_900 * US + 1


def test_rack__a_hole_in_the_newest_burst_is_lost_after_the_reordering_window() -> None:
    rig = Rig(find("loss", "rack"), 4)
    # The segments of a burst are sent a nanosecond apart: the last one has been delivered.
    burst: dict[str, Any] = {
        "newest_acked_sent_ns": 9_900 * US + 6,
        "oldest_inflight_sent_ns": 9_900 * US,
    }
    answer = judge(rig, now_ns=10_000 * US + 6, **burst)
    assert answer["lost_sent_before_ns"] <= 9_900 * US
    assert answer["next_check_ns"] == 10_020 * US + 1
    later = judge(rig, "on_timer", now_ns=answer["next_check_ns"], **burst)
    assert later["lost_sent_before_ns"] == 9_900 * US + 1


def test_rack__what_was_sent_with_or_after_the_newest_delivered_waits_for_the_timeout() -> None:
    rig = Rig(find("loss", "rack"), 4)
    tail: dict[str, Any] = {
        "newest_acked_sent_ns": 9_900 * US,
        "oldest_inflight_sent_ns": 9_900 * US + 1,
    }
    answer = judge(rig, now_ns=10_000 * US, **tail)
    assert answer["lost_sent_before_ns"] <= 9_900 * US
    assert answer["next_check_ns"] == -1


def test_rack__the_first_timeout_gives_up_the_oldest_alone_the_second_all() -> None:
    rig = Rig(find("loss", "rack"), 4)
    fields: dict[str, Any] = {"newest_acked_sent_ns": -1, "oldest_inflight_sent_ns": 9_000 * US}
    first = judge(rig, "on_timer", now_ns=10_500 * US, **fields)
    assert first["lost_sent_before_ns"] == 9_000 * US + 1
    second = judge(rig, "on_timer", now_ns=11_600 * US, **fields)
    assert second["lost_sent_before_ns"] == 10_600 * US + 1
    judge(rig, now_ns=11_700 * US, newest_acked_sent_ns=11_650 * US)  # something came back
    again = judge(rig, "on_timer", now_ns=12_800 * US, **(fields | {"newest_acked_sent_ns": -1}))
    assert again["lost_sent_before_ns"] == 9_000 * US + 1


def test_rack__the_window_grows_with_needless_resends_up_to_the_round_trip() -> None:
    rig = Rig(find("loss", "rack"), 4)
    horizons = [
        judge(
            rig,
            now_ns=(10_000 + i) * US,
            newest_acked_sent_ns=(9_900 + i) * US,
            spurious_segments=1,
        )["lost_sent_before_ns"]
        // US
        - i
        for i in range(9)
    ]
    assert horizons[:3] == [9_880, 9_860, 9_840]
    assert horizons[-1] == 9_800
    calm = judge(rig, now_ns=300_000 * US, newest_acked_sent_ns=299_900 * US)
    assert calm["lost_sent_before_ns"] == 299_880 * US


def test_rack__nothing_delivered_means_no_verdict_before_the_timeout() -> None:
    rig = Rig(find("loss", "rack"), 4)
    fields: dict[str, Any] = {"newest_acked_sent_ns": -1, "oldest_inflight_sent_ns": 9_000 * US}
    assert judge(rig, now_ns=9_100 * US, **fields)["lost_sent_before_ns"] == -1
    early = judge(rig, "on_timer", now_ns=9_999 * US, **fields)
    assert (early["lost_sent_before_ns"], early["next_check_ns"]) == (-1, -1)
    late = judge(rig, "on_timer", now_ns=10_000 * US, **fields)
    assert late["lost_sent_before_ns"] > 9_000 * US


@pytest.mark.parametrize("hook", ["on_ack", "on_timer"])
def test_rack__never_loses_what_was_sent_after_the_newest_delivered(hook: str) -> None:
    rig = Rig(find("loss", "rack"), 4)
    answer = judge(
        rig,
        hook,
        now_ns=20_000 * US,
        newest_acked_sent_ns=19_500 * US,
        oldest_inflight_sent_ns=19_600 * US,
    )
    assert answer["lost_sent_before_ns"] <= 19_500 * US + 1


def test_fixed_loss__by_age() -> None:
    rig = Rig(find("loss", "fixed"))
    assert judge(rig, now_ns=5_000 * US)["lost_sent_before_ns"] == -1
    assert judge(rig, "on_timer", now_ns=5_000 * US)["lost_sent_before_ns"] == 4_000 * US + 1
    assert judge(rig, "on_timer", now_ns=500 * US)["lost_sent_before_ns"] == -1


def demand(rig: Rig, **fields: float) -> Mapping[str, Any]:
    return rig.call("on_demand", **({"now_ns": 10**9, "active_flows": 1} | fields))


def test_grant__shares_the_window_and_never_takes_back() -> None:
    rig = Rig(find("credit", "grant"))
    assert demand(rig, demand_bytes=1 << 30)["granted_bytes"] == 4 << 20
    assert demand(rig, demand_bytes=1 << 30, active_flows=4)["granted_bytes"] == 1 << 20
    kept = demand(rig, demand_bytes=1 << 30, active_flows=4, granted_bytes=2 << 20)
    assert kept["granted_bytes"] == 2 << 20
    assert kept["next_tick_ns"] > 10**9
    crowd = demand(rig, demand_bytes=1 << 30, active_flows=10**6)
    assert crowd["granted_bytes"] == 4 * SEGMENT


def test_grant__gives_no_more_than_was_asked_for() -> None:
    answer = demand(Rig(find("credit", "grant")), demand_bytes=5_000)
    assert answer == {"granted_bytes": 5_000, "next_tick_ns": -1}


def test_grant__marks_shrink_the_window_and_their_absence_restores_it() -> None:
    rig = Rig(find("credit", "grant"))
    for step in range(20):
        marked = demand(rig, now_ns=10**9 + step * 10**6, demand_bytes=1 << 30, ecn_segments=1)
    assert marked["granted_bytes"] == 1 << 20
    for step in range(40):
        calm = demand(rig, now_ns=2 * 10**9 + step * 10**6, demand_bytes=1 << 30)
    assert calm["granted_bytes"] == 4 << 20
