"""Tests single rules on facts that are made up: who is late, and whether a queue was full."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from transport.diagnose import queues
from transport.diagnose.alone import grown, medians_of
from transport.diagnose.facts import Facts, Process
from transport.diagnose.hang import Standstill, hangs, standstill_of
from transport.diagnose.losses import _at_random
from transport.diagnose.measures import Lateness, _excess_of_kind, apart, lateness_of
from transport.diagnose.paths import Paths, hosts_of
from transport.diagnose.windows import windows_of
from transport.plan.routes import Routes

RANKS, STEPS, STEP_NS, OWN_NS, RUN_NS = 8, 20, 1_000_000, 300_000, 200_000


def facts_of_steps(own_ns: np.ndarray, ends_ns: np.ndarray, **more: Any) -> Facts:
    """A job with one AllReduce in each step.

    own_ns: [step, rank] time from the end of what a rank did before to its first message. ends_ns:
    [step, rank] when that ended, after the begin of the step.
    """
    step, rank = np.divmod(np.arange(STEPS * RANKS), RANKS)
    begin = step * STEP_NS + ends_ns[step, rank]
    arrival = begin + own_ns[step, rank]
    # What a rank did before the AllReduce: it received.
    count = len(step)
    columns = {
        "process": np.tile(rank, 2),
        "id": np.arange(2 * count),
        "comm_id": np.ones(2 * count),
        "rank": np.tile(rank, 2),
        "ranks": np.full(2 * count, RANKS),
        "function": np.repeat(["Recv", "AllReduce"], count),
        "kind": np.repeat(["p2p", "collective"], count),
        "sequence": np.tile(step, 2),
        "count": np.full(2 * count, 1000),
        "datatype": np.full(2 * count, "Float32"),
        "root": np.concatenate([rank + 1, np.full(count, -1)]),
        "begin_ns": np.concatenate([begin - RUN_NS, begin]),
        "arrival_ns": np.concatenate([np.full(count, -1), arrival]),
        "end_ns": np.concatenate([begin, arrival + RUN_NS]),
        "relays": np.repeat([False, True], count) & more.get("relays", False),
        "gpu_wait_ns": np.zeros(2 * count, np.int64),
        "instance": np.concatenate([STEPS + np.arange(count), step]),
    }
    order = np.lexsort((columns["begin_ns"], columns["process"]))
    calls = {name: np.asarray(column)[order] for name, column in columns.items()}
    nothing: dict[str, Any] = {}
    received = more.get("edges", (np.zeros(0, np.int64),) * 3)
    edges = dict(zip(("instance", "target", "first_ns"), received, strict=True))
    edges["source"] = edges["target"] + 1
    processes = tuple(Process(one, f"host{one}", one, None, 0, 0) for one in range(RANKS))
    downs = {name: np.zeros(0) for name in ("source", "target", "path", "what", "time_ns")}
    return Facts(processes, calls, edges, downs, nothing, nothing, downs, STEPS * STEP_NS, {}, {})


def late_of(facts: Facts) -> Lateness:
    return lateness_of(facts, windows_of(facts))


def usual() -> tuple[np.ndarray, np.ndarray]:
    noise = np.random.default_rng(1).integers(-1000, 1000, (STEPS, RANKS))
    return OWN_NS + noise, np.full((STEPS, RANKS), 400_000)


def test_medians__are_those_of_numpy_and_unknown_of_too_few_values() -> None:
    values = np.random.default_rng(7).integers(0, 100, (7, 200)).astype(float)
    values[np.random.default_rng(8).random(values.shape) < 0.4] = np.nan
    enough = (~np.isnan(values)).sum(axis=0) >= 2
    assert 0 < enough.sum() < 200
    found = medians_of(values, 2)
    assert np.array_equal(found[enough], np.nanmedian(values[:, enough], axis=0))
    assert np.isnan(found[~enough]).all()


def test_late__a_rank_that_needs_longer_and_comes_later() -> None:
    own_ns, ends_ns = usual()
    own_ns[10:, 3] += 100_000
    late = late_of(facts_of_steps(own_ns, ends_ns)).own
    assert (late[11:, 3] > 90_000).all()
    assert (np.delete(late, 3, axis=1) == 0).all()


def test_late__a_rank_whose_input_came_early_is_not_late() -> None:
    own_ns, ends_ns = usual()
    own_ns[10:, 3] += 100_000
    ends_ns[10:, 3] -= 100_000
    late = late_of(facts_of_steps(own_ns, ends_ns)).own
    assert late.max() < 5_000


@pytest.mark.parametrize(
    ("relays", "from_step", "is_late"), [(False, 0, True), (True, 0, False), (True, 15, True)]
)
def test_late__a_rank_that_relays_is_compared_with_itself(
    relays: bool, from_step: int, is_late: bool
) -> None:
    own_ns, ends_ns = usual()
    own_ns[from_step:, 0] += 100_000
    # In every step a message to rank 0 starts before rank 0 sends, as at an inner rank of a tree.
    steps = np.arange(STEPS)
    edges = steps, np.zeros(STEPS, np.int64), steps * STEP_NS
    late = late_of(facts_of_steps(own_ns, ends_ns, relays=relays, edges=edges)).own
    assert (late[-3:, 0] > 90_000).all() == is_late
    assert (late[:, 1:] == 0).all()


@pytest.mark.parametrize(("from_step", "late_steps"), [(5, 15), (18, 2), (STEPS, 0)])
def test_late__a_rank_without_peers_is_compared_with_earlier_iterations(
    from_step: int, late_steps: int
) -> None:
    rng = np.random.default_rng(2)
    # Three calls in each of 20 windows; the last window has only one call.
    window = np.repeat(np.arange(STEPS), 3)[: 3 * STEPS - 2]
    kinds = np.tile([7, 7, 9], STEPS)[: len(window)]
    own_ns = np.tile([300_000, 100_000, 50_000], STEPS)[: len(window)]
    own_ns = own_ns + rng.integers(-1000, 1000, len(window))
    own_ns[(window >= from_step) & (kinds == 7)] += 100_000
    own_ns[window == 10] += 40_000  # a single slow iteration, as for a checkpoint
    alone = np.full(len(window), 2)
    late = grown(window, alone, kinds, own_ns, (STEPS, 4))[:, 2]
    assert (late[max(from_step, 11) :] > 95_000).sum() == late_steps - max(11 - from_step, 0)
    assert (np.delete(late[:from_step], slice(10, 11)) == 0).all()


@pytest.mark.parametrize("absent", [None, 0, 2])
def test_behind__a_rank_that_neither_sends_nor_receives_is_named(absent: int | None) -> None:
    """A ring of four ranks; the connections of the absent one are a message behind."""
    source = np.arange(4)
    target = (source + 1) % 4
    touched = (source == absent) | (target == absent)
    edges = {"source": source, "target": target, "messages": np.where(touched, 480, 481)}
    own_ns, ends_ns = usual()
    facts = replace(facts_of_steps(own_ns, ends_ns), edges=edges)
    stand = Standstill(0, np.zeros(0, np.int64), STEP_NS, STEP_NS)
    found = hangs(facts, stand, STEP_NS)
    assert [one.place.name for one in found] == ([] if absent is None else [f"rank {absent}"])
    assert all(one.certain and one.kind == "non_communication_hang" for one in found)


@pytest.mark.parametrize(
    ("absent", "own", "idle_steps", "ended", "stands"),
    [
        (2, 480, 50, False, True),
        (2, 480, 50, True, False),
        (2, 480, 1, False, False),
        (2, 100, 50, False, False),
        (None, 480, 50, False, False),
    ],
)
def test_standstill__of_messages_is_seen_though_idle_ranks_record_samples(
    absent: int | None, own: int, idle_steps: int, ended: bool, stands: bool
) -> None:
    """A rank with far fewer messages has another role; one that has ended waits for nothing."""
    own_ns, ends_ns = usual()
    facts = facts_of_steps(own_ns, ends_ns)
    source = np.arange(4)
    touched = (source == absent) | ((source + 1) % 4 == absent)
    edges = {
        "source": source,
        "target": (source + 1) % 4,
        "messages": np.where(touched, own, 481),
        "end_ns": np.full(4, -1),
    }
    end_ns = facts.end_ns + idle_steps * STEP_NS
    processes = tuple(replace(one, ended=ended, last_ns=end_ns) for one in facts.processes)
    facts = replace(facts, edges=edges, processes=processes, end_ns=end_ns)
    assert (standstill_of(facts, windows_of(facts)) is not None) == stands


def sends_of_stages(begun_ns: np.ndarray, sent_ns: np.ndarray) -> Facts:
    """Two stages of four ranks; in each step a rank receives, and sends to the next stage.

    begun_ns, sent_ns: [step, rank of the first stage] when what it received last had arrived, and
    when it began to send. Ranks of the second stage do the same half a step later.
    """
    step, rank = np.divmod(np.arange(STEPS * RANKS), RANKS)
    later = step * STEP_NS + (rank >= 4) * STEP_NS // 2
    came, sent = later + begun_ns[step, rank % 4], later + sent_ns[step, rank % 4]
    count = len(step)
    columns = {
        "process": np.tile(rank, 2),
        "id": np.arange(2 * count),
        "comm_id": np.ones(2 * count),
        "rank": np.tile(rank, 2),
        "ranks": np.full(2 * count, RANKS + 4),
        "function": np.repeat(["Recv", "Send"], count),
        "kind": np.full(2 * count, "p2p"),
        "sequence": np.tile(step, 2),
        "count": np.full(2 * count, 1000),
        "datatype": np.full(2 * count, "Float32"),
        "root": np.concatenate([rank - 4, rank + 4]),
        "begin_ns": np.concatenate([later, later]),
        "arrival_ns": np.concatenate([np.full(count, -1), sent]),
        "end_ns": np.concatenate([came, sent + RUN_NS]),
        "relays": np.zeros(2 * count, bool),
        "gpu_wait_ns": np.zeros(2 * count, np.int64),
        "instance": np.concatenate([np.arange(count), count + np.arange(count)]),
    }
    order = np.lexsort((columns["begin_ns"], columns["process"]))
    calls = {name: np.asarray(column)[order] for name, column in columns.items()}
    # The first stage's sends arrive at the second stage.
    first = np.flatnonzero(rank < 4)
    edges = {
        "instance": count + first,
        "source": rank[first],
        "target": rank[first] + 4,
        "first_ns": sent[first],
    }
    nothing: dict[str, Any] = {}
    processes = tuple(Process(one, f"host{one}", one, None, 0, 0) for one in range(RANKS))
    return Facts(
        processes, calls, edges, nothing, nothing, nothing, nothing, STEPS * STEP_NS, {}, {}
    )


def test_late__a_send_is_late_if_it_comes_after_those_of_its_stage() -> None:
    noise = np.random.default_rng(3).integers(-1000, 1000, (STEPS, 4))
    begun_ns, sent_ns = np.full((STEPS, 4), 50_000), 350_000 + noise
    sent_ns[10:, 2] += 100_000
    late = late_of(sends_of_stages(begun_ns, sent_ns)).own
    assert (late[11:, [2, 6]] > 90_000).all()
    assert (np.delete(late, [2, 6], axis=1) == 0).all()


def test_late__a_send_whose_input_came_early_is_not_late() -> None:
    noise = np.random.default_rng(3).integers(-1000, 1000, (STEPS, 4))
    begun_ns, sent_ns = np.full((STEPS, 4), 150_000), 350_000 + noise
    begun_ns[10:, 2] -= 100_000  # it spends longer on its own, and sends when the others do
    assert late_of(sends_of_stages(begun_ns, sent_ns)).own.max() < 5_000


def test_standstill__a_pause_of_the_first_iteration_is_no_measure() -> None:
    own_ns, ends_ns = usual()
    facts = facts_of_steps(own_ns, ends_ns)
    # The connections of the first iteration take 900 ms: all that comes after it is 900 ms later.
    for name in ("begin_ns", "arrival_ns", "end_ns"):
        facts.calls[name][facts.calls[name] > STEP_NS] += 900_000_000
    nothing = np.zeros(0, np.int64)
    facts.edges.update(source=nothing, target=nothing, end_ns=nothing)
    facts.calls["end_ns"][-1] = -1  # the last call never ends
    later = replace(facts, end_ns=facts.end_ns + 920_000_000)
    stand = standstill_of(later, windows_of(later))
    assert stand is not None
    assert stand.later_ns < 2 * STEP_NS < stand.longest_ns


def paths_with(rtt_ns: list[list[float]]) -> Paths:
    """Paths of four pairs; the first one is lossy."""
    ends = np.array([[one, one + 1, 0] for one in range(4)])
    rtt = np.array(rtt_ns)
    nothing = np.zeros_like(rtt)
    return Paths(ends, nothing, nothing, nothing, nothing, nothing, rtt, [()] * 4, (), [()] * 4)


LOSSY = np.array([True, False, False, False])
NAN = float("nan")


@pytest.mark.parametrize(
    ("rtt_ns", "full"),
    [
        ([[10.0] * 4] * 6, False),
        ([[10.0] * 4] * 2 + [[90.0, 10.0, 10.0, 10.0]] * 4, True),
        # The lost packets have no round-trip time: it grows in a later window.
        ([[10.0] * 4] * 5 + [[90.0, 10.0, 10.0, 10.0]], True),
        # A queue that was long in most of the earlier windows as well is no usual one.
        ([[10.0] * 4] + [[90.0, 10.0, 10.0, 10.0]] * 5, True),
        # All paths have long round-trip times: the lossy one had them before, too.
        ([[90.0] * 4] * 6, False),
        # All grew with the losses, as those of a shared queue.
        ([[10.0] * 4] * 2 + [[90.0] * 4] * 4, True),
        ([[10.0, 10.0, 10.0, 10.0]] * 2 + [[NAN, 10.0, 10.0, 10.0]] * 4, None),
    ],
)
def test_queues__are_told_by_round_trip_times(rtt_ns: list[list[float]], full: bool | None) -> None:
    assert queues.are_full(paths_with(rtt_ns), slice(2, 4), LOSSY, LOSSY) is full


@pytest.mark.parametrize(
    ("rtt_ns", "waits"),
    [
        ([[10.0] * 4] * 6, False),
        ([[10.0] * 4] * 2 + [[13.0, 10.0, 10.0, 10.0]] * 4, True),
        ([[10.0] * 4] * 2 + [[13.0] * 4] * 4, False),  # as all others do
        ([[NAN] * 4] * 6, False),
    ],
)
def test_queues__grew_where_packets_take_longer_beside_all_others(
    rtt_ns: list[list[float]], waits: bool
) -> None:
    paths = paths_with(rtt_ns)
    paths.lost[3:, 0] = 5
    assert queues.grew(paths, slice(2, 6), LOSSY) is waits


@pytest.mark.parametrize(
    ("lost", "alone", "random"),
    [
        ([30.0] * 6, [29.0] * 6, True),
        ([30.0] * 6, [10.0] * 6, False),  # several in a row, as a full queue loses them
        ([30.0] * 5 + [0.0], [29.0] * 5 + [0.0], False),
        ([5.0] * 6, [5.0] * 6, False),  # 0.5 %: hosts lose as much
        ([30.0] * 5, [29.0] * 5, False),  # not long enough
    ],
)
def test_at_random__is_single_packets_all_the_time(
    lost: list[float], alone: list[float], random: bool
) -> None:
    def of_the_first(values: list[float]) -> np.ndarray:
        made = np.zeros((len(lost), 4))
        made[:, 0] = values
        return made

    paths = replace(
        paths_with([[10.0] * 4] * len(lost)),
        sent=of_the_first([1000.0] * len(lost)),
        lost=of_the_first(lost),
        alone=of_the_first(alone),
    )
    assert _at_random(paths, len(lost) - 1, LOSSY) is random


def test_hosts__of_routes_are_known_by_their_addresses() -> None:
    facts = facts_of_steps(*usual())
    facts.addresses.update({0: ("10.0.0.9",), 1: ("10.0.0.1", "10.0.1.1")})
    routes = Routes((), {}, addresses={"node7": "10.0.1.1", "node8": "10.9.9.9"})
    # The trace names the hosts of ranks 0 and 2 to 7, and the routes that of rank 1.
    assert hosts_of(facts, routes)[:3] == ["host0", "node7", "host2"]


def times_of(pairs: int, slow: list[int], windows: int = 80) -> np.ndarray:
    """[window, pair]: logarithms of the times of messages; from window 10 on, some are 30 times as
    long."""
    times = np.log(np.random.default_rng(2).uniform(95, 105, (windows, pairs)))
    times[10:, slow] += np.log(30)
    return times


def test_slow__half_of_few_pairs() -> None:
    """In a ring of four ranks a slow NIC slows two of four pairs."""
    excess, slow = _excess_of_kind(times_of(4, [0, 1]))
    assert slow[12:, :2].all()
    assert not slow[:, 2:].any()
    assert np.exp(excess[12:, :2]).min() > 20


def test_slow__a_fault_that_lasts_does_not_become_usual() -> None:
    times = times_of(16, [])
    times[10:, 5] += np.log(1.9)  # too little to be seen beside other pairs
    slow = _excess_of_kind(times)[1]
    assert slow[12:, 5].all()
    assert not np.delete(slow, 5, axis=1).any()


def test_late__times_that_overlap_count_once() -> None:
    rng = np.random.default_rng(4)
    process, end_ns = rng.integers(0, 3, 200), rng.integers(500, 5_000, 200) + 1_700_000_000 * 10**9
    lasted_ns = rng.integers(0, 60, 200)
    parts = apart(process, end_ns, lasted_ns)
    assert ((parts >= 0) & (parts <= lasted_ns)).all()
    for one in range(3):
        mine = process == one
        pairs = zip(end_ns[mine].tolist(), lasted_ns[mine].tolist(), strict=True)
        spent = {at for end, lasted in pairs for at in range(end - lasted, end)}
        assert parts[mine].sum() == len(spent)
