"""Tests which choices of NCCL's algorithm become rules, and the file that the plugin reads."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from transport.cli import weft
from transport.estimate.samples import SamplesError
from transport.estimate.tuning import Choice, choice_of, rules_of, text_of

SIZES = (1_000, 16_000, 256_000, 4_096_000)
FACTORS = (1.0, 1.01, 1.0)
OWN_US = (30.0, 40.0, 100.0, 900.0)


def result(folder: Path, rounds: int = 3, **contenders: tuple[float, ...]) -> Path:
    """A result with three rounds of AllReduce; contenders: their times at SIZES."""
    rows = [
        {
            "contender": name.replace("_", " "),
            "operation": "all_reduce",
            "size_bytes": size,
            "time_us": time * factor,
        }
        for name, times in contenders.items()
        for size, time in zip(SIZES, times, strict=True)
        for factor in FACTORS[:rounds]
    ]
    file = folder / "r.json"
    file.write_text(json.dumps({"gpus": 2, "rows": [], "rounds": rows}))
    return file


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("weft Ring LL 2", Choice("ring", "ll", 2)),
        ("weft Tree Simple", Choice("tree", "simple", 0)),
        ("weft Ring LL128 2", None),
        ("weft", None),
        ("Socket Ring LL 2", None),
        ("weft Ring LL 65", None),
        ("weft Ring LL x", None),
    ],
)
def test_choice__is_in_the_name(name: str, choice: Choice | None) -> None:
    assert choice_of(name) == choice


def test_rules__only_where_a_choice_is_clearly_faster(tmp_path: Path) -> None:
    file = result(
        tmp_path,
        weft=OWN_US,
        weft_Tree_LL_0=(20.0, 30.0, 120.0, 950.0),
        weft_Ring_Simple_4=(60.0, 60.0, 99.0, 600.0),
    )
    small, large = rules_of([file])
    assert small.choice == Choice("tree", "ll", 0)
    assert (small.bytes_min, small.bytes_max) == (1_000, 63_999)
    assert small.gain == pytest.approx(40 / 30 - 1, rel=0.01)
    assert large.choice == Choice("ring", "simple", 4)
    assert (large.bytes_min, large.bytes_max) == (1_024_000, 4_096_000)
    assert text_of([small], "r.json").splitlines()[-1] == (
        "all_reduce 2 0 1000 63999 tree ll 0  # +33 %"
    )


def test_rules__need_three_rounds(tmp_path: Path) -> None:
    fast = (20.0, 30.0, 120.0, 950.0)
    assert rules_of([result(tmp_path, weft=OWN_US, weft_Tree_LL_0=fast)])
    assert not rules_of([result(tmp_path, 2, weft=OWN_US, weft_Tree_LL_0=fast)])


def test_rules__need_rows_of_nccls_own_choice(tmp_path: Path) -> None:
    with pytest.raises(SamplesError, match="has to have rows of weft and of fixed choices"):
        rules_of([result(tmp_path, weft=OWN_US)])
    file = tmp_path / "r.json"
    for text in ("{", "[]", '{"gpus": 2, "rows": [{}]}'):
        file.write_text(text)
        with pytest.raises(SamplesError, match="is no result of python -m bench nccl"):
            rules_of([file])


def test_tune__writes_the_file(tmp_path: Path) -> None:
    file = result(tmp_path, weft=OWN_US, weft_Tree_LL_0=(20.0, 30.0, 120.0, 950.0))
    words = ["estimate", "tune", str(file), "-o", str(tmp_path / "tune.txt")]
    done = CliRunner().invoke(weft, words)
    assert done.exit_code == 0
    assert "tree" in done.output
    assert (tmp_path / "tune.txt").read_text().startswith("weft_tune 1\n# of r.json\n")
    done = CliRunner().invoke(weft, [*words[:-1], str(tmp_path / "none" / "t")])
    assert done.exit_code == 2
