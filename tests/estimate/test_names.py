"""Tests names and sizes as people type them."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from transport.estimate.gpus import gpu
from transport.estimate.models import ALIASES, PRESETS
from transport.estimate.names import matched, size_of
from transport.estimate.networks import links, of_links
from transport.estimate.samples import of_bench


@pytest.mark.parametrize(
    ("typed", "known"),
    [
        ("h100", "h100"),
        ("H100", "h100"),
        ("Llama2-7B", "llama2-7b"),
        ("llama2_7b", "llama2-7b"),
        ("Llama 3 70B", "llama3-70b"),
        ("allreduce", "all_reduce"),
        ("AllReduce", "all_reduce"),
        ("all-to-all", "all_to_all"),
        ("llama4", "llama4"),
    ],
)
def test_matched__ignores_case_and_what_joins_words(typed: str, known: str) -> None:
    names = ("h100", "llama2-7b", "llama3-70b", "all_reduce", "all_to_all", "custom")
    assert matched(typed, names) == known


def test_matched__does_not_choose_between_two() -> None:
    assert matched("A-B", ("a_b", "ab")) == "A-B"
    assert matched("ab", ("a_b", "ab")) == "ab"


def test_names__that_are_shipped_are_told_apart() -> None:
    for names in (links(), {**PRESETS, **ALIASES}):
        assert {matched(name.upper(), names) for name in names} == set(names)
    assert gpu("H200").name == "h200"
    assert of_links("InfiniBand-400", "NVLink4").name == "nvlink4 and infiniband-400"
    assert set(ALIASES.values()) <= set(PRESETS)


def test_contender__of_a_measurement_is_found_as_people_type_it(tmp_path: Path) -> None:
    rows = [
        {"contender": "weft_udp", "operation": "all_reduce", "size_bytes": 8, "time_us": 1.0},
        {"contender": "nvlink", "operation": "all_reduce", "size_bytes": 8, "time_us": 1.0},
    ]
    file = tmp_path / "times.json"
    file.write_text(json.dumps({"gpus": 2, "rows": rows}))
    assert len(of_bench(file, "Weft-UDP")) == 1


@pytest.mark.parametrize(
    ("text", "bare", "expected"),
    [
        ("8", "", 8),
        ("1G", "", 1 << 30),
        ("0.5 g", "", 1 << 29),
        ("64K", "", 64 << 10),
        ("1 MB", "", 10**6),
        ("1 MiB", "", 1 << 20),
        ("25", "M", 25 << 20),
        ("0.5", "M", 1 << 19),
        ("25 MB", "M", 25 * 10**6),
        ("25K", "M", 25 << 10),
    ],
)
def test_size__a_letter_is_a_power_of_two_as_in_nccl_tests(
    text: str, bare: str, expected: int
) -> None:
    assert size_of(text, bare) == expected


@pytest.mark.parametrize("text", ["", "G", "1Q", "-1G", "1.5", "1e9", "1 G B", "NaN"])
def test_size__anything_else_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="expected bytes"):
        size_of(text)


@given(st.text(max_size=20) | st.from_regex(r"[0-9]{1,400}[KMGT]?", fullmatch=True))
def test_size__is_a_number_or_an_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert 0 <= size_of(text, "M") <= 1 << 60
