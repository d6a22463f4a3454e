"""Tests the core with random fault schedules: invariants hold, and runs end and are repeatable.

Hypothesis generates the schedules and minimises failing ones.
"""

from typing import Any

from hypothesis import example, given, strategies as st

from tests.core import rigs
from transport import native

MS = 1_000_000
STEPS_MAX = 400_000
DIRECTORIES = [str(native.POLICY_DIRECTORY)]
POLICIES = {
    "window": ["fixed", "swift"],
    "path": ["fixed", "oblivious", "power_of_two"],
    "loss": ["fixed", "rack"],
    "credit": ["", "fixed", "grant"],
}

chances = st.one_of(st.just(0.0), st.floats(0.0, 0.3))
links = st.fixed_dictionaries(
    {
        "loss": chances,
        "reorder": chances,
        "duplicate": chances,
        "corrupt": chances,
        "mark": chances,
        "replay": st.one_of(st.just(0.0), st.floats(0.0, 0.1)),
        "stray": st.one_of(st.just(0.0), st.floats(0.0, 0.1)),
        "delay_ns": st.integers(0, 300_000),
        "jitter_ns": st.one_of(st.just(0), st.integers(1, 2 * MS)),
        "bytes_per_s": st.one_of(st.just(0), st.integers(10_000_000, 1_000_000_000)),
    }
)
traffic = st.fixed_dictionaries(
    {
        "seed": st.integers(1, 2**40),
        "paths": st.integers(1, 8),
        "segment_bytes": st.sampled_from([128, 576, 1472, 4096, 9000]),
        "stripes": st.integers(1, 4),
        "messages": st.integers(1, 8),
        "message_bytes_max": st.one_of(st.integers(1, 40_000), st.integers(1, 500_000)),
        "zero_fraction": st.floats(0.0, 1.0),
        "small_fraction": st.floats(0.0, 1.0),
        "both_ways": st.booleans(),
        "windows": st.booleans(),
        "late_reads": st.booleans(),
        "staged_sends": st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
        "staged_receives": st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
        "post_gap_ns_max": st.one_of(st.integers(0, 2_000), st.integers(0, 5 * MS)),
        "eager_bytes": st.one_of(st.just(0), st.integers(1, 9_000)),
        "eager_slots": st.integers(0, 16),
        "window_bytes_max": st.integers(20_000, 4 << 20),
        "port_buffer_bytes": st.integers(10_000, 1 << 20),
    }
)
outages = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 5 * MS), st.integers(MS, 300 * MS)), max_size=4
)
moments = st.integers(MS, 6 * MS)
ends: st.SearchStrategy[dict[str, int | bool]] = st.one_of(
    st.just({}),
    st.just({}),
    moments.map(lambda ns: {"dies_at_ns": ns}),
    moments.map(lambda ns: {"close_at_ns": ns}),
    st.just({"send_too_long": True}),
)


@st.composite
def schedules(draw: st.DrawFn) -> Any:
    """A native schedule with random values in all fields."""
    schedule = rigs.Schedule()
    for name, value in (draw(traffic) | draw(ends)).items():
        setattr(schedule, name, value)
    faults = rigs.LinkFaults()
    for name, value in draw(links).items():
        setattr(faults, name, value)
    schedule.faults = faults
    schedule.outages = [
        rigs.PathOutage(path=path, from_ns=from_ns, until_ns=from_ns + lasts_ns)
        for path, from_ns, lasts_ns in draw(outages)
    ]
    for family, names in POLICIES.items():
        name = draw(st.sampled_from(names))
        if name:
            schedule.choose(family, name, DIRECTORIES)
    return schedule


@given(schedule=schedules())
@example(schedule=rigs.Schedule())
def test_properties__every_step_keeps_the_invariants(schedule: Any) -> None:
    rig = rigs.Rig(schedule)
    steps = 0
    while rig.now_ns < schedule.limit_ns and rig.step():
        assert rig.violation == ""
        steps += 1
        assert steps < STEPS_MAX, f"no end in sight at {rig.now_ns} ns"
        if rig.finished:
            break
    assert rig.finished, f"{rig.outstanding} requests never ended"


@given(schedule=schedules())
def test_properties__the_end_is_reached_and_is_the_same_twice(schedule: Any) -> None:
    first = rigs.run_schedule(schedule)
    assert first.violation == ""
    assert not first.hung
    assert first.corrupt_messages == 0
    assert first.policies_failed == 0
    both = 2 if schedule.both_ways else 1
    assert first.completed + first.failed == 2 * both * schedule.messages
    second = rigs.Rig(schedule).run()
    assert second.fingerprint == first.fingerprint
    assert second.ended_ns == first.ended_ns
    assert second.path_bytes == first.path_bytes


@given(schedule=schedules())
def test_properties__without_faults_nothing_fails_or_is_sent_again(schedule: Any) -> None:
    schedule.faults = rigs.LinkFaults()
    schedule.outages = []
    schedule.dies_at_ns = schedule.close_at_ns = -1
    schedule.send_too_long = False
    schedule.staged_receives = 0.0  # no staging: segments that meet a full ring would be resent
    report = rigs.run_schedule(schedule)
    assert report.violation == ""
    assert report.failed == 0
    assert report.link.lost == 0
    for counters, stack in zip(report.counters, report.stack, strict=True):
        assert counters.segments_resent == 0
        assert counters.segments_duplicate == 0
        assert stack.malformed == stack.stray == stack.bad_crc == 0


@given(schedule=schedules(), open_bytes=st.integers(0, 2_000))
def test_properties__a_stranger_gets_at_most_three_times_its_own_bytes(
    schedule: Any, open_bytes: int
) -> None:
    """The rig checks the bound with each datagram, and that no data is sent to a stranger."""
    schedule.open_bytes = open_bytes
    report = rigs.run_schedule(schedule)
    assert report.violation == ""
    assert not report.hung
    assert report.corrupt_messages == 0
    assert rigs.Rig(schedule).run().fingerprint == report.fingerprint


@given(schedule=schedules(), open_bytes=st.integers(0, 2_000))
def test_properties__a_stranger_that_is_never_heard_gets_three_times_its_request(
    schedule: Any, open_bytes: int
) -> None:
    schedule.open_bytes = open_bytes
    schedule.faults = rigs.LinkFaults()
    schedule.outages = [
        rigs.PathOutage(path=path, from_ns=0, until_ns=2**62) for path in range(schedule.paths)
    ]
    schedule.dies_at_ns = schedule.close_at_ns = -1
    report = rigs.run_schedule(schedule)
    # The rig expects that paths come back; here they do not, and all requests fail.
    assert not report.violation.startswith("bound")
    assert report.early_bytes <= 3 * open_bytes
    assert (report.early_bytes > 0) == (open_bytes >= 14)  # enough for one probe of 40 bytes


@st.composite
def late_writes(draw: st.DrawFn) -> Any:
    """Sends long messages through RDMA memory windows; the network delays and reorders."""
    schedule = draw(schedules())
    schedule.windows = schedule.late_reads = True
    schedule.staged_sends = schedule.staged_receives = draw(st.sampled_from([0.0, 0.3]))
    schedule.segment_bytes, schedule.messages = 576, 8
    schedule.message_bytes_max, schedule.eager_bytes = 60_000, 0
    schedule.zero_fraction = schedule.small_fraction = 0.0
    schedule.dies_at_ns = schedule.close_at_ns = -1
    schedule.send_too_long, schedule.outages = False, []
    faults = rigs.LinkFaults()
    faults.loss, faults.reorder, faults.duplicate, faults.replay = 0.02, 0.3, 0.2, 0.1
    faults.reorder_ns_max = faults.replay_ns_max = 20 * MS
    schedule.faults = faults
    return schedule


@given(schedule=late_writes())
def test_properties__late_originals_change_no_byte(schedule: Any) -> None:
    report = rigs.run_schedule(schedule)
    assert report.violation == ""
    assert report.failed == 0
    assert report.writes > 0 or schedule.staged_sends > 0.0  # unless all messages were staged


@st.composite
def narrow_paths(draw: st.DrawFn) -> Any:
    """Adds paths that for a while drop datagrams above a size, in one or both directions."""
    schedule = draw(schedules())
    schedule.search_size, schedule.windows = True, False
    schedule.segment_bytes = draw(st.sampled_from([1472, 4096, 9000]))
    schedule.limits = [
        rigs.SizeLimit(
            path=path,
            sender=draw(st.sampled_from([-1, 0, 1])),
            bytes_max=draw(st.integers(576, 9000)),
            from_ns=draw(st.integers(0, 5 * MS)),
            until_ns=draw(st.integers(6 * MS, 2_000 * MS)),
        )
        for path in range(schedule.paths)
        if draw(st.integers(0, 4)) != 0
    ]
    return schedule


@given(schedule=narrow_paths())
def test_properties__paths_may_swallow_what_is_long(schedule: Any) -> None:
    report = rigs.run_schedule(schedule)
    assert report.violation == ""
    assert not report.hung
    assert report.corrupt_messages == 0
    assert rigs.Rig(schedule).run().fingerprint == report.fingerprint


def test_properties__a_narrow_network_is_used_at_its_own_size() -> None:
    schedule = rigs.Schedule()
    schedule.search_size, schedule.segment_bytes = True, 9000
    schedule.messages, schedule.message_bytes_max, schedule.zero_fraction = 12, 500_000, 0.0
    schedule.limits = [
        rigs.SizeLimit(path=path, bytes_max=1472, until_ns=8_000 * MS) for path in range(4)
    ]
    report = rigs.run_schedule(schedule)
    assert report.violation == ""
    assert report.failed == 0
    assert report.segment_bytes_last == [1472, 1472]
    assert report.counters[0].segments_resent < 200


def test_properties__a_window_that_outlives_its_message_is_found_out() -> None:
    """If a memory window stays open after its message, a late write must break P-1."""
    found = []
    for seed in range(1, 40):
        schedule = rigs.Schedule()
        schedule.seed, schedule.segment_bytes = seed, 576
        schedule.windows = schedule.late_reads = schedule.windows_outlive = True
        schedule.eager_bytes, schedule.zero_fraction, schedule.small_fraction = 0, 0.0, 0.0
        faults = rigs.LinkFaults()
        faults.duplicate, faults.reorder, faults.reorder_ns_max = 0.2, 0.3, 20 * MS
        schedule.faults = faults
        found.append(rigs.run_schedule(schedule).violation)
    broken = [violation for violation in found if violation]
    assert len(broken) >= 10
    assert all(violation.startswith("P-1") for violation in broken)


@given(seed=st.integers(0, 2**63), steps=st.integers(0, 50))
def test_properties__a_drawn_schedule_is_its_seed(seed: int, steps: int) -> None:
    menu = rigs.PolicyMenu()
    for family, names in POLICIES.items():
        for name in names:
            if name:
                menu.add(family, name, DIRECTORIES)
    pair = [rigs.draw_schedule(seed, menu) for _ in range(2)]
    assert pair[0].hash == pair[1].hash
    two = [rigs.Rig(schedule) for schedule in pair]
    for _ in range(steps):
        assert two[0].step() == two[1].step()
        assert two[0].now_ns == two[1].now_ns
    assert two[0].report().fingerprint == two[1].report().fingerprint
