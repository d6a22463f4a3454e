"""Decides what the path policies do: which path a burst takes, and which ones they leave.

Never touches the compiler: runs them interpreted. The numbers are those of the papers.
"""

from __future__ import annotations

import pytest

from congestion.api import ECN, GOOD, NACK, TIMEOUT
from congestion.registry import find

from .rig import MS, US, Rig

EVERY = ["fixed", "oblivious", "power_of_two", "single", "round_robin", "bitmap", "reps"]
SPREADING = [name for name in EVERY if name != "single"]


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
    picks(rig, paths - 1)  # the first round has begun at its second place
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
    feed(rig, 2, ECN)  # marked: not kept
    assert picks(rig, 3) == [3, 6, 1]
    assert len(set(picks(rig, 100))) == 8  # nothing fresh: by chance


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
    # Over and over, used or not; the one that timed out has left the ring.
    assert picks(rig, 7, now_ns=start_ns + 9 * MS) == [3, 1, 9, 3, 1, 9, 3]
    explored = picks(rig, 16, now_ns=start_ns + 10 * MS)
    assert len(set(explored)) > 10
    feed(rig, 7, GOOD)
    assert picks(rig, 1, now_ns=start_ns + 11 * MS) == [7]


def test_reps__a_dead_entry_is_passed_over() -> None:
    rig = peer("reps")
    for path in (3, 6):
        feed(rig, path, GOOD)
    rig.shared["usable"][3] = 0
    assert picks(rig, 1) == [6]
