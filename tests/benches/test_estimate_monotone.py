"""Tests that estimates move the right way, with few of the checks of bench estimate_monotone."""

import random
from dataclasses import fields, replace

import pytest

from bench.estimate_monotone import counted
from bench.lib.monotone import (
    ANOMALY_MAX,
    HIDDEN_MAX,
    OVERLAPS,
    RELATIONS,
    ROUNDING,
    SEARCHES,
    Checked,
    bound_of,
    checked,
    checks,
    splits,
)
from bench.lib.monotone_cases import Training, training
from transport.estimate.gpus import gpu
from transport.estimate.models import PRESETS
from transport.estimate.networks import Slowdown, of_links
from transport.estimate.plan import Plan

OF_SEARCHES = "plan: "  # relations that search plans, which takes seconds


@pytest.mark.parametrize("name", [name for name in RELATIONS if not name.startswith(OF_SEARCHES)])
def test_estimates__move_the_right_way(name: str) -> None:
    for number in range(4):
        found = checked(name, f"test {name} {number}")
        assert found.holds, found


@pytest.mark.long
def test_estimates__move_the_right_way_in_a_thousand_cases() -> None:
    assert not [one for one in checks(1_000, seed=2) if not one.holds]


def test_cases__differ_in_every_field_of_a_plan() -> None:
    """A field that is never drawn is never checked."""
    chance = random.Random(1)
    plans = [training(chance).plan for _ in range(200)]
    for one in fields(Plan):
        if one.name != "value_bytes":  # estimates are of 16 bits
            assert len({getattr(plan, one.name) for plan in plans}) > 1, one.name


def test_checks__are_the_same_for_a_seed() -> None:
    name = "collective: more bytes"
    _, relation = RELATIONS[name]
    first, again = (relation(random.Random("7")) for _ in range(2))
    assert first == again


def test_bound__is_that_of_anomalies_only_if_tasks_of_a_step_slow_each_other() -> None:
    name, network = "step: more efficiency", of_links("infiniband-400", None, 1)
    plan = Plan(data=4, global_batch=4)
    alone = Training(PRESETS["gpt2"], plan, gpu("h100"), network)
    assert bound_of(name, (alone, alone)) == ROUNDING
    shares = replace(alone, plan=replace(plan, tensor=2))  # gradients beside tensor parallelism
    assert bound_of(name, (alone, shares)) == ANOMALY_MAX
    slowed = replace(alone, network=replace(network, slowdown=Slowdown(1.5, 1.0)))
    assert bound_of(name, (slowed, plan)) == ANOMALY_MAX
    hides = replace(shares, plan=replace(shares.plan, overlap=True))
    assert bound_of(name, (shares, hides)) == ANOMALY_MAX
    assert bound_of(OVERLAPS[0], (shares, hides)) == HIDDEN_MAX
    assert set(OVERLAPS) <= set(RELATIONS)
    assert bound_of("memory: more layers", (shares, {})) == ROUNDING
    assert bound_of(SEARCHES[0], (alone, alone)) == ANOMALY_MAX
    assert set(SEARCHES) <= set(RELATIONS)


def test_checked__may_be_larger_by_the_bound_only() -> None:
    most = Checked("", 1.05, 1.0, "", 0.05)
    assert (most.holds, most.is_anomaly) == (True, True)
    assert (replace(most, less=1.06).holds, replace(most, less=1.06).is_anomaly) == (False, False)
    assert (replace(most, less=1.0).holds, replace(most, less=1.0).is_anomaly) == (True, False)
    assert not replace(most, bound=ROUNDING).holds


def test_memory__of_more_gpus_is_not_compared_if_experts_need_a_new_communicator() -> None:
    """With as many data parallel GPUs as experts' no two have the same experts."""
    assert not splits(Plan(data=8, expert=8))
    assert splits(Plan(data=16, expert=8))
    assert splits(Plan(data=8))


def test_counted__has_the_worst_violation() -> None:
    name = next(iter(RELATIONS))
    good = Checked(name, 1.0, 2.0, "")
    bad = Checked(name, 3.0, 2.0, "")
    row = counted([good, bad, replace(bad, less=2.5), replace(good, less=2.0)])[0]
    assert (row["checks"], row["equal"], row["violations"]) == (4, 1, 2)
    assert row["worst"] == pytest.approx(0.5)
    assert "worst" not in counted([good])[0]
    row = counted([good, replace(bad, less=2.02, bound=0.05)])[0]
    assert (row["anomalies"], row["violations"]) == (1, 0)
    assert row["worst"] == pytest.approx(0.01)
