"""Tests plans of training steps: which are refused, and what is said of rare ones."""

from dataclasses import replace

import pytest

from tests.estimate.test_step import GPU, SMALL, network
from transport.estimate.networks import of_links
from transport.estimate.plan import Plan, PlanError
from transport.estimate.training import train


def test_train__nodes_that_are_not_full_are_refused() -> None:
    eight = of_links("ethernet-100", "nvlink4", 8)
    assert train(SMALL, Plan(data=4, global_batch=4), GPU, eight).step_ns > 0
    with pytest.raises(PlanError, match="data: 12 GPUs in all: must be a multiple of the 8 GPUs"):
        train(SMALL, Plan(data=12, global_batch=12), GPU, eight)
    for tensor, is_good in ((3, False), (8, True), (16, True)):
        plan = Plan(data=8, tensor=tensor, global_batch=8)
        model = replace(SMALL, heads=48, hidden=48 * 64)
        if is_good:
            assert train(model, plan, GPU, eight).step_ns > 0
        else:
            with pytest.raises(PlanError, match="tensor: 3 GPUs share a layer: they must divide"):
                train(model, plan, GPU, eight)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(data=4, global_batch=6), "must be a multiple of data x micro_batch, 4"),
        (Plan(pipeline=9, global_batch=9), "8 layers cannot be split into 9 chunks"),
        (Plan(tensor=3), "must divide the 16 heads"),
        (Plan(data=2, expert=2, global_batch=2), "small has no experts"),
        (Plan(pipeline=2, interleave=2, global_batch=3), "must be a multiple of the 2 stages"),
        (Plan(zero=4), "zero: 4: must be 0 to 3"),
        (Plan(data=0), "data: 0: must be at least 1"),
        (
            Plan(data=1 << 20, tensor=2),
            "2,097,152 GPUs in all (data x tensor x pipeline x context)",
        ),
        (Plan(data=8, global_batch=8, shard=4), "shard: 4: needs zero of 1 to 3"),
        (Plan(data=8, global_batch=8, zero=3, shard=3), "must divide data x context, 8"),
        (Plan(schedule="gpipe"), "schedule: 'gpipe': must be one of"),
        (Plan(schedule="zero-bubble"), "schedule: zero-bubble: needs pipeline stages"),
        (
            Plan(pipeline=2, interleave=2, global_batch=2, schedule="zero-bubble"),
            "interleave: 2: only the schedule 1f1b interleaves",
        ),
        (
            Plan(pipeline=4, global_batch=6, schedule="dualpipe"),
            "an even number of stages, not 4, and of microbatches, not 6, at least two",
        ),
        (Plan(selective="layers"), "selective: 'layers': must be one of"),
        (Plan(tensor=2, sequence=True, expert_tensor=1), "expert_tensor: 1: small has no experts"),
        (Plan(kept=("wo",)), "kept: wo: must be of"),
        (Plan(kept=(), recompute=True), "kept: cannot be combined with recompute"),
    ],
)
def test_plan__what_does_not_fit_is_one_line(plan: Plan, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        train(SMALL, plan, GPU, network())
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(tensor=2, expert_tensor=1), "expert_tensor: 1: with other than the 2 GPUs of tensor"),
        (Plan(data=2, global_batch=2, expert_tensor=3), "must divide the 2 GPUs of a pipeline"),
        (Plan(data=3, global_batch=3, expert_tensor=3), "must divide the hidden size of an expert"),
        (
            Plan(tensor=2, sequence=True, expert=4, expert_tensor=1),
            "expert: 4: must divide the 8 experts and data x context x tensor / expert_tensor, 2",
        ),
        (
            Plan(data=8, tensor=2, sequence=True, global_batch=8, expert_tensor=1, zero=3, shard=4),
            "shard: 4: cannot be combined with expert or expert_tensor",
        ),
    ],
)
def test_plan__experts_that_do_not_fit(plan: Plan, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        train(replace(SMALL, experts=8, active=2), plan, GPU, network())
    assert said in str(caught.value)


def test_plan__says_what_published_runs_hardly_have() -> None:
    """Dozens of them have tensor, pipeline and context parallelism, ZeRO and FP8."""
    many = Plan(tensor=2, pipeline=2, context=2, zero=1, dtype="fp8", overlap=True, interleave=2)
    assert many.unchecked() == []
    few = Plan(tensor=2, expert=2, expert_tensor=1, schedule="zero-bubble", overlap_context=True)
    assert few.unchecked() == ["expert", "expert_tensor", "schedule zero-bubble", "overlap_context"]
