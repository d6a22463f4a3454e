"""Tests `weft estimate graph` as users call it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.estimate.graph_texts import STEP, TRAINING, chakra, write
from transport.cli import weft

CLUSTER = ("--inside", "nvlink4", "--between", "ethernet-400", "--gpus-per-node", "4")


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(weft, ["estimate", "graph", *map(str, words)])


def test_graph__a_text_of_pytorch(tmp_path: Path) -> None:
    done = run(write(tmp_path, "step.txt", STEP), *CLUSTER)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("step: 8 devices on 2 nodes, 3 collectives\n")
    for text in (
        "2 of 4: {0,1,2,3}, {4,5,6,7}",
        "duplicate: gather, again: all-gather of the same data in the same groups",
        "note: group '1': 4 of 8 devices, taken as next to each other: --groups",
        "note: products are assumed to reach 67 %",
        "note: not calibrated",
    ):
        assert text in done.output


def test_graph__groups_of_a_file(tmp_path: Path) -> None:
    file = write(tmp_path, "step.txt", STEP)
    groups = write(tmp_path, "groups.json", '{"1": [[0, 2, 4, 6], [1, 3, 5, 7]]}')
    found = json.loads(run(file, "--groups", groups, *CLUSTER, "--json", "-").stdout)
    scatter = found["collectives"][-1]
    assert scatter["groups"] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert scatter["nodes"] == 2
    assert not any("next to each other" in note for note in found["notes"])


def test_graph__groups_of_a_file_must_fit_the_graph(tmp_path: Path) -> None:
    """The graph has 4 ranks in group 1; nothing uses group 7."""
    file = write(tmp_path, "step.txt", STEP)
    small = write(tmp_path, "small.json", '{"1": [[0, 2], [1, 3]]}')
    wrong = run(file, "--groups", small, *CLUSTER)
    assert wrong.exit_code == 2
    assert "group '1' has 4 ranks here and 2 in --groups: correct the file" in wrong.output
    more = write(tmp_path, "more.json", '{"1": [[0, 2, 4, 6], [1, 3, 5, 7]], "7": [0, 1]}')
    said = run(file, "--groups", more, *CLUSTER).output
    assert "note: no collective uses these groups of --groups: '7'" in said
    trace = write(tmp_path, "trace.0.et", chakra(*TRAINING))
    named = write(tmp_path, "named.json", '{"0": [0, 1], "dp": [0, 1]}')
    assert "no collective uses these groups of --groups: " in run(trace, "--groups", named).output


def test_graph__a_trace_of_chakra(tmp_path: Path) -> None:
    file = write(tmp_path, "trace.0.et", chakra(*TRAINING))
    found = json.loads(run(file, "--devices", "8", *CLUSTER, "--json", "-").stdout)
    assert (found["program"], found["devices"]) == ("trace.0", 8)
    assert found["collectives"][0]["hidden_ns"] == pytest.approx(50_000)
    assert "computation of 3 nodes takes as long as in the trace" in found["notes"][0]


@pytest.mark.parametrize(
    ("content", "words", "says"),
    [
        (chakra(*TRAINING), (), "give --groups FILE or, if it has all ranks, --devices"),
        (STEP, ("--devices", "4"), "needs 8 devices, and --devices is 4"),
        (STEP, ("--devices", "0"), "0 is not in the range"),
        (b"", (), "no line begins with def forward("),
        (b"\x00", (), "has no nodes"),
        (b"\x01\x00", (), "is no execution trace of Chakra"),
        ("{}", (), "is no execution trace of Chakra"),
    ],
)
def test_graph__bad_input(
    tmp_path: Path, content: str | bytes, words: tuple[str, ...], says: str
) -> None:
    done = run(write(tmp_path, "step", content), *words)
    assert done.exit_code == 2
    assert says in done.output
