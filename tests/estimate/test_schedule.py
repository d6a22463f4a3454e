"""Tests schedules of tasks against times by hand."""

from dataclasses import replace

import pytest
from hypothesis import example, given, strategies as st

from transport.estimate.networks import Slowdown
from transport.estimate.schedule import COMPUTE, ScheduleError, Task, exposed_ns, run
from transport.estimate.times import ROUNDING


def test_schedule__streams_overlap_and_wait() -> None:
    tasks = [
        Task("a", 0, "main", COMPUTE, 10),
        Task("sum a", 0, "data", "gradients", 30, ("a",)),
        Task("b", 0, "main", COMPUTE, 10),
        Task("sum b", 0, "data", "gradients", 5, ("b",)),
        Task("end", 0, "main", COMPUTE, 1, ("sum a", "sum b")),
    ]
    found = run(tasks)
    assert list(found.begins_ns) == [0, 10, 10, 40, 45]
    assert found.length_ns == 46
    assert exposed_ns(tasks) == {"gradients": 25}


def test_schedule__a_circle_is_an_error() -> None:
    tasks = [Task("a", 0, "x", COMPUTE, 1, ("b",)), Task("b", 0, "y", COMPUTE, 1, ("a",))]
    with pytest.raises(ScheduleError, match="a can never begin"):
        run(tasks)


def test_schedule__computation_and_communication_slow_each_other_while_both_run() -> None:
    tasks = [
        Task("a", 0, "main", COMPUTE, 10),
        Task("sum", 0, "data", "gradients", 20, ("a",)),
        Task("b", 0, "main", COMPUTE, 12),
        Task("other GPU", 1, "main", COMPUTE, 100),
    ]
    found = run(tasks, slowdown=Slowdown(2.0, 1.25))
    # Both begin at 10. At 34, b ends; the sum then has 20 - 24 / 1.25 left.
    assert list(found.ends_ns) == pytest.approx([10, 34.8, 34, 100])
    assert run(tasks, frozenset({"gradients"}), Slowdown(2.0, 1.25)).ends_ns[2] == 22


def test_schedule__tasks_that_share_a_nic_slow_each_other() -> None:
    """From 10 to 30 each gets half of the NIC: as much as the sum wants, and half of what the send
    wants."""
    tasks = [
        Task("a", 0, "main", COMPUTE, 10),
        Task("sum", 0, "data", "gradients", 30, nic_share=0.5),
        Task("send", 0, "send", "pipeline", 20, ("a",), nic_share=1.0),
        Task("other GPU's", 1, "data", "gradients", 30, nic_share=1.0),
    ]
    assert list(run(tasks).ends_ns) == [10, 30, 40, 30]
    # The send alone keeps the NIC busy, and the sum only the link inside its node.
    tasks[1] = Task("sum", 0, "data", "gradients", 30)
    assert list(run(tasks).ends_ns) == [10, 30, 30, 30]
    assert exposed_ns([*tasks[:1], *tasks[2:3]]) == {"pipeline": 20}


def test_schedule__three_tasks_share_a_nic_fairly() -> None:
    """The first gets the fifth that it wants, the others two fifths each; from 75 on, all of it."""
    tasks = [
        Task("little", 0, "a", "gradients", 75, nic_share=0.2),
        Task("half", 0, "b", "pipeline", 60, nic_share=0.5),
        Task("all", 0, "c", "expert", 60, nic_share=1.0),
    ]
    # At 75 each has done what it wants, but the last one 30 of 60.
    assert list(run(tasks).ends_ns) == pytest.approx([75, 75, 105])


def test_schedule__a_send_needs_the_nic_of_its_receiver() -> None:
    """Stage 0 sums and receives: both take twice as long. What stage 1 sums is not slowed."""
    tasks = [
        Task("sum", 0, "data", "gradients", 10, nic_share=1.0),
        Task("send", 1, "send", "pipeline", 10, nic_share=1.0, to=0),
        Task("back", 0, "send", "pipeline", 0, nic_share=1.0, to=1),
    ]
    assert list(run(tasks).ends_ns) == [20, 20, 0]


def test_schedule__a_faster_task_can_make_a_step_longer() -> None:
    """After 4 instead of 8 the sum begins beside the send, so the last computation waits."""
    tasks = [
        Task("a", 0, "main", COMPUTE, 4),
        Task("send", 0, "main", "pipeline", 4, nic_share=1.0),
        Task("b", 0, "main", COMPUTE, 4),
        Task("late", 0, "other", COMPUTE, 8),
        Task("sum", 0, "data", "gradients", 4, ("late",), nic_share=1.0),
    ]
    assert list(run(tasks).ends_ns) == [4, 8, 12, 8, 12]
    tasks[3] = replace(tasks[3], ns=4)
    assert list(run(tasks).ends_ns) == [4, 12, 16, 4, 12]


@given(st.floats(1, 5), st.floats(1, 5), st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9))))
def test_schedule__being_slow_is_between_no_overlap_and_all_of_it(
    computation: float, communication: float, layers: list[tuple[float, float]]
) -> None:
    tasks = []
    for number, (compute, bucket) in enumerate(layers):
        tasks.append(Task(f"layer {number}", 0, "main", COMPUTE, compute))
        tasks.append(Task(f"sum {number}", 0, "data", "sum", bucket, (f"layer {number}",)))
    fast = run(tasks).length_ns
    slow = run(tasks, slowdown=Slowdown(computation, communication)).length_ns
    assert fast <= slow + 1e-6
    assert slow <= max(computation, communication) * fast + 1e-6


@example([(1e3, 0.0), (1e3, 1.5e-6)])  # less than ROUNDING of the step: counted as none
@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), min_size=1, max_size=20))
def test_schedule__buckets_begin_when_they_are_ready_and_the_one_before_has_ended(
    layers: list[tuple[float, float]],
) -> None:
    tasks = []
    ready = end = 0.0
    for number, (compute, bucket) in enumerate(layers):
        tasks.append(Task(f"layer {number}", 0, "main", COMPUTE, compute))
        tasks.append(Task(f"sum {number}", 0, "data", "sum", bucket, (f"layer {number}",)))
        ready += compute
        end = max(ready, end) + bucket
    length_ns = max(end, ready)
    assert run(tasks).length_ns == pytest.approx(length_ns)
    # exposed_ns counts less than this part of the step as no time.
    unseen_ns = ROUNDING * length_ns
    exposed = sum(exposed_ns(tasks).values())
    assert exposed == pytest.approx(length_ns - ready, rel=0, abs=unseen_ns)
