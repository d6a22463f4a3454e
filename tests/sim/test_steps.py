"""Tests training steps: computations, collectives, sends and receives with their dependencies."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from transport.sim import ScenarioError, Simulation, parse
from transport.sim.program import BEGIN, END
from transport.sim.result import Result
from transport.sim.schema import OPERATIONS

US = 1_000
BYTES_PER_NS = 12.5  # rate of a link


def simulated(operations: str, ranks: int = 4, more: str = "") -> Result:
    text = f"""
[network]
hosts = {ranks}
rate = "100 Gb/s"
[[workload]]
pattern = "steps"
{more}
operations = [{operations}]
"""
    simulation = Simulation(parse(text), check=True)
    while simulation.step():
        pass
    result = simulation.result()
    assert result.good, result.violation
    return result


def times_ns(result: Result, name: str, kind: int, step: int = 0) -> np.ndarray:
    """For each rank, when its operation `name` of this step began or ended."""
    program, local = result.scenario.work.jobs[0].program, result.scenario.work.local
    assert program is not None
    assert result.local is not None
    numbers = [
        at for at, one in enumerate(program.operations) if one.name == name and one.step == step
    ]
    chosen = np.isin(local["operation"], numbers) & (local["kind"] == kind)
    order = np.argsort(local["rank"][chosen])
    return np.asarray(result.local["ready_ns"][chosen][order])


def at_ns(result: Result, kind: int) -> dict[tuple[int, int], int]:
    """(operation, rank) -> when the rank began or ended the operation, as `kind` says."""
    assert result.local is not None
    local = result.scenario.work.local
    chosen = local["kind"] == kind
    keys = zip(local["operation"][chosen].tolist(), local["rank"][chosen].tolist(), strict=True)
    return dict(zip(keys, result.local["ready_ns"][chosen].tolist(), strict=True))


def test_steps__computations_of_a_stream_run_one_after_the_other() -> None:
    found = simulated('{compute_ns = "30 us"}, {compute_ns = "12 us"}', more="repeats = 3")
    assert found.steps[0]["step_ns"] == 42 * US
    assert found.steps[0]["exposed_share"] == 0
    assert len(found.transfers) == 0


def test_steps__communication_overlaps_with_later_computations() -> None:
    """The all-reduce needs about 160 us: 2 (n - 1) / n of 1.3 MB at 12.5 bytes per ns."""
    found = simulated(
        '{name = "a", compute_ns = "50 us"},'
        '{name = "sum", collective = "all_reduce_ring", size_bytes = 1_333_333},'
        '{name = "b", compute_ns = "100 us"},'
        '{name = "use", compute_ns = "10 us", after = "sum"}'
    )
    assert set(times_ns(found, "b", BEGIN)) == {50 * US}
    assert set(times_ns(found, "sum", BEGIN)) == {50 * US}
    ended = times_ns(found, "sum", END)
    assert (ended > 50 * US + 1_333_333 * 1.5 / BYTES_PER_NS).all()
    assert (times_ns(found, "use", BEGIN) == ended).all()
    row = found.steps[0]
    assert row["compute_ns"] == 160 * US
    assert row["exposed_share"] == pytest.approx(1 - 160 * US / row["step_ns"])


def test_steps__a_slow_host_launches_too_late_for_its_gpu() -> None:
    """The GPU waits: four operations of 1 us are launched 20 us apart."""
    operations = ", ".join(['{compute_ns = "1 us"}'] * 4)
    found = simulated(operations, more='launch_ns = "20 us"\nrepeats = 2')
    assert times_ns(found, "operation 3", END)[0] == 61 * US
    # The host waits for the GPU before the next step.
    assert times_ns(found, "operation 0", BEGIN, step=1)[0] == (61 + 20) * US


def test_steps__a_host_that_does_not_wait_launches_ahead() -> None:
    more = 'launch_ns = "1 us"\nrepeats = 2\nsync = false'
    found = simulated('{name = "a", compute_ns = "50 us"}', more=more)
    assert times_ns(found, "a", BEGIN, step=1)[0] == 50 * US


@pytest.mark.parametrize("launch_ns", [0, 1 * US])
@pytest.mark.parametrize(
    "first",
    [
        # Two communicators: each has an operation of its own.
        '{name = "a", collective = "reduce_scatter", size_bytes = 400, group_ranks = 2}',
        # The first rank does not receive, and the last one does not send.
        '{name = "a", collective = "receive", size_bytes = 100},'
        '{name = "b", collective = "send", size_bytes = 100, stream = "out"}',
    ],
)
def test_steps__each_host_waits_for_its_gpu(first: str, launch_ns: int) -> None:
    work = '{name = "long", compute_ns = "900 us", stream = "other"}'
    found = simulated(f"{first}, {work}", more=f"launch_ns = {launch_ns}\nrepeats = 2")
    program = found.scenario.work.jobs[0].program
    assert program is not None
    begins, ends = (at_ns(found, kind) for kind in (BEGIN, END))
    for rank in range(4):
        mine = [key for key in begins if key[1] == rank]
        ended = max(ends[key] for key in mine if program.operations[key[0]].step == 0)
        assert ended >= 900 * US
        later = [key for key in mine if program.operations[key[0]].step == 1]
        assert min(begins[key] for key in later) >= ended + launch_ns


def test_steps__a_slow_rank_delays_all_others() -> None:
    found = simulated(
        '{name = "a", compute_ns = "50 us"}, {name = "sum", collective = "all_reduce_ring", '
        "size_bytes = 400}",
        more="slow_ranks = [2]\nslow_factor = 3",
    )
    assert times_ns(found, "sum", BEGIN).tolist() == [50 * US, 50 * US, 150 * US, 50 * US]
    assert (times_ns(found, "sum", END) > 150 * US).all()


def test_steps__groups_of_consecutive_ranks_and_across_them() -> None:
    found = simulated(
        '{collective = "all_reduce_ring", size_bytes = 800, group_ranks = 4},'
        '{collective = "all_gather", size_bytes = 400, group_ranks = 4, across = true}',
        ranks=8,
    )
    sent: Counter[tuple[int, int]] = Counter()
    for one in found.scenario.work.transfers:
        sent[int(one["from"]), int(one["to"])] += int(one["bytes"])
    # Ranks send 2 * 3 chunks of 200 bytes to the next rank of their ring, 0-1-2-3 or 4-5-6-7, and
    # one chunk of 200 bytes to the other rank of their pair, 0-4, 1-5, 2-6 or 3-7.
    wanted = {(4 * g + r, 4 * g + (r + 1) % 4): 1200 for g in range(2) for r in range(4)}
    wanted |= {(r, (r + 4) % 8): 200 for r in range(8)}
    assert sent == wanted


def test_steps__a_communicator_has_one_set_of_ranks() -> None:
    found = simulated(
        "{compute_ns = 1, group_ranks = 2},"
        '{collective = "all_reduce_ring", size_bytes = 400},'
        '{collective = "all_gather", size_bytes = 400, group_ranks = 2},'
        '{collective = "all_gather", size_bytes = 400, group_ranks = 2, across = true},'
        '{collective = "send", size_bytes = 400, group_ranks = 2, stream = "out"},'
        '{collective = "receive", size_bytes = 400, stream = "in"}'
    )
    program = found.scenario.work.jobs[0].program
    assert program is not None
    groups: dict[int, set[tuple[int, ...]]] = {}
    for one in program.operations:
        if one.function and one.peers is None:
            groups.setdefault(one.communicator, set()).add(tuple(one.ranks.tolist()))
    assert [len(group) for group in groups.values()] == [1] * 5
    messages = {one.communicator for one in program.operations if one.peers is not None}
    assert len(messages) == 1
    assert not messages & groups.keys()


def test_steps__a_pipeline_goes_from_stage_to_stage() -> None:
    """Each of three stages begins 100 us, and a message of about 8 us, after the previous one."""
    forward = ", ".join(
        f'{{name = "in{m}", collective = "receive", size_bytes = "100 kB", stream = "in"}},'
        f'{{name = "f{m}", compute_ns = "100 us", after = "in{m}"}},'
        f'{{name = "out{m}", collective = "send", size_bytes = "100 kB", after = "f{m}", '
        f'stream = "out"}}'
        for m in range(2)
    )
    found = simulated(forward, ranks=3)
    # A message is on the wire of each link for 8 us, and links have delays.
    begun = times_ns(found, "f0", BEGIN)
    assert begun[0] == 0
    assert (np.diff(begun) > 108 * US).all()
    assert (np.diff(begun) < 116 * US).all()
    assert (times_ns(found, "f1", BEGIN) - times_ns(found, "f0", END) < 16 * US).all()


def test_steps__collectives_and_messages_of_some_ranks() -> None:
    """Ranks 0 to 3 are a stage, ranks 4 to 7 the next one; the last message goes back."""
    found = simulated(
        '{collective = "all_gather", size_bytes = 400, ranks = "0-3"},'
        '{collective = "all_gather", size_bytes = 200, ranks = "4-7", group_ranks = 2, '
        "across = true},"
        '{collective = "send", size_bytes = 70, ranks = [4], shift = -4},'
        '{collective = "receive", size_bytes = 70, ranks = [0], shift = -4}',
        ranks=8,
    )
    sent: Counter[tuple[int, int]] = Counter()
    for one in found.scenario.work.transfers:
        sent[int(one["from"]), int(one["to"])] += int(one["bytes"])
    wanted = {(r, (r + 1) % 4): 300 for r in range(4)}
    wanted |= {(4, 6): 100, (6, 4): 100, (5, 7): 100, (7, 5): 100, (4, 0): 70}
    assert sent == wanted


@pytest.mark.parametrize(
    ("operation", "hops"),
    [
        ('{collective = "all_gather", ranks = "0-3", HOP}', 3),
        ('{collective = "all_reduce_ring", ranks = "0-3", HOP}', 6),
        ('{collective = "all_reduce_double_tree", ranks = "0-3", slices = 1, HOP}', 4),
        ('{collective = "all_gather_pat", ranks = "0-3", HOP}', 2),
        ('{collective = "all_to_all", HOP}', 2),
        ('{collective = "send", ranks = "0"}, {collective = "receive", ranks = "1", HOP}', 1),
    ],
)
def test_steps__each_hop_of_an_operation_takes_time(operation: str, hops: int) -> None:
    """An all-to-all of eight ranks has seven messages of each, four at a time: two hops."""
    plain, slow = (
        simulated(operation.replace("HOP", f"hop_ns = {hop_ns}"), ranks=8)
        for hop_ns in (0, 1_000 * US)
    )
    more_ns = slow.steps[0]["step_ns"] - plain.steps[0]["step_ns"]
    assert more_ns == pytest.approx(hops * 1_000 * US, rel=0.01)


COLLECTIVES = [one for one in OPERATIONS if one not in ("send", "receive")]


@st.composite
def programs(draw: st.DrawFn) -> str:
    """A list of up to eight operations that wait for each other in any way that is allowed."""
    found: list[str] = []
    for number in range(draw(st.integers(1, 8))):
        after = [f"o{one}" for one in range(number) if draw(st.booleans())]
        keys = [f'name = "o{number}"', f'stream = "{draw(st.sampled_from("abc"))}"']
        keys += [f"after = {after}"] if draw(st.booleans()) else []
        if draw(st.booleans()):
            keys.append(f"compute_ns = {draw(st.integers(0, 50_000))}")
        else:
            keys.append(f'collective = "{draw(st.sampled_from(COLLECTIVES))}"')
            keys.append(f"size_bytes = {draw(st.integers(1, 50_000))}")
            keys += ["group_ranks = 2"] if draw(st.booleans()) else []
        found.append("{" + ", ".join(keys) + "}")
    return ",\n".join(found)


@settings(max_examples=40, deadline=None)
@given(programs(), st.sampled_from([2, 4, 6]), st.booleans(), st.integers(0, 3_000))
def test_steps__operations_begin_after_what_they_wait_for(
    operations: str, ranks: int, sync: bool, launch_ns: int
) -> None:
    more = f"repeats = 2\nsync = {str(sync).lower()}\nlaunch_ns = {launch_ns}"
    found = simulated(operations, ranks=ranks, more=more)
    program = found.scenario.work.jobs[0].program
    assert program is not None
    begins, ends = (at_ns(found, kind) for kind in (BEGIN, END))
    for number, one in enumerate(program.operations):
        for wait in one.waits:
            for rank, before in zip(one.ranks.tolist(), wait.operation.tolist(), strict=True):
                assert before < 0 or begins[number, rank] >= ends[before, rank]
    assert all(ends[key] >= begin for key, begin in begins.items())


def test_steps__a_run_that_computes_until_its_limit_took_that_long() -> None:
    text = "limit_ns = 1_000_000\n[network]\nhosts = 2\n[[workload]]\npattern = 'steps'\n"
    simulation = Simulation(parse(f"{text}operations = [{{compute_ns = '5 s'}}]"))
    while simulation.step():
        pass
    result = simulation.result()
    assert not result.finished
    assert result.summary()["virtual_ns"] == 1_000_000


@pytest.mark.parametrize(
    ("operations", "more", "said"),
    [
        ("", "", "operations: missing: give some"),
        ("{}", "", "operation 0: give either compute_ns or collective"),
        ('{compute_ns = 1, collective = "reduce"}', "", "give either compute_ns or collective"),
        ("{compute_ns = 1, stram = 2}", "", "no such key; did you mean stream?"),
        ('{name = "a", compute_ns = 1, after = "b"}', "", "a: no operation 'b' comes before it"),
        ('{name = "a", compute_ns = 1, after = "b"}', "", "it is the first one: remove its after"),
        ('{name = "a", compute_ns = 1, after = ["a"]}', "", "a: after: it cannot wait for itself"),
        (
            '{name = "a", compute_ns = 1, after = "b"}, {name = "b", compute_ns = 1}',
            "",
            "a: after: 'b' comes later in the list",
        ),
        (
            '{compute_ns = 1}, {name = "a", compute_ns = 1, after = [["b"]]}',
            "",
            "a: no operation ['b'] comes before it; choose one of operation 0",
        ),
        ('{name = "a", compute_ns = 1}, {name = "a", compute_ns = 1}', "", "have this name"),
        ('{collective = "reduce", group_ranks = 3}', "", "must divide the 4 ranks"),
        ('{collective = "reduce", group_ranks = 4, across = true}', "", "at least 2 ranks"),
        ('{collective = "reduce", root = 4}', "", "root 4: ranks of its communicator are 0 to 3"),
        (
            '{name = "a", collective = "broadcast", root = 2, group_ranks = 2}',
            "",
            "a: root 2: ranks of its communicator are 0 to 1",
        ),
        ('{collective = "all"}', "", "choose one of all_reduce_ring"),
        (
            '{name = "out", collective = "send"}',
            "",
            "out: the send of rank 0 to rank 1 has no receive, and 2 more sends and receives lack "
            "their other end: give each send a receive with shift 1",
        ),
        (
            '{collective = "send"}, {name = "in", collective = "receive"}, '
            '{name = "in 2", collective = "receive", shift = 3}',
            "",
            "in 2: the receive of rank 3 from rank 0 has no send: give each receive a send with "
            "shift 3",
        ),
        ('{name = "a", compute_ns = 1, ranks = "4"}', "", "a: ranks: 4: ranks are 0 to 3"),
        ('{name = "a", compute_ns = 1, ranks = []}', "", "a: ranks: []: give a rank"),
        ('{collective = "send", shift = 4}', "", "shift 4: must be from 1 to 3, or as much below"),
        (
            '{name = "a", collective = "send", ranks = "2-3"}',
            "",
            "a: shift 1: rank 3 has no rank 4: ranks are 0 to 3",
        ),
        (
            '{name = "a", collective = "reduce", ranks = "2"}',
            "",
            "a: ranks: a group needs at least",
        ),
        ('{collective = "reduce", ranks = "0-2", group_ranks = 2}', "", "must divide the 3 ranks"),
        ("{compute_ns = 1}", "slow_ranks = [4]", "slow_ranks: 4: ranks are 0 to 3"),
        ("{compute_ns = 1}", "slow_ranks = 4", "expected a list of whole numbers"),
        ("{compute_ns = 1}", "repeats = 1_048_576\nname = 3", "expected text in quotes"),
        (", ".join(["{compute_ns = 1}"] * 2), "repeats = 1_048_576", "use fewer repeats"),
    ],
)
def test_steps__a_wrong_key_is_said(operations: str, more: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        simulated(operations, more=more)
    assert said in str(caught.value)
    assert "scenario:" in str(caught.value)
