"""Tests the files of published times of operations, and the comparison with estimates."""

from pathlib import Path
from typing import Any

import pytest

from bench.estimate_collectives import compared, kind, summary
from bench.lib.published_collectives import COLUMNS, SETS, PublishedTimeError, read
from transport.estimate.networks import links

ROW = {
    "run": "a table, 8",
    "source": "a page",
    "operation": "all_reduce",
    "size_bytes": "8",
    "gpus": "16",
    "gpus_per_node": "8",
    "nics_per_node": "",
    "inside": "nvlink4",
    "between": "infiniband-400",
    "time_us": "24.7",
    "assumed": "",
}


def written(folder: Path, **change: str) -> Path:
    file = folder / "times.csv"
    cells = ROW | change
    file.write_text("\n".join([",".join(COLUMNS), ",".join(f'"{cells[c]}"' for c in COLUMNS)]))
    return file


def test_sets__are_read_and_share_no_table() -> None:
    found = {name: read(file) for name, file in SETS.items()}
    assert {name: len(rows) for name, rows in found.items()} == {"fit": 39, "held out": 40}
    tables = {name: {(one.source, one.table) for one in rows} for name, rows in found.items()}
    assert not tables["fit"] & tables["held out"]
    for one in (*found["fit"], *found["held out"]):
        assert {one.inside, one.between} <= set(links()), one.run


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"size_bytes": "many"}, "size_bytes: 'many': must be a whole number"),
        ({"gpus": "12"}, "gpus: must be a multiple of gpus_per_node, or less"),
        ({"gpus": "0"}, "gpus: 0: must be 1 to"),
        ({"operation": "gossip"}, "operation: must be one of all_reduce"),
        ({"time_us": "fast"}, "time_us: 'fast': must be a number"),
        ({"time_us": "-1"}, "time_us: -1: must be above 0"),
        ({"source": " "}, "source: missing: give a text"),
    ],
)
def test_read__says_what_is_wrong(tmp_path: Path, change: dict[str, str], said: str) -> None:
    with pytest.raises(PublishedTimeError) as error:
        read(written(tmp_path, **change))
    assert f"line 2: {said}" in str(error.value)


def test_compared__the_error_is_of_the_time(tmp_path: Path) -> None:
    (one,) = read(written(tmp_path))
    row = compared("fit", one)
    assert row["error"] == pytest.approx(row["estimated_us"] / 24.7 - 1)
    assert row["published_busbw"] == pytest.approx(8 * 2 * 15 / 16 / 24.7 / 1e3)


def test_summary__has_groups_of_sizes() -> None:
    assert [kind(size) for size in (8, 1 << 20, 1 << 30)] == [
        *("latencies", "middle sizes", "large sizes"),
    ]
    rows: list[dict[str, Any]] = [
        {"set": "fit", "size_bytes": 8, "error": -0.2},
        {"set": "fit", "size_bytes": 1 << 30, "error": 0.1},
    ]
    small, large, every = summary(rows)
    assert (small["group"], small["median_error"]) == ("latencies", -0.2)
    assert (large["group"], large["rows"]) == ("large sizes", 1)
    assert (every["group"], every["median_error_size"]) == ("all", pytest.approx(0.15))
