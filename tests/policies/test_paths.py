"""Tests the path policies, interpreted: chosen and avoided paths. Numbers are from papers."""

from __future__ import annotations

import heapq
import random

import pytest

from congestion.api import ECN, GOOD, NACK, TIMEOUT
from congestion.registry import find, policies

from .rig import MS, SEGMENT, US, Rig

EVERY = [name for family, name in policies() if family == "path"]
# These policies use one path at a time for a flow.
STICKY = ["single", "plb", "flowlet"]
SPREADING = [name for name in EVERY if name not in STICKY]


def picks(rig: Rig, count: int, **fields: float) -> list[int]:
    """Asks for `count` paths; `rand` and `rand2` are evenly spread, so that no seed matters."""
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


@pytest.mark.parametrize("name", SPREADING)
def test_paths__use_all_and_none_that_is_dead(name: str) -> None:
    rig = peer(name)
    rig.shared["usable"][3] = 0
    assert set(picks(rig, 400, now_ns=10**9)) == {0, 1, 2, 4, 5, 6, 7}


@pytest.mark.parametrize("name", EVERY)
def test_paths__a_resend_takes_another_path(name: str) -> None:
    rig = peer(name)
    assert 5 not in picks(rig, 200, now_ns=10**9, is_resend=1, avoid_path=5)
    rig.shared["usable"] = [0, 0, 0, 0, 0, 1, 0, 0]
    assert set(picks(rig, 50, now_ns=10**9, is_resend=1, avoid_path=5)) == {5}


@pytest.mark.parametrize("name", EVERY)
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
    feed(rig, 2, TIMEOUT, now_ns=10**9 + 20_000_000)  # path 2 is now avoided for twice as long
    assert 2 not in picks(rig, 200, now_ns=10**9 + 39_000_000)
    assert 2 in picks(rig, 200, now_ns=10**9 + 41_000_000)


def test_power_of_two__a_path_that_swallows_everything_does_not_win_forever() -> None:
    rig = peer("power_of_two", 4)
    for path in (0, 1, 3):
        for _ in range(20):
            feed(rig, path, GOOD, 100)
    chosen = picks(rig, 400, now_ns=10**9 + 1)
    assert 1 <= chosen.count(2) <= 8


def test_power_of_two__the_last_choice_is_kept_where_both_draws_are_slow() -> None:
    """6 of 8 paths are slow: both random draws would be slow for 6/8 * 5/7 = 54% of bursts."""
    rig = peer("power_of_two", 8)
    for _ in range(50):
        for path in range(8):
            feed(rig, path, GOOD, 900 if path < 6 else 100)
    chosen = picks(rig, 1_000, now_ns=10**9 + 1)
    assert sum(path < 6 for path in chosen) < 20


def test_power_of_two__its_own_bytes_in_flight_end_a_choice_before_an_answer_does() -> None:
    rig = peer("power_of_two", 8)
    rig.shared["inflight_bytes"] = 65_536
    for turn in range(400):  # teaches the policy a queueing delay of 8 ns per byte
        for path in range(8):
            feed(rig, path, GOOD, 100 if turn == 0 else 624)
    rig.shared["inflight_bytes"] = 0
    chosen = []
    for step in range(64):
        draws = {"rand": (step * 0.618034) % 1.0, "rand2": (step * 0.414214) % 1.0}
        path = rig.call("pick", n_paths=8, now_ns=10**9 + 1, **draws)["path"]
        chosen.append(path)
        rig.shared["inflight_bytes"][path] += 65_536
    assert max(chosen.count(path) for path in range(8)) <= 11


def test_power_of_two__what_was_slow_is_tried_again() -> None:
    rig = peer("power_of_two", 2)
    for _ in range(50):
        feed(rig, 0, GOOD, 100)
        feed(rig, 1, GOOD, 900)
    assert 1 not in picks(rig, 100, now_ns=10**9 + 1)
    for _ in range(50):
        feed(rig, 0, GOOD, 600, now_ns=10**9 + 15_000_000)  # by now path 1's score is old
    assert 1 in picks(rig, 100, now_ns=10**9 + 15_000_001)


def test_single__a_flow_keeps_its_path_while_that_is_usable() -> None:
    rig = peer("single")
    homes = {flow: picks(rig, 1, flow=flow)[0] for flow in range(64)}
    assert set(homes.values()) == set(range(8))
    rig.shared["usable"][3] = 0
    for flow, home in homes.items():
        assert set(picks(rig, 5, flow=flow)) == {home if home != 3 else 4}
    rig.shared["usable"][3] = 1
    assert all(picks(rig, 1, flow=flow) == [home] for flow, home in homes.items())


@pytest.mark.parametrize("paths", [1, 3, 8, 200, 256])
def test_round_robin__each_round_visits_every_path_once(paths: int) -> None:
    rig = peer("round_robin", paths)
    picks(rig, paths - 1)  # completes the first round, which has one pick less
    chosen = picks(rig, 4 * paths)
    orders = [chosen[i * paths : (i + 1) * paths] for i in range(4)]
    assert all(sorted(order) == list(range(paths)) for order in orders)
    assert paths < 4 or len({tuple(order) for order in orders}) > 1


def test_bitmap__a_mark_costs_one_visit_a_nack_four_a_timeout_fifteen() -> None:
    for kind, rounds in ((ECN, 1), (NACK, 4), (TIMEOUT, 15)):
        rig = peer("bitmap")
        picks(rig, 7)
        feed(rig, 5, kind)
        without = 0
        for _ in range(40):
            if 5 in picks(rig, 7 if without < rounds else 8):
                break
            without += 1
        assert without == rounds


def test_bitmap__a_silent_path_is_asked_by_one_burst_in_sixteen_rounds() -> None:
    rig = peer("bitmap")
    feed(rig, 5, TIMEOUT)
    chosen = picks(rig, 16 * 8 * 10)
    assert 9 <= chosen.count(5) <= 11
    feed(rig, 5, GOOD)
    assert picks(rig, 80).count(5) >= 9


def test_bitmap__all_penalised_still_answers() -> None:
    rig = peer("bitmap", 256)
    for path in range(256):
        feed(rig, path, TIMEOUT)
    assert 0 <= picks(rig, 1)[0] < 256


def test_reps__what_came_back_unmarked_is_used_again_oldest_first() -> None:
    rig = peer("reps")
    for path in (3, 6, 1):
        feed(rig, path, GOOD)
    feed(rig, 2, ECN)  # marked: path 2 is not used again
    assert picks(rig, 3) == [3, 6, 1]
    assert len(set(picks(rig, 100))) == 8  # the ring has no unused path left, so picks are random


def test_reps__keeps_the_eight_latest() -> None:
    rig = peer("reps", 16)
    for path in range(12):
        feed(rig, path, GOOD)
    assert picks(rig, 8) == list(range(4, 12))


def test_reps__a_timeout_freezes_the_ring_for_ten_milliseconds_then_sixteen_explore() -> None:
    rig = peer("reps", 64)
    for path in (3, 6, 1, 9):
        feed(rig, path, GOOD)
    start_ns = 10**9
    feed(rig, 6, TIMEOUT, now_ns=start_ns)
    # For 10 ms after a timeout, picks repeat the ring's paths, except the one that timed out.
    assert picks(rig, 7, now_ns=start_ns + 9 * MS) == [3, 1, 9, 3, 1, 9, 3]
    explored = picks(rig, 16, now_ns=start_ns + 10 * MS)
    assert len(set(explored)) > 10
    feed(rig, 7, GOOD)
    assert picks(rig, 1, now_ns=start_ns + 11 * MS) == [7]


def acknowledge(rig: Rig, kinds: list[int], each_bytes: int, inflight: int = 1 << 20) -> None:
    rig.shared["inflight_bytes"] = inflight
    for kind in kinds:
        rig.call("on_feedback", kind=kind, path=3, bytes=each_bytes, n_paths=len(rig.shared))


@pytest.mark.parametrize(
    ("kinds", "each_bytes", "entries"),
    [
        ([GOOD] * 16, 8_192, 2),  # two bursts of 64 KiB in many acknowledgments
        ([GOOD], 262_144, 4),  # four bursts in one acknowledgment
        ([GOOD, GOOD, ECN, GOOD, GOOD], 16_384, 0),  # a burst with a mark does not count
        ([GOOD] * 3, 8_192, 0),  # less than one burst does not count
    ],
)
def test_reps__a_path_is_recycled_once_for_each_burst(
    kinds: list[int], each_bytes: int, entries: int
) -> None:
    rig = peer("reps", 64)
    acknowledge(rig, kinds, each_bytes)
    assert rig.state("fresh") == entries


def test_reps__the_last_of_a_path_is_judged_though_short_of_a_burst() -> None:
    rig = peer("reps", 64)
    acknowledge(rig, [GOOD], 8_192, inflight=0)
    assert rig.state("fresh") == 1


def test_bitmap__a_marked_burst_costs_one_visit_however_often_it_is_acknowledged() -> None:
    rig = peer("bitmap")
    acknowledge(rig, [ECN] * 8, 8_192)
    assert rig.shared["penalty"][3] == 1


def test_reps__a_dead_entry_is_passed_over() -> None:
    rig = peer("reps")
    for path in (3, 6):
        feed(rig, path, GOOD)
    rig.shared["usable"][3] = 0
    assert picks(rig, 1) == [6]


def test_mixed__recycles_first_then_goes_round_past_penalties() -> None:
    rig = peer("mixed")
    for path in (3, 6):
        feed(rig, path, GOOD)
    feed(rig, 1, ECN)
    assert picks(rig, 2) == [3, 6]
    assert picks(rig, 6) == [2, 3, 4, 5, 6, 7]  # skips path 1 because of its penalty
    feed(rig, 3, GOOD)
    feed(rig, 3, TIMEOUT)  # path 3 is removed from the queue of paths to reuse, and gets a penalty
    assert 3 not in picks(rig, 7 * 14)


def test_plb__three_congested_round_trips_in_a_row_move_the_flow() -> None:
    rig = peer("plb", 64)
    home = picks(rig, 1, flow=5)[0]
    assert set(picks(rig, 50, flow=5)) == {home}

    def round_trips(kinds: list[int], start_ns: int) -> None:
        for step, kind in enumerate(kinds):
            now_ns = start_ns + 100 * US * step
            fields = {"bytes": SEGMENT, "flow": 5, "n_paths": 64, "rtt_ns": 100 * US}
            rig.call("on_feedback", now_ns=now_ns, kind=kind, path=home, **fields)

    round_trips([ECN, ECN, GOOD, ECN, ECN], 10**9)
    assert rig.call("pick", flow=5, rand=0.99)["path"] == home
    round_trips([ECN], 2 * 10**9)
    assert rig.call("pick", flow=5, rand=0.99)["path"] == 63


def test_plb__half_of_a_round_trip_marked_is_not_yet_congested() -> None:
    rig = peer("plb", 64)
    home = picks(rig, 1, flow=5)[0]
    for step in range(40):
        fields = {"bytes": SEGMENT, "flow": 5, "path": home, "rtt_ns": 100 * US}
        kind = ECN if step % 2 else GOOD
        rig.call("on_feedback", now_ns=10**9 + 50 * US * step, kind=kind, **fields)
    assert rig.call("pick", flow=5, rand=0.99)["path"] == home


@pytest.mark.parametrize(("preset", "moves"), [("host", True), ("paper", False)])
def test_plb__after_a_timeout_marks_move_the_flow_only_after_a_pause(
    preset: str, moves: bool
) -> None:
    policy = find("path", "plb")
    rig = Rig(policy, 64, **policy.presets[preset])
    rig.shared["usable"] = 1
    home = rig.call("pick", flow=5, rand=0.5)["path"]
    fields = {"flow": 5, "n_paths": 64, "bytes": SEGMENT, "rtt_ns": 100 * US}
    rig.call("on_feedback", now_ns=10**9, kind=TIMEOUT, path=home, rand=0.5, **fields)
    assert rig.call("pick", flow=5, rand=0.0)["path"] == 0  # the timeout itself moves it

    def moved(start_ns: int) -> bool:
        for step in range(3):
            now_ns = start_ns + 100 * US * step
            rig.call("on_feedback", now_ns=now_ns, kind=ECN, path=0, **fields)
        return bool(rig.call("pick", flow=5, rand=0.99)["path"] == 63)

    assert moved(10**9 + MS) == moves
    if not moves:
        assert not moved(90 * 10**9)
        assert moved(92 * 10**9)  # 60 s and half of it again have passed


@pytest.mark.parametrize("name", ["plb", "flowlet"])
def test_sticky__a_timeout_and_a_dead_path_move_the_flow_a_resend_does_not(name: str) -> None:
    rig = peer(name, 64)
    now = {"now_ns": 10**9, "flow": 5}
    home = rig.call("pick", **now, rand=0.5)["path"]
    away = rig.call("pick", **now, rand=0.99, is_resend=1, avoid_path=home)["path"]
    assert away == 63
    assert rig.call("pick", **now, rand=0.99)["path"] == home
    rig.call("on_feedback", **now, kind=TIMEOUT, path=home)
    assert rig.call("pick", **now, rand=0.99)["path"] == 63
    rig.shared["usable"][63] = 0
    assert rig.call("pick", **now, rand=0.0)["path"] == 0
    rig.shared["usable"][63] = 1
    assert rig.call("pick", **now, rand=0.99)["path"] == 0


def test_flowlet__a_pause_of_100_us_begins_another() -> None:
    rig = peer("flowlet", 64)
    assert rig.call("pick", now_ns=10**9, flow=5, rand=0.0)["path"] == 0
    for step in range(1, 9):
        now_ns = 10**9 + step * 99 * US
        assert rig.call("pick", now_ns=now_ns, flow=5, rand=0.99)["path"] == 0
    assert rig.call("pick", now_ns=now_ns + 100 * US, flow=5, rand=0.99)["path"] == 63


def test_weighted__in_proportion_and_never_a_zero_unless_nothing_else() -> None:
    rig = peer("weighted", 4)
    rig.params["weight"][0][:4] = [1, 2, 0, 5]
    chosen = picks(rig, 8_000)
    assert [chosen.count(path) / 8_000 for path in range(4)] == pytest.approx(
        [1 / 8, 2 / 8, 0, 5 / 8], abs=0.01
    )
    rig.shared["usable"] = [0, 0, 1, 0]
    assert set(picks(rig, 10)) == {2}
    rig.shared["usable"] = 1
    rig.params["weight"][0][:4] = 0
    assert set(picks(rig, 100)) == {0, 1, 2, 3}


@pytest.mark.parametrize("name", ["bitmap", "mixed", "power_of_two", "reps"])
def test_paths__one_that_swallows_everything_loses_its_share_and_gets_it_back(name: str) -> None:
    """A path times out 1 ms after each burst, and is avoided until a probe is answered."""
    rig, draw, dead = peer(name), random.Random(3), 2
    counts, replies = [0, 0], [(10**9, 0)]
    for step in range(6_000):
        now_ns = 10**9 + step * 10 * US
        if step == 3_000:
            feed(rig, dead, GOOD, 100, now_ns)
        draws = {"rand": draw.random(), "rand2": draw.random()}
        path = rig.call("pick", now_ns=now_ns, n_paths=8, **draws)["path"]
        counts[step // 3_000] += path == dead and step % 3_000 >= 1_000
        swallowed = path == dead and step < 3_000
        heapq.heappush(replies, (now_ns + (MS if swallowed else 100 * US), path - 8 * swallowed))
        while replies[0][0] <= now_ns:
            came = heapq.heappop(replies)[1]
            feed(rig, came % 8, TIMEOUT if came < 0 else GOOD, 0 if came < 0 else 100, now_ns)
    assert counts[0] < 2_000 / 8 / 10
    # reps and mixed reuse paths that work, so they return to this path only if others get marks.
    assert counts[1] > (0 if name in {"reps", "mixed"} else 2_000 / 8 / 2)
