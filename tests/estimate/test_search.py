"""Tests the search of plans: against all plans of a small space."""

from dataclasses import replace

import pytest

from transport.estimate.computation import of_gpu
from transport.estimate.gpus import Gpu, gpu
from transport.estimate.memory import memory_of
from transport.estimate.models import Model
from transport.estimate.networks import of_links
from transport.estimate.plan import RECOMPUTES, Plan, PlanError
from transport.estimate.rounds import length_ns
from transport.estimate.search import (
    Fitting,
    Space,
    fitting,
    helps,
    least_ns,
    mfu,
    plans,
    search,
)
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


def test_search__says_what_is_smallest_and_what_would_help() -> None:
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
    assert helps(SMALL, of_memory(0.1), NETWORK, space) == []
    assert helps(SMALL, of_memory(0.999 * min(every) / 1e9), NETWORK, space)[0] == "4 GPUs"


def test_search__ends_at_its_limit() -> None:
    found = search(SMALL, H100, NETWORK, SPACE, keep=10, limit=2)
    assert (found.estimated, len(found.best), found.complete) == (2, 2, False)


def test_search__no_plan_is_possible() -> None:
    with pytest.raises(PlanError, match="gpus: 11: no plan divides them"):
        search(SMALL, H100, NETWORK, Space(11, 16))


def test_mfu__counts_no_recomputation() -> None:
    plan = Plan(data=2, global_batch=4, recompute=True)
    found = train(SMALL, plan, H100, NETWORK)
    one = Fitting(plan, found.memory, found.step_ns)
    # Four passes are computed, of which three count; the logits are not computed again.
    layers = SMALL.layers * SMALL.layer_flops(2_048)
    used = 3 * layers + 3 * SMALL.head_flops(2_048)
    share = used / (used + layers)
    assert mfu(SMALL, one, H100) == pytest.approx(share * found.flops_per_gpu / H100.flops)
