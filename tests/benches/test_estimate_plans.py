"""Tests the published plans, and the comparison of the best plans of a search with them."""

from pathlib import Path

import pytest

from bench.estimate_plans import compared, text
from bench.lib.published_found import COLUMNS, FILE, PublishedPlanError, read


def test_plans__are_read_and_fit_their_models() -> None:
    found = read()
    assert len(found) == 15
    for one in found:
        assert one.measured_s or one.estimated_s, one.run
        assert one.plan.framework == "megatron"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((",8,4,1,8,", ",9,4,1,8,"), "gpus: 9: the degrees make 8"),
        ((",8,4,1,8,", ",7,4,1,7,"), "tensor: 7: must divide the 64 heads"),
        (("megatron-22b,a100", "megatron-9b,a100"), "'megatron-9b'"),
        ((",1.42,", ",soon,"), "could not convert string to float: 'soon'"),
        ((",1.42,1.4,", ",1.42,1.4"), "it has 16 columns"),
        ((COLUMNS[0], "name"), "the columns must be run,source"),
    ],
)
def test_read__says_what_is_wrong(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    head, first = [one for one in FILE.read_text().splitlines() if one[0] != "#"][:2]
    file = tmp_path / "plans.csv"
    file.write_text(f"{head}\n{first}\n".replace(*change, 1))
    with pytest.raises(PublishedPlanError) as error:
        read(file)
    assert said in str(error.value)


def test_compared__has_errors_of_what_is_published() -> None:
    one = read()[1]
    row = compared(one, {"best": "a plan", "best_s": 1.0})
    assert row["plan"] == text(one.plan) == "1x8x1 i1 m4 z0 selective"
    assert row["error"] == pytest.approx(row["ours_s"] / 1.1 - 1)
    assert row["difference"] == pytest.approx(row["ours_s"] / 1.14 - 1)
    assert row["times"] == row["ours_s"]
