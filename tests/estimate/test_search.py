"""Tests the search of plans: against all plans of a small space."""

from dataclasses import replace

import pytest

from transport.estimate.computation import of_gpu
from transport.estimate.gpus import Gpu, gpu
from transport.estimate.memory import ABOVE, ABOVE_STAGES, memory_of
from transport.estimate.models import Model
from transport.estimate.nearest import changes, larger_gpus
from transport.estimate.networks import of_links
from transport.estimate.plan import RECOMPUTES, Plan, PlanError
from transport.estimate.rounds import length_ns
from transport.estimate.search import TOO_LARGE, Fitting, fitting, least_ns, mfu, search
from transport.estimate.space import Space, plans
from transport.estimate.step import Step
from transport.estimate.training import launch_ns, train

SMALL = Model("small", 4, 1_024, 8, 4_096, 1_000, 512)
H100 = gpu("h100")
NETWORK = of_links("infiniband-400", "nvlink4", 4)
SPACE = Space(8, 16, schedules=("1f1b", "zero-bubble", "dualpipe"))


def of_memory(gigabytes: float) -> Gpu:
    return replace(H100, memory_bytes=gigabytes * 1e9)


def test_plans__of_two_gpus_by_hand() -> None:
    """Two GPUs in a node, one sequence: a layer is split in two, or there are two stages."""
    found = list(plans(SMALL, NETWORK, Space(2, 1, zeros=(0,), schedules=("1f1b",))))
    degrees = [(one.data, one.tensor, one.pipeline, one.interleave) for one in found]
    assert degrees == [(1, 1, 2, 1), (1, 2, 1, 1)]
    found = list(plans(SMALL, NETWORK, Space(2, 2, zeros=(0,), schedules=("1f1b",))))
    assert {(one.data, one.micro_batch) for one in found if one.data == 2} == {(2, 1)}
    assert {one.interleave for one in found if one.pipeline == 2} == {1, 2}


def test_search__finds_what_estimates_of_all_plans_find() -> None:
    """Every plan with every recomputation, each estimated as a whole."""
    every = [
        replace(plan, **more)
        for plan in plans(SMALL, NETWORK, SPACE)
        for more in RECOMPUTES.values()
    ]
    limit = sorted(memory_of(SMALL, one).total for one in every)[len(every) // 2]
    small = of_memory(limit / 1e9)
    fit = [one for one in every if memory_of(SMALL, one).total <= limit]
    times = {}
    for plan in fit:
        step = Step(SMALL, plan, of_gpu(SMALL, plan, small), NETWORK)
        times[plan] = max(length_ns(step), launch_ns(step))
    found = search(SMALL, small, NETWORK, SPACE, keep=3, limit=10_000)
    assert found.complete
    assert found.best[0].step_ns == pytest.approx(min(times.values()))
    for one in found.best:
        assert one.step_ns == pytest.approx(times[one.plan])
        assert one.memory.total <= limit
    assert [one.step_ns for one in found.best] == sorted(one.step_ns for one in found.best)
    # Without the bound, the search estimates all plans that fit, and finds the same.
    whole = search(SMALL, small, NETWORK, SPACE, keep=10_000, limit=10_000)
    assert whole.estimated == whole.fit == len(whole.best)
    assert found.estimated < whole.estimated
    for one, other in zip(found.best, whole.best, strict=False):
        assert one.step_ns == pytest.approx(other.step_ns)


@pytest.mark.parametrize("model", [SMALL, replace(SMALL, layers=5, experts=4, active=2)])
def test_bound__no_step_is_shorter(model: Model) -> None:
    space = replace(SPACE, contexts=(1, 2), experts=(1, 2) if model.experts > 1 else (1,))
    for plan in plans(model, NETWORK, space):
        step = Step(model, plan, of_gpu(model, plan, H100), NETWORK)
        bound = least_ns(Step(model, plan, of_gpu(model, plan, H100), NETWORK))
        assert bound <= length_ns(step) * (1 + 1e-9), plan


def test_search__takes_the_least_recomputation_that_fits() -> None:
    space = Space(1, 16, zeros=(0,))
    plan = next(one for one in plans(SMALL, NETWORK, space) if one.micro_batch == 16)
    sizes = [memory_of(SMALL, replace(plan, **more)).total for more in RECOMPUTES.values()]
    assert sizes[0] == sizes[1] > sizes[2] > sizes[3]  # attention has no matrix
    found = fitting(SMALL, of_memory(1.001 * sizes[2] / 1e9), NETWORK, space)
    (one,) = [one for one in found.best if one.plan.micro_batch == 16]
    assert one.plan.selective == "operators"


def test_search__leaves_headroom() -> None:
    """By default of a space none; else a part of each plan's estimate, or what peaks were above."""
    space = Space(2, 8, zeros=(0, 3), schedules=("1f1b",))
    little = of_memory(1.5)
    for headroom in (0.0, 0.5, None):
        asked = replace(space, headroom=headroom)
        found = fitting(SMALL, little, NETWORK, asked)
        for one in found.best:
            more = headroom
            if more is None:
                more = ABOVE_STAGES if one.plan.zero == 3 and one.plan.pipeline > 1 else ABOVE
            assert one.memory.total * (1 + more) <= little.memory_bytes
    assert fitting(SMALL, little, NETWORK, replace(space, headroom=1000.0)).best == ()


def test_search__says_what_is_smallest() -> None:
    space = Space(2, 8)
    every = [
        memory_of(SMALL, replace(plan, **more)).total
        for plan in plans(SMALL, NETWORK, space)
        for more in RECOMPUTES.values()
    ]
    found = search(SMALL, of_memory(0.1), NETWORK, space)
    assert not found.best
    assert found.smallest is not None
    assert found.smallest.memory.total == min(every)
    assert found.refused == {TOO_LARGE: 3}  # data, tensor or pipeline parallel


def test_search__counts_why_ways_are_refused() -> None:
    """The 18 ways to divide 12 GPUs, by the first rule that refuses them (tensor x pipeline)."""
    small = fitting(SMALL, of_memory(0.1), NETWORK, Space(12, 4))
    assert small.refused == {
        "data does not divide the batch of 4 sequences": 6,  # 1x1, 1x2, 1x4, 2x1, 2x2, 4x1
        "tensor does not divide the 8 heads": 6,  # 3x1, 3x2, 3x4, 6x1, 6x2, 12x1
        "more pipeline stages than the 4 layers": 3,  # 1x6, 1x12, 2x6
        TOO_LARGE: 3,  # 1x3, 2x3, 4x3
    }
    assert list(small.refused.values()) == sorted(small.refused.values(), reverse=True)
    assert sum(small.refused.values()) == 18


def test_changes__the_smallest_of_each_kind_that_makes_a_plan_fit() -> None:
    space = Space(2, 8)
    smallest = fitting(SMALL, of_memory(0.1), NETWORK, space).smallest
    assert smallest is not None
    assert changes(SMALL, of_memory(0.1), NETWORK, space) == []
    little = of_memory(0.999 * smallest.memory.total / 1e9)
    found = changes(SMALL, little, NETWORK, space)
    assert [one.option for one in found][:1] == ["--gpus 4"]
    fastest = found[0].fastest(little, NETWORK)
    assert fastest is not None
    assert fastest.plan.gpus == 4
    assert fastest.memory.total <= little.memory_bytes


def test_changes__whole_nodes_instead_of_a_number_that_nothing_divides() -> None:
    found = changes(SMALL, H100, NETWORK, Space(11, 16))
    assert [one.option for one in found] == ["--gpus 12"]


def test_larger_gpus__have_more_memory_than_the_smallest_plan_needs() -> None:
    found = fitting(replace(SMALL, layers=24, hidden=8_192), of_memory(1), NETWORK, Space(1, 1))
    assert found.smallest is not None
    named = larger_gpus(found, H100, Space(1, 1))
    sizes = [gpu(name).memory_bytes for name in named]
    assert sizes == sorted(sizes)
    assert sizes[0] >= found.smallest.memory.total


def test_search__ends_at_its_limit() -> None:
    found = search(SMALL, H100, NETWORK, SPACE, keep=10, limit=2)
    assert (found.estimated, len(found.best), found.complete) == (2, 2, False)


def test_search__no_plan_is_possible() -> None:
    found = search(SMALL, H100, NETWORK, Space(11, 16))
    assert found.smallest is None
    assert set(found.refused.values()) == {1}
    with pytest.raises(PlanError, match="context: 3: must divide the 8 GPUs"):
        search(SMALL, H100, NETWORK, Space(8, 16, contexts=(3,)))


def test_mfu__counts_no_recomputation() -> None:
    plan = Plan(data=2, global_batch=4, recompute=True)
    found = train(SMALL, plan, H100, NETWORK)
    one = Fitting(plan, found.memory, found.step_ns)
    # Four passes are computed, of which three count; the logits are not computed again.
    layers = SMALL.layers * SMALL.layer_flops(2_048)
    used = 3 * layers + 3 * SMALL.head_flops(2_048)
    share = used / (used + layers)
    assert mfu(SMALL, one, H100) == pytest.approx(share * found.flops_per_gpu / H100.flops)
