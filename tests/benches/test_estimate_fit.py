"""Tests the fit of kernels to published runs: it finds again what runs were made with."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from bench.estimate_fit import (
    GUESSES,
    Fitted,
    fit,
    groups_of,
    prepared,
    with_kernels,
    work_ns,
)
from bench.lib.published_plans import NotExpressibleError, estimated_s
from bench.lib.published_runs import SETS, read
from transport.estimate.computation import of_gpu
from transport.estimate.plan import REMATS

NAMES = ("megatron-1.7b", "megatron-7.5b", "torchtitan: llama2-13b, 64 A100")
RUNS = {one.run: one for one in read(SETS["fit"])}


def as_if_published(one: Fitted, values: Mapping[str, float]) -> Fitted:
    """The run with the time that it would take with these kernels."""
    made = replace(one, published_s=1.0)
    return replace(one, published_s=math.exp(made.error(with_kernels(one.run, values))))


def test_fit__finds_the_products_share_that_runs_were_made_with() -> None:
    pytest.importorskip("scipy")
    values = {name: guess for name, (guess, _) in GUESSES["A100"].items()} | {"products": 0.7}
    runs = [as_if_published(prepared(RUNS[name]), values) for name in NAMES]
    found, deviations = fit("A100", runs)
    assert found["products"] == pytest.approx(0.7, rel=0.05)
    assert all(0 < one < 1 for one in deviations)


@pytest.mark.parametrize("name", NAMES)
def test_prepared__interpolates_to_the_estimate(name: str) -> None:
    one = prepared(RUNS[name])
    values = {"products": 0.6, "memory": 0.9}
    other = with_kernels(one.run, values)
    whole_s = estimated_s(one.run, lambda model, plan: of_gpu(model, plan, other))
    assert one.error(other) == pytest.approx(math.log(whole_s / one.published_s), abs=0.02)


def test_work__some_layers_are_recomputed_in_part() -> None:
    name = "torchtitan: llama2-13b, 64 A100"
    none, some = prepared(RUNS[name]), prepared(RUNS[f"{name}, layers"])
    whole = replace(none.plan, recompute=True)
    known = with_kernels(none.run, {})
    all_ns = work_ns(replace(none.run, recompute="full"), whole, known)
    assert some.work_ns == pytest.approx((none.work_ns + all_ns) / 2)


def test_plan__of_other_partial_recomputation_is_not_known() -> None:
    with pytest.raises(NotExpressibleError, match="recomputes some operations"):
        prepared(replace(RUNS["megatron-1.7b"], recompute="selective", assumed=""))


def test_fit__finds_how_much_longer_steps_of_several_slices_are() -> None:
    pytest.importorskip("scipy")
    values = {"products": 0.8, "slices": 0.05}
    runs = []
    for name in ("22b, 1 x v4-128", "22b, 2 x v4-128", "22b, 8 x v4-128", "64b, 1 x v5p-128"):
        one = replace(prepared(RUNS[f"maxtext: {name}"]), published_s=1.0)
        runs.append(replace(one, published_s=math.exp(one.error_with(values))))
    found, _ = fit("TPU", runs)
    assert found["products"] == pytest.approx(0.8, rel=0.05)
    assert found["slices"] == pytest.approx(0.05, rel=0.3)
    assert groups_of(runs) == {"tpu-v4", "tpu-v5p"}


def test_plan__maxtext_keeps_what_its_configuration_says() -> None:
    assert prepared(RUNS["maxtext: 64b, 1 x v5p-128"]).plan.kept == REMATS["maxtext-minimal"]
    two = prepared(RUNS["maxtext: 22b, 2 x v4-128"]).plan
    assert (two.kept, two.shard, two.data) == (("out_proj",), 64, 128)
