"""Tests the transfers, bytes and dependencies of every traffic pattern."""

import itertools
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.sim.support import scenario
from transport.sim import ScenarioError, sizes, work


def made(text: str, hosts: int = 16) -> work.Work:
    found = scenario(f"hosts = {hosts}", f"[[workload]]\n{text}").changed({"seed": 7})
    return found.check().work


def check_rules(own: work.Work) -> None:
    """Checks the rules of native/sim/fabric/fabric_plan.h: all transfers can begin and end."""
    first, last = (
        own.transfers[own.dependencies["before"]],
        own.transfers[own.dependencies["after"]],
    )
    begins = last["from"]
    assert ((first["to"] == begins) | (first["from"] == begins)).all()
    assert (own.transfers["from"] != own.transfers["to"]).all()
    # Complete transfers in an order that respects connections and dependencies, until all are done.
    waits = np.bincount(own.dependencies["after"], minlength=len(own.transfers))
    after = defaultdict(list)
    for before, then in zip(own.dependencies["before"], own.dependencies["after"], strict=True):
        after[int(before)].append(int(then))
    queues: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for number, one in enumerate(own.transfers):
        queues[int(one["from"]), int(one["to"]), int(one["stream"])].append(number)
    for queue in queues.values():
        for before, then in itertools.pairwise(queue):
            after[before].append(then)
            waits[then] += 1
    ready = np.flatnonzero(waits == 0).tolist()
    done = 0
    while ready:
        done += 1
        for then in after[ready.pop()]:
            waits[then] -= 1
            if waits[then] == 0:
                ready.append(then)
    assert done == len(own.transfers)


@settings(max_examples=60, deadline=None)
@given(
    pattern=st.sampled_from(
        [
            *("permutation", "incast", "outcast", "all_to_all", "all_reduce_ring"),
            *("all_reduce_tree", "reduce_scatter", "all_gather", "moe", "broadcast", "reduce"),
            *("all_reduce_double_tree", "all_gather_pat", "reduce_scatter_pat"),
        ]
    ),
    hosts=st.integers(2, 12),
    size=st.integers(1, 100_000),
    repeats=st.integers(1, 3),
    shuffle=st.booleans(),
)
def test_work__every_pattern_keeps_the_rules(
    pattern: str, hosts: int, size: int, repeats: int, shuffle: bool
) -> None:
    what = f"tokens = {size % 50 + 1}\ntop_k = 1" if pattern == "moe" else f"size_bytes = {size}"
    text = f'pattern = "{pattern}"\nrepeats = {repeats}\nshuffle = {str(shuffle).lower()}\n{what}'
    own = made(text, hosts)
    check_rules(own)
    whole = int(own.transfers["bytes"].sum())
    n = hosts
    expected = {
        "permutation": n * size,
        "incast": (n - 1) * size,
        "outcast": (n - 1) * size,
        "all_reduce_ring": 2 * (n - 1) * size,
        "all_reduce_tree": 2 * (n - 1) * size,
        "all_reduce_double_tree": 2 * (n - 1) * size,
        "broadcast": (n - 1) * size,
        "reduce": (n - 1) * size,
        "reduce_scatter": (n - 1) * size,
        "reduce_scatter_pat": (n - 1) * size,
        "all_gather_pat": (n - 1) * size,
        "all_gather": (n - 1) * size,
    }
    if pattern in expected:
        assert whole == repeats * expected[pattern]


@given(hosts=st.integers(2, 200), seed=st.integers(0, 1 << 40))
def test_work__a_derangement_leaves_nobody_in_place(hosts: int, seed: int) -> None:
    drawn = work.derangement(hosts, work.generator(seed, 1))
    assert sorted(drawn.tolist()) == list(range(hosts))
    assert (drawn != np.arange(hosts)).all()


def test_work__another_seed_is_another_permutation_and_the_same_is_the_same() -> None:
    one = scenario("hosts = 64")
    assert (one.work.transfers["to"] == scenario("hosts = 64").work.transfers["to"]).all()
    other = one.changed({"seed": 2})
    assert (one.work.transfers["to"] != other.work.transfers["to"]).any()


def test_work__a_ring_passes_on_what_it_received() -> None:
    own = made('pattern = "all_reduce_ring"\nsize_bytes = 103', 5)
    steps = own.transfers.reshape(8, 5)
    for before, after, _ in own.dependencies.tolist():
        assert own.transfers["to"][before] == own.transfers["from"][after]
        assert own.transfers["bytes"][before] == own.transfers["bytes"][after], "another piece"
    assert (steps["to"] == (np.arange(5) + 1) % 5).all()
    assert [int(one) for one in steps["bytes"].sum(axis=1)] == [103] * 8


def test_work__all_to_all_sends_each_pair_once_with_a_window() -> None:
    own = made('pattern = "all_to_all"\nsize_bytes = 1_600\nwindow = 3', 16)
    pairs = set(zip(own.transfers["from"].tolist(), own.transfers["to"].tolist(), strict=True))
    assert len(pairs) == 16 * 15
    assert set(own.transfers["bytes"].tolist()) == {100}
    assert len(own.dependencies) == 16 * (15 - 3)


def test_work__experts_get_every_token_and_give_it_back() -> None:
    text = 'pattern = "moe"\ntokens = 100\ntop_k = 2\nexperts = 16\ntoken_bytes = 10\nskew = 1.0'
    own = made(text, 8)
    count = len(own.transfers) // 2
    out, back = own.transfers[:count], own.transfers[count:]
    assert (out["from"] == back["to"]).all()
    assert (out["bytes"] * 2 == back["bytes"]).all()
    assert out["bytes"].sum() <= 8 * 100 * 2 * 10  # tokens for local experts are not sent
    each = made(text + '\nwait = "each"', 8)
    assert len(each.dependencies) == count


def test_work__arrivals_carry_the_load_they_promise() -> None:
    text = 'pattern = "poisson"\nsizes = "websearch"\nload = 0.4\nduration_ns = "200 ms"'
    own = made(text, 32)
    check_rules(own)
    offered = own.transfers["bytes"].sum() / (32 * 12.5e9 * 0.2)
    assert offered == pytest.approx(0.4, rel=0.1)
    assert (np.diff(own.transfers["start_ns"]) >= 0).all()
    assert len(set(own.transfers["stream"].tolist())) == len(own.transfers)


def test_work__distributions() -> None:
    for name in sizes.NAMED:
        points = sizes.points_of(name)
        drawn = sizes.draw(points, 2_000_000, work.generator(1, 1))
        assert drawn.mean() == pytest.approx(sizes.mean_bytes(points), rel=0.05)
        middle = np.interp(0.5, points[:, 1], points[:, 0])
        assert np.median(drawn) == pytest.approx(middle, rel=0.05)
    for wrong in ([], [[1, 0.5], [2, 0.4]], [[1, 0.5]], ["a"], [[0, 0], [5, 1]]):
        with pytest.raises(ValueError, match=r"share|grow"):
            sizes.points_of(wrong)


def test_work__jobs_have_hosts_and_connections_of_their_own() -> None:
    found = scenario(
        "hosts = 8",
        '[[workload]]\nhosts = "0-6/2"\nstart_ns = "1 us"\n'
        '[[workload]]\nhosts = [1, 3, 5]\njitter_ns = 100\n[[workload]]\nhosts = "0-6/2"\n',
    )
    own = found.check().work
    job = own.transfers["job"]
    assert set(own.transfers["from"][job == 0].tolist()) == {0, 2, 4, 6}
    assert set(own.transfers["to"][job == 1].tolist()) == {1, 3, 5}
    assert (own.transfers["start_ns"][job == 0] == 1_000).all()
    assert (own.transfers["start_ns"][job == 1] <= 100).all()
    streams = [set(own.transfers["stream"][job == one].tolist()) for one in range(3)]
    assert not streams[0] & streams[2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('hosts = "0-16"', "hosts are 0 to 15"),
        ('hosts = "0-3,2"', "names a host twice"),
        ('hosts = "3"', "at least 2"),
        ('hosts = "a"', "write"),
        ('pattern = "incast"\nto = 99', "ranks are 0 to 15"),
        ('pattern = "incast"\nsenders = 16', "there are only 15 other ranks"),
        ('pattern = "moe"\nexperts = 17', "multiple of the 16 ranks"),
        ('pattern = "moe"\ntop_k = 17', "give at most 16"),
        ('pattern = "poisson"\nsizes = "nope"', "websearch"),
        ('pattern = "poisson"\nduration_ns = "1000 s"', "shorten it"),
        ('pattern = "goal"', "missing: name a schedule"),
    ],
)
def test_work__what_cannot_be_is_said(text: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        made(text)
