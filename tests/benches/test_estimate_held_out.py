"""Tests the comparison of estimates with published runs: errors, reasons, and their summary."""

from pathlib import Path
from typing import Any

import pytest

from bench.estimate_held_out import compared, summary
from tests.benches.test_published_runs import only


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": "fp4"}, "fp4: only 16 bits, and FP8"),
        ({"recompute": "selective"}, "recomputes some operations"),
        ({"between": "pigeons"}, "no link pigeons"),
    ],
)
def test_compared__says_why_a_run_cannot_be_estimated(
    tmp_path: Path, change: dict[str, str], reason: str
) -> None:
    row = compared("fit", only(tmp_path, **change), 0.67)
    assert row["reason"].startswith(reason)
    assert (row["published_s"], "error" in row) == (1.5, False)


def test_compared__the_error_is_of_the_time(tmp_path: Path) -> None:
    row = compared("fit", only(tmp_path), 0.67)
    assert row["error"] == pytest.approx(row["estimated_s"] / 1.5 - 1)
    assert row["error_size"] == abs(row["error"])


def test_summary__counts_what_cannot_be_estimated() -> None:
    rows: list[dict[str, Any]] = [
        *(
            {
                "set": "fit",
                "generation": "A100",
                "error": error,
                "inside": error > -0.2,
                "width": 0.1,
            }
            for error in (-0.2, 0.1, -0.1)
        ),
        {"set": "fit", "generation": "TPU", "reason": "no GPU tpu-v4"},
    ]
    a100, tpu, every = summary(rows, "generation")
    assert (a100["runs"], a100["estimated"], a100["median_error_size"]) == (3, 3, 0.1)
    assert a100["median_error"] == -0.1
    assert (a100["inside"], a100["width"]) == (pytest.approx(2 / 3), 0.1)
    assert tpu == {"set": "fit", "group": "TPU", "runs": 1, "estimated": 0}
    assert (every["group"], every["runs"], every["estimated"]) == ("all", 4, 3)
