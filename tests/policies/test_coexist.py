"""Tests `weft policy coexist`: its runs, tables, output and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("numba")
from click.testing import CliRunner

from transport.cli.policy import policy_group
from transport.policies import coexist
from transport.policies.matrix import (
    Case,
    Setting,
    cases_of,
    one_run,
    outcome_of,
    results,
    tables,
    with_harm,
)
from transport.policies.trial import Traffic

TRAFFIC = Traffic(flows=1, stagger_ns=500_000, duration_ns=8_000_000)
SETTING = Setting(family="window", policies=("swift", "dctcp", "cubic"), traffic=TRAFFIC)
GIVEN = ["--flows", "1", "--duration-ms", "8", "--stagger-ms", "0.5", "--seeds", "1-2", "-j", "1"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "my_policy.py"


def test_cases__are_all_pairs_and_each_policy_alone() -> None:
    cases = cases_of(SETTING, [4, 9])
    assert len(cases) == 2 * (3 + 6)
    assert sum(one.alone for one in cases) == 6
    for seed in (4, 9):
        pairs = [{one.one, one.other} for one in cases if one.seed == seed and not one.alone]
        assert len({frozenset(one) for one in pairs}) == len(pairs) == 6
    first = {(one.seed, one.one < one.other) for one in cases if one.one != one.other}
    assert first == {(4, True), (9, False)}, "the seeds take turns in who begins"


def test_one_run__has_a_row_for_each_policy() -> None:
    rows = one_run(SETTING, Case(1, 0, 3))
    assert [(row["row"], row["column"]) for row in rows] == [(1, 0), (0, 1)]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert one_run(SETTING, Case(1, 0, 3)) == rows
    (alone,) = one_run(SETTING, Case(1, 1, 3, alone=True))
    assert alone["alone"]
    outcome = outcome_of(SETTING, Case(1, 1, 3, alone=True))
    assert outcome.report.flows[1].counters["segments_sent"] == 0
    assert alone["goodput_bytes_per_s"] == coexist.measures(outcome, 0)["goodput_bytes_per_s"]


def test_tables__have_the_median_of_the_row_beside_the_column() -> None:
    cases = cases_of(SETTING, [1, 2, 3])
    rows = [row for _, found in results(SETTING, cases, 1) for row in found]
    pairs = with_harm(rows)
    found = tables(pairs, 3)
    for one in range(3):
        for other in range(3):
            mine, its = found["share"][one][other], found["share"][other][one]
            assert mine is not None
            assert its is not None
            assert mine + its == pytest.approx(1)
            of_pair = [row["share"] for row in pairs if (row["row"], row["column"]) == (one, other)]
            assert len(of_pair) == (6 if one == other else 3)
            assert mine in of_pair or one == other
    for row in pairs:
        base = next(
            one["goodput_bytes_per_s"]
            for one in rows
            if one["alone"] and (one["row"], one["seed"]) == (row["row"], row["seed"])
        )
        assert row["harm_goodput"] == pytest.approx((base - row["goodput_bytes_per_s"]) / base)


def test_results__are_the_same_in_processes() -> None:
    cases = cases_of(SETTING, [1])[:4]
    assert dict(results(SETTING, cases, 2)) == dict(results(SETTING, cases, 1))


def test_command__default_is_all_shipped_window_policies() -> None:
    done = CliRunner().invoke(policy_group, ["coexist", *GIVEN, "--json", "-"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    shipped = {one.stem for one in (EXAMPLE.parents[1] / "congestion" / "window").glob("*.py")}
    assert set(found["policies"]) == shipped - {"__init__"}
    count = len(found["policies"])
    for name in ("share", "harm_goodput", "jain"):
        assert [len(row) for row in found[name]] == [count] * count
    assert len(found["runs"]) == 2 * (count + count * (count + 1))
    alone = [row for row in found["runs"] if row["alone"]]
    assert all(row["column"] is None and "share" not in row for row in alone)


def test_command__prints_tables_and_draws(tmp_path: Path) -> None:
    plot = tmp_path / "pairs.png"
    given = ["coexist", str(EXAMPLE), "swift", *GIVEN, "--plot", str(plot)]
    done = CliRunner().invoke(policy_group, given)
    assert done.exit_code == 0, done.output
    assert "my_policy.py" in done.output
    assert "1 flows of each" not in done.output
    assert "share of the goodput" in done.output
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_command__compares_other_families() -> None:
    words = ["coexist", "path/reps", "path/single", "--with", "nscc", "--paths", "4"]
    done = CliRunner().invoke(policy_group, [*words, *GIVEN, "--json", "-"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["family"], found["others"]) == ("path", {"window": "nscc"})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["swift"], "give 2 to 64 policies, not 1"),
        (["swift", "swift"], "swift is given twice"),
        (["swift", "path/reps"], "policies of several families"),
        (["swift", "dctcp", "--with", "nscc"], "--with nscc is a window policy"),
        (["swift", "teleport"], "teleport"),
        (["swift", "dctcp:speed=1"], "speed"),
        (["swift", "dctcp", "--stagger-ms", "9"], "begin flows closer together"),
        (["swift", "dctcp", "--seeds", "x"], "not a list of seeds"),
    ],
)
def test_command__what_makes_no_sense_is_refused(words: list[str], says: str) -> None:
    kept = GIVEN if "--stagger-ms" not in words and "--seeds" not in words else ["-j", "1"]
    more = ["--duration-ms", "8"] if "--stagger-ms" in words else []
    done = CliRunner().invoke(policy_group, ["coexist", *words, *kept, *more])
    assert done.exit_code == 2, done.output
    assert says in done.output
