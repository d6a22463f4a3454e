"""Tests that the generator makes a valid scenario, which can end, from every seed."""

import tomllib

from hypothesis import given, settings, strategies as st

from tests.swarm.draw import DOWN_NS_MAX, FAMILIES, PARAMS, draw, scenario_of
from transport.ground.toml import written
from transport.sim.run import Simulation
from transport.sim.scenario import parse
from transport.sim.schema import PATTERNS

from .support import needs_fabric

SEEDS = st.integers(0, (1 << 63) - 1)


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_draw__is_a_valid_scenario_that_can_be_written(seed: int) -> None:
    scenario = scenario_of(seed)
    assert scenario.seed == seed
    text = written(scenario.tables)
    assert tomllib.loads(text) == scenario.tables
    assert parse(text).keys == scenario.keys


@needs_fabric
@settings(max_examples=80, deadline=None)
@given(SEEDS)
def test_draw__the_fabric_takes_it(seed: int) -> None:
    assert Simulation(scenario_of(seed), check=True).plan.complaint() == ""


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_draw__everything_heals(seed: int) -> None:
    for event in draw(seed).get("events", []):
        down = event.get("up") is False or "flap_ns" in event or event.get("loss", 0) > 0.2
        assert not down or 0 < event["until_ns"] - event["at_ns"] <= DOWN_NS_MAX
        assert event.get("rate", 1_000_000) >= 1_000_000


def test_draw__reaches_every_kind() -> None:
    drawn = [draw(seed) for seed in range(600)]
    kinds = {one["network"]["topology"] for one in drawn}
    assert kinds == {"fat_tree", "rail", "multi_plane", "dumbbell", "file"}
    patterns = {job["pattern"] for one in drawn for job in one["workload"]}
    assert patterns == set(PATTERNS) - {"chakra", "flows", "goal", "steps", "trace"}
    for family, names in FAMILIES.items():
        chosen = {one["policies"].get(family, "").partition(":")[0] for one in drawn}
        assert set(names) <= chosen, family
    for key in ("trim", "pause_bytes", "loss", "bit_error_rate", "header_queue_bytes_max"):
        assert any(one["network"].get(key) for one in drawn), key
    assert {one["hosts"]["paths"] for one in drawn} >= {1, 2, 64, 256}
    assert sum(any("mix" in job for job in one["workload"]) for one in drawn) > 20
    assert sum(any("policies" in job for job in one["workload"]) for one in drawn) > 20
    changed = {key for one in drawn for event in one.get("events", []) for key in event}
    assert changed >= {"up", "loss", "rate", "flap_ns"}


def test_draw__parameters_are_the_policies_own() -> None:
    from congestion.registry import shipped

    known = {(one.policy.family.name, one.policy.name): one.policy.params for one in shipped()}
    for policy, params in PARAMS.items():
        assert set(params) <= set(known[policy].dtype.names or ()), policy
