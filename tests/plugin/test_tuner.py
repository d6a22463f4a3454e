"""Tests the tuner interface, versions 5 and 6, as NCCL calls it."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.environment import clean_environment

from .conftest import PATIENCE_S, Play

ALL_GATHER, ALL_REDUCE = 2, 4
TREE, RING, LL, LL128, SIMPLE = 0, 1, 0, 1, 2
ALGORITHMS, PROTOCOLS = 7, 3
INVALID_USAGE = 5
FILE = """weft_tune 1
all_reduce 2 0 0 1000 tree ll 3
all_reduce 2 0 1001 2000 ring simple 0
all_gather 4 0 0 1000 ring ll 0
"""


class Tuner(ctypes.Structure):
    Init = ctypes.CFUNCTYPE(
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_uint64,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
    )
    Choose = ctypes.CFUNCTYPE(
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_int),
    )
    Finalize = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("init", Init),
        ("choose", Choose),
        ("finalize", Finalize),
        ("chunk_size", ctypes.c_void_p),
    )


def chosen(library: str, version: str, calls: list[list[int]]) -> dict[str, Any]:
    """The answers of a tuner of two ranks; each call has a function, bytes, and ignored costs.

    Runs in a process of its own, which reads WEFT_TUNE.
    """
    tuner = Tuner.in_dll(ctypes.CDLL(library), f"ncclTunerPlugin_v{version}")
    context, answers = ctypes.c_void_p(1), []
    status = tuner.init(ctypes.byref(context), 1, 2, 2, None, None, None)
    for function, size, *ignored in calls if status == 0 else []:
        costs = (ctypes.c_float * (ALGORITHMS * PROTOCOLS))(*[5.0] * ALGORITHMS * PROTOCOLS)
        for at in ignored:
            costs[at] = -1.0
        channels = ctypes.c_int(0)
        assert (
            tuner.choose(
                context, function, size, 1, costs, ALGORITHMS, PROTOCOLS, 0, ctypes.byref(channels)
            )
            == 0
        )
        answers.append([[at for at, cost in enumerate(costs) if cost == 0.0], channels.value])
    assert tuner.finalize(context) == 0
    return {"name": tuner.name.decode(), "status": status, "answers": answers}


def run(plugin: Path, version: int, calls: list[list[int]], **variables: str) -> dict[str, Any]:
    clean = clean_environment()
    words = [sys.executable, "-m", "tests.plugin.test_tuner", str(plugin), str(version)]
    done = subprocess.run(
        [*words, json.dumps(calls)],
        env=clean | variables,
        timeout=PATIENCE_S,
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def cell(algorithm: int, protocol: int) -> int:
    return algorithm * PROTOCOLS + protocol


@pytest.mark.parametrize("version", [5, 6])
def test_tuner__without_a_file_leaves_the_choice_to_nccl(plugin: Path, version: int) -> None:
    found = run(plugin, version, [[ALL_REDUCE, 8]])
    assert found == {"name": "weft", "status": 0, "answers": [[[], 0]]}


@pytest.mark.parametrize("version", [5, 6])
def test_tuner__takes_the_rule_for_its_ranks_and_size(
    plugin: Path, version: int, tmp_path: Path
) -> None:
    file = tmp_path / "tune.txt"
    file.write_text(FILE)
    calls = [[ALL_REDUCE, 1_000], [ALL_REDUCE, 1_001], [ALL_REDUCE, 2_001], [ALL_GATHER, 8]]
    found = run(plugin, version, calls, WEFT_TUNE=str(file))
    assert found["answers"] == [
        [[cell(TREE, LL)], 3],
        [[cell(RING, SIMPLE)], 0],
        [[], 0],
        [[], 0],
    ]


def test_tuner__never_chooses_what_nccl_cannot_use(plugin: Path, tmp_path: Path) -> None:
    file = tmp_path / "tune.txt"
    file.write_text(FILE)
    found = run(plugin, 5, [[ALL_REDUCE, 8, cell(TREE, LL)]], WEFT_TUNE=str(file))
    assert found["answers"] == [[[], 0]]


@pytest.mark.parametrize("text", ["weft_tune 1\nall_reduce 2 0 0 9 ring ll128 0\n", None])
def test_tuner__a_rank_that_cannot_read_the_file_fails_to_initialize(
    plugin: Path, tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "tune.txt"
    if text is not None:
        file.write_text(text)
    assert run(plugin, 5, [], WEFT_TUNE=str(file))["status"] == INVALID_USAGE


def test_tuner__folders_and_pipes_are_no_files(plugin: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file in (tmp_path, tmp_path / "pipe"):
        assert run(plugin, 5, [], WEFT_TUNE=str(file))["status"] == INVALID_USAGE


@pytest.mark.parametrize("other", [FILE.replace("ll 3", "ll 2"), None, "weft_tune 1\n"])
def test_tuner__ranks_with_other_rules_are_refused(
    play: Play, plugin: Path, tmp_path: Path, other: str | None
) -> None:
    (tmp_path / "0").write_text(FILE)
    if other is not None:
        (tmp_path / "1").write_text(other)
    done = play(plugin, 12, 2, "ranks_with_other_rules_are_refused", RULES=str(tmp_path))
    assert done.stderr.count("the peer has other tuning rules. Give every rank the same") == 2


def test_tuner__equal_rules_need_not_be_equal_texts(
    play: Play, plugin: Path, tmp_path: Path
) -> None:
    (tmp_path / "0").write_text(FILE)
    (tmp_path / "1").write_text(FILE.replace("all_gather", "# a comment\nall_gather"))
    play(plugin, 12, 2, "ranks_with_other_rules_are_refused", RULES=str(tmp_path), RULES_SAME="1")


if __name__ == "__main__":
    print(json.dumps(chosen(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))))
