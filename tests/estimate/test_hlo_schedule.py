"""Tests what is hidden, and what could be, against simple reckonings of random programs."""

import pytest
from hypothesis import given, strategies as st

from tests.estimate.hlo_programs import program
from transport.estimate.hlo.schedule import Step, relate, run
from transport.estimate.hlo.text import Computation, parse

COSTS = st.lists(st.integers(0, 9).map(float), min_size=1, max_size=12)


@given(COSTS, st.data())
def test_run__exposed_is_what_the_program_takes_longer(
    costs_ns: list[float], data: st.DataObject
) -> None:
    place = st.integers(0, len(costs_ns) - 1)
    drawn = data.draw(st.lists(st.tuples(place, place, st.integers(0, 20)), max_size=6))
    steps = [Step(min(a, b), max(a, b), float(ns)) for a, b, ns in sorted(drawn)]
    steps.sort(key=lambda step: step.begin)
    run(steps, costs_ns)
    now_ns = free_ns = 0.0
    ends_ns: dict[int, float] = {}
    for at, cost_ns in enumerate(costs_ns):
        for number, step in enumerate(steps):
            if step.begin == at:
                free_ns = ends_ns[number] = max(now_ns, free_ns) + step.time_ns
        for number, step in enumerate(steps):
            if step.end == at:
                now_ns = max(now_ns, ends_ns[number])
        now_ns += cost_ns
    exposed_ns = [step.exposed_ns or 0.0 for step in steps]
    assert sum(exposed_ns) == pytest.approx(now_ns - sum(costs_ns))
    assert all(0 <= ns <= step.time_ns for ns, step in zip(exposed_ns, steps, strict=True))


def related(computation: Computation, place: int) -> set[int]:
    """The places of an instruction, of all that it needs, and of all that need it."""
    names = [one.name for one in computation.instructions]
    operands = [{names.index(each) for each in one.operands} for one in computation.instructions]
    needs, needed = {place}, {place}
    for at in range(place, -1, -1):
        needs |= operands[at] if at in needs else set()
    for at in range(place, len(names)):
        needed |= {at} if operands[at] & needed else set()
    return needs | needed


@given(COSTS, st.data())
def test_relate__is_what_neither_needs_nor_is_needed(
    costs_ns: list[float], data: st.DataObject
) -> None:
    lines = []
    for at in range(len(costs_ns)):
        earlier = data.draw(st.lists(st.integers(0, at - 1), max_size=3)) if at else []
        lines.append(f"  %i{at} = f32[] tuple({', '.join(f'%i{one}' for one in earlier)})")
    computation = parse(program("\n".join(lines))).entry
    places = data.draw(st.lists(st.integers(0, len(costs_ns) - 1), max_size=10))
    steps = [Step(place, place, 1.0) for place in places]
    any_ns = relate(steps, costs_ns, computation)
    beside = [set(range(len(costs_ns))) - related(computation, place) for place in places]
    for step, free in zip(steps, beside, strict=True):
        assert step.independent_ns == pytest.approx(sum(costs_ns[at] for at in free))
    assert any_ns == pytest.approx(sum(costs_ns[at] for at in set().union(*beside)))
