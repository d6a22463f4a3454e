"""Tests `weft estimate hlo` as users call it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.estimate.hlo_programs import LAYERS, LOOP, program
from transport.cli import weft
from transport.cli.estimate_hlo import size_text
from transport.estimate.hlo import schedule

CLUSTER = ("--inside", "nvlink4", "--between", "ethernet-400", "--gpus-per-node", "4")


def run(tmp_path: Path, text: str, *words: str) -> Result:
    file = tmp_path / "step.hlo"
    file.write_text(text)
    return CliRunner().invoke(weft, ["estimate", "hlo", str(file), *words])


def cells_of(output: str, heading: str) -> list[dict[str, str]]:
    """The rows of the table whose first heading this is, by heading."""
    lines = output.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith(heading))
    heads = [one for one in lines[first].split("  ") if one]
    begins = [lines[first].index(f"  {one}") + 2 if at else 0 for at, one in enumerate(heads)]
    ends = [*begins[1:], 1000]
    rows = lines[first + 1 : lines.index("", first)]
    spans = [
        (head.strip(), begin, end) for head, begin, end in zip(heads, begins, ends, strict=True)
    ]
    return [{head: row[begin:end].strip() for head, begin, end in spans} for row in rows]


def test_hlo__prints_collectives_parts_and_duplicates(tmp_path: Path) -> None:
    done = run(tmp_path, LAYERS, *CLUSTER)
    assert done.exit_code == 0
    assert done.output.startswith("test: 8 devices on 2 nodes, 3 collectives\n")
    rows = {one["collective"]: one for one in cells_of(done.output, "collective")}
    gather = rows["gather-start"]
    assert (gather["operation"], gather["shape"]) == ("all-gather", "bf16[4096,4096]")
    assert gather["groups"] == "2 of 4: {0,2,4,6}, {1,3,5,7}"
    assert (gather["nodes"], gather["times"], gather["sent"]) == ("2", "1", "24 MiB")
    assert rows["sum"]["groups"] == "4 of 2: {0,1}, {2,3}, {4,5}, {6,7}"
    assert (rows["sum"]["nodes"], rows["sum"]["hideable"]) == ("1", "0 ns")
    parts = [one["part"] for one in cells_of(done.output, "part")]
    assert parts[:2] == ["computation", "communication"]
    assert "duplicate: gather-start, again: all-gather of the same data" in done.output
    assert "67 % of the GPU's peak: --efficiency" in done.output
    assert "note: not calibrated" in done.output


def test_hlo__json(tmp_path: Path) -> None:
    done = run(tmp_path, LOOP, *CLUSTER, "--gpu", "h100", "--efficiency", "0.5", "--json", "-")
    found = json.loads(done.output)
    assert (found["program"], found["devices"], found["nodes"]) == ("test", 8, 2)
    assert (found["gpu"]["name"], found["gpu"]["efficiency"]) == ("h100", 0.5)
    (one,) = found["collectives"]
    assert one["groups"] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert (one["times"], one["sent_bytes"], one["extrapolated"]) == (24, 6144, False)
    assert found["totals"]["exposed_ns"] == pytest.approx(24 * one["exposed_ns"])
    assert found["totals"]["step_ns"] >= found["totals"]["exposed_ns"]


def test_hlo__unknown_ends_are_a_question_mark(tmp_path: Path) -> None:
    lines = [line for line in LAYERS.splitlines() if "gather-done = " not in line]
    text = "\n".join(lines).replace("(%gather-done, ", "(%again, ")
    done = run(tmp_path, text)
    (row,) = [
        one for one in cells_of(done.output, "collective") if one["collective"] == "gather-start"
    ]
    assert (row["hidden"], row["exposed"], row["hideable"]) == ("?", "?", "?")
    assert "not judged" in [one["part"] for one in cells_of(done.output, "part")]
    assert "note: ?: not judged" in done.output


def test_hlo__what_is_not_judged_is_no_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "PAIRS_MAX", 8)
    done = run(tmp_path, LAYERS)
    parts = {one["part"]: (one["time"], one["share"]) for one in cells_of(done.output, "part")}
    assert parts["of it hideable by another order, at most"] == ("?", "?")


def test_hlo__a_program_without_collectives(tmp_path: Path) -> None:
    done = run(tmp_path, program("  ROOT %x = f32[] parameter(0)"))
    assert done.exit_code == 0
    assert done.output.startswith("test: 8 devices on 8 nodes, 0 collectives\n")


def test_hlo__prints_the_most_exposed_of_many(tmp_path: Path) -> None:
    body = "".join(
        f"  %a{at} = f32[{at},1024] parameter({at})\n"
        f"  %s{at} = f32[{at},1024] all-reduce(%a{at}), channel_id=1\n"
        for at in range(1, 50)
    )
    done = run(tmp_path, program(body))
    assert cells_of(done.output, "collective")[0]["collective"] == "s49"
    assert "9 more collectives: --json -" in done.output


def test_hlo__shapes_of_many_arrays_are_cut(tmp_path: Path) -> None:
    inputs = "".join(f"  %x{at} = f32[1024,1024] parameter({at})\n" for at in range(300))
    shapes = ", ".join(["f32[1024,1024]"] * 300)
    names = ", ".join(f"%x{at}" for at in range(300))
    done = run(tmp_path, program(f"{inputs}  %y = ({shapes}) all-reduce({names}), channel_id=1"))
    (row,) = cells_of(done.output, "collective")
    assert row["shape"] == "(f32[1024,1024], f32[1024,1024], f32[1024,102..."


@pytest.mark.parametrize(
    ("text", "words", "says"),
    [
        ("hello", (), "line 1: expected HloModule"),
        (
            LAYERS.replace("dot(%x, %x)", "dot(%x, %\x1by)"),
            (),
            r"step.hlo: line 13: '%\x1by' is no",
        ),
        (LAYERS.replace("f32[]", "f31[]"), (), "unknown element type f31"),
        (LAYERS.replace("{6,7}", "{7,8}"), (), "device 8 of sum: the program has 8 devices"),
        (LAYERS, ("--gpu", "abacus"), "no GPU abacus: known are"),
        (LAYERS, ("--between", "wire"), "no link wire: known are"),
        (LAYERS, ("--gpus-per-node", "4"), "--gpus-per-node needs --inside"),
        (LAYERS, ("--efficiency", "0"), "--efficiency"),
    ],
)
def test_hlo__errors(tmp_path: Path, text: str, words: tuple[str, ...], says: str) -> None:
    done = run(tmp_path, text, *words)
    assert done.exit_code == 2
    assert says in done.output


def test_hlo__files_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "step.pb"
    file.write_bytes(b"\x0a\x80\xff")
    done = CliRunner().invoke(weft, ["estimate", "hlo", str(file)])
    assert done.exit_code == 2
    assert "is no text: give HLO text, not a proto" in done.output


@pytest.mark.parametrize(
    ("size", "text"),
    [(6 << 20, "6 MiB"), (1536 << 10, "1.5 MiB"), (1000, "1 kB"), (1.5, "1.5 B"), (0, "0 B")],
)
def test_size__binary_if_it_is_whole(size: float, text: str) -> None:
    assert size_text(size) == text
