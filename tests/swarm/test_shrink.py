"""Tests that minimising removes everything from a scenario that a fake failure does not need."""

from typing import Any

from tests.swarm.draw import Tables, draw
from tests.swarm.shrink import RUNS_MAX, candidates, shrink, weight
from transport.sim.errors import ScenarioError
from transport.sim.scenario import from_tables


def valid(tables: Tables) -> bool:
    try:
        from_tables(tables).check()
    except ScenarioError:
        return False
    return True


def first_seed(wanted: Any) -> Tables:
    return next(tables for seed in range(500) if wanted(tables := draw(seed)))


def test_shrink__keeps_the_one_fault_that_counts() -> None:
    def fails(tables: Tables) -> bool:
        return valid(tables) and any("flap_ns" in one for one in tables.get("events", []))

    big = first_seed(fails)
    made = shrink(big, fails)
    assert fails(made.tables)
    assert weight(made.tables) < weight(big) / 2
    assert len(made.tables["events"]) == len(made.tables["workload"]) == 1
    assert "policies" not in made.tables
    assert "hosts" not in made.tables


def test_shrink__keeps_a_policy_and_its_family_alone() -> None:
    def fails(tables: Tables) -> bool:
        return valid(tables) and tables.get("policies", {}).get("credit", "").startswith("eqds")

    made = shrink(first_seed(fails), fails)
    assert made.tables["policies"] == {"credit": "eqds"}
    assert made.tables["network"]["hosts"] == 2


def test_shrink__halves_to_the_least_that_fails() -> None:
    def fails(tables: Tables) -> bool:
        sizes = [one.get("size_bytes", 0) for one in tables["workload"]]
        return valid(tables) and max(sizes) >= 5_000

    made = shrink(first_seed(fails), fails)
    (job,) = made.tables["workload"]
    assert 5_000 <= job["size_bytes"] < 10_000


def test_shrink__is_bounded_and_deterministic() -> None:
    runs = []

    def fails(tables: Tables) -> bool:
        runs.append(tables)
        return len(runs) % 3 == 0

    made = shrink(draw(5), fails, 40)
    assert made.runs == len(runs) <= 40
    assert shrink(draw(5), lambda tables: False).tables == draw(5)
    assert shrink(draw(5), lambda tables: False).runs <= RUNS_MAX
    assert list(candidates(draw(9))) == list(candidates(draw(9)))


def test_shrink__leaves_what_it_was_given_alone() -> None:
    own = draw(11)
    shrink(own, lambda tables: True, 50)
    assert own == draw(11)
