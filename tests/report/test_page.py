"""Tests a report's page: untrusted texts, its size, what the trace does not tell, bad usage."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.report.support import Page, reported, said
from tests.trace.test_import_kineto import document, kernel, record
from tests.trace.writer import channel, communicator, operation, rank_of
from transport.cli import invoke, weft
from transport.ground.units import bytes_text
from transport.report import whole as whole_page
from transport.report.cells import borders, fitted, folded, with_unknown
from transport.trace.matrix import MEASURED, UNKNOWN, Matrix

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'{{ 7*7 }}"
MS = 1_000_000


def job(folder: Path, ranks: int, per_node: int, peers: int, name: str = "AllReduce") -> Path:
    """Eight steps of 10 ms with an operation that uses channels to `peers` next ranks for 3 ms."""
    folder.mkdir()
    for rank in range(ranks):
        process = rank_of(folder, rank, ranks, per_node, WEFT_TRACE_JOB="job of a test")
        comm = communicator(process, 5, rank, ranks, name="world")
        for step in range(8):
            begin = (10 * step + 1) * MS
            op = operation(process, comm, name, begin, begin + 1, count=1 << 18)
            for at in range(1, peers + 1):
                peer = (rank + at) % ranks
                channel(process, comm, op, peer, 1 << 10, begin, begin + 3 * MS, number=at)
        process.write()
    return folder


def test_page__texts_of_a_trace_are_only_shown(tmp_path: Path) -> None:
    for rank in range(2):
        process = rank_of(tmp_path, rank, 2, WEFT_TRACE_JOB=EVIL)
        process.host = f"{EVIL}{rank}"
        comm = communicator(process, 5, rank, 2, name=EVIL)
        for step in range(8):
            begin = (10 * step + 1 + rank) * MS
            op = operation(process, comm, EVIL, begin, begin + 1, count=256)
            channel(process, comm, op, 1 - rank, 1024, begin, begin + 3 * MS)
        process.write()
    page = reported(tmp_path, "--currency", "<b>", "--price", "1")
    assert page.tags["script"] == 2
    assert "img" not in page.tags
    assert "b" not in page.tags
    assert EVIL in page.text  # as text
    assert f"{EVIL}1" in page.text
    assert "{{ 7*7 }}" in page.text
    assert [one for one in page.attributes if one[0].startswith("on")] == []


def test_page__has_a_policy_against_other_scripts_and_the_network(tmp_path: Path) -> None:
    page = reported(job(tmp_path / "job", 2, 1, 1))
    (policy,) = (text for name, text in page.attributes if name == "content" and "src" in str(text))
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    assert not {"link", "iframe", "object"} & page.tags.keys()
    assert not {"src", "href"} & {name for name, _ in page.attributes}


def test_page__of_1024_ranks_is_small(tmp_path: Path) -> None:
    page = reported(job(tmp_path / "job", 1024, 8, 3))
    assert page.data["numbers"]["ranks"] == 1024
    assert len(page.data["matrices"][0]["labels"]) == 1024
    assert len(page.data["matrices"][0]["borders"]) == 127
    assert len(page.chart("step")["labels"]) == 17
    assert "and 1,008 more ranks" in page.text


def test_page__reduces_matrices_if_it_would_be_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = job(tmp_path / "job", 64, 8, 20)
    reported(folder)
    whole = (tmp_path / "job.html").stat().st_size
    monkeypatch.setattr(whole_page, "CELLS_BYTES_MAX", 20_000)
    monkeypatch.setattr(whole_page, "PAGE_BYTES_MAX", whole - 1)
    page = reported(folder)
    assert (tmp_path / "job.html").stat().st_size < whole
    assert page.data["matrices"][0]["labels"][:2] == ["0 to 3", "4 to 7"]
    assert "reduced, so that the page stays small" in page.text


def dense(size: int, measure: str = "bytes") -> Matrix:
    rows, columns = np.indices((size, size)).reshape(2, -1)
    values = np.random.default_rng(1).random(size * size)
    states = np.full(size * size, MEASURED, np.uint8)
    labels = tuple(str(rank) for rank in range(size))
    return Matrix("rank", labels, measure, "bytes", rows, columns, values, states, ((0, 5),), ())


def test_matrix__of_all_pairs_of_1024_ranks_is_folded(tmp_path: Path) -> None:
    matrix = dense(1024)
    hosts = {rank: f"host{rank // 8}" for rank in range(1024)}
    found = fitted(matrix, hosts, {}, 400_000)
    assert len(json.dumps(found.data)) <= 401_000 + 20 * 128
    assert found.fold == 8
    assert found.data["labels"][1] == "8 to 15"
    assert found.data["borders"] == [(row, "host") for row in range(1, 128)]
    assert fitted(dense(64), hosts, {}, 400_000).fold == 1


def test_matrix__folded_rows_name_their_racks() -> None:
    matrix = replace(dense(8), racks=("a", "a", "a", "b", "b", "b", "c", "c"))
    hosts = {rank: f"host{rank}" for rank in range(8)}
    assert folded(matrix, 4).racks == ("a and 1 more", "b and 1 more")
    assert folded(matrix, 2).racks == ("a", "a and 1 more", "b", "c")
    assert borders(matrix, hosts, {}, 2) == [(1, "host"), (2, "host"), (3, "rack")]


def test_page__has_matrices_by_host_if_hosts_have_several_ranks(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", 8, 4, 1)
    found = said("trace", "matrix", str(folder), "--by", "host")
    page = reported(folder)
    assert [(one["by"], one["measure"]) for one in page.data["matrices"]] == [
        (by, measure)
        for by in ("rank", "host")
        for measure in ("bytes", "messages", "latency_mean")
    ]
    by_host = page.data["matrices"][3]
    assert (by_host["labels"], by_host["borders"]) == (found["labels"], [[1, "host"]])
    _, *rows = page.rows["Pairs with most bytes, by host"]
    assert {tuple(row[:3]) for row in rows} == {
        (one["from"], one["to"], bytes_text(one["value"])) for one in found["cells"]
    }
    assert any(one.endswith("--measure bytes --by host") for one in page.commands)


def test_matrix__a_folded_cell_is_the_sum_or_the_largest_latency() -> None:
    matrix = dense(8)
    blocks = matrix.dense_values().reshape(4, 2, 4, 2)
    assert folded(matrix, 2).dense_values() == pytest.approx(blocks.sum(axis=(1, 3)))
    late = folded(dense(8, "latency_mean"), 2)
    assert late.dense_values() == pytest.approx(blocks.max(axis=(1, 3)))
    assert late.unknown == ((0, 2),)


def test_matrix__what_only_another_measure_knows_is_unknown() -> None:
    known = dense(8)
    nothing = np.zeros(0, np.int64)
    none = replace(
        known,
        measure="latency_mean",
        unit="ns",
        sources=nothing,
        targets=nothing,
        values=np.zeros(0),
        states=np.zeros(0, np.uint8),
        unknown=(),
    )
    found = with_unknown(none, known)
    assert found.states.tolist() == [UNKNOWN] * 64
    assert (found.sources.tolist(), found.targets.tolist()) == (
        known.sources.tolist(),
        known.targets.tolist(),
    )
    assert found.unknown == known.unknown


def test_page__says_what_a_trace_does_not_tell(tmp_path: Path) -> None:
    """PyTorch's profiler records no transfers, no paths, and in the tables no computation."""
    for rank in range(2):
        calls = [record(9 + at, "allreduce", 256, 256, 1e4 * at + rank) for at in range(8)]
        kernels = [kernel(9 + at, 1e4 * at + 10 + rank, 3e3) for at in range(8)]
        file = tmp_path / f"rank{rank}.json"
        file.write_text(json.dumps(document(rank, *calls, *kernels)))
    inputs = sorted(map(str, tmp_path.glob("*.json")))
    out = tmp_path / "tables"
    done = CliRunner().invoke(weft, ["trace", "import", "kineto", *inputs, "-o", str(out)])
    assert done.exit_code == 0, done.output
    page = reported(out)
    for text in (
        "Bytes sent are not known: the trace has no messages and no channels.",
        "How many segments were sent again is not known",
        "Events of paths are not known",
        "which do not tell when the GPU computes: give the files of PyTorch's profiler instead",
        "transfers: not known",
    ):
        assert text in page.text, text
    _, *rows = page.rows["Pairs with most bytes, by rank"]
    assert {row[3] for row in rows} == {"derived"}
    assert "No pair is known to have transfers." in page.text
    assert "sent" not in {one["id"] for one in page.data["charts"]}


def test_page__without_operations_says_so(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    process.new("event", 5, what=1)
    process.write()
    page = reported(tmp_path)
    assert page.data["numbers"]["answer"] == "not judged"
    for text in (
        "Not judged: the trace has too little evidence.",
        "Not known: the trace has no operations of NCCL.",
        "Not judged: the trace has no collective whose ranks show when they came.",
    ):
        assert text in page.text, text
    assert page.data["numbers"]["lost_money"] is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--price", "-1"], "--price"),
        (["--currency", "far too long"], "give a name or symbol"),
        (["--alone", "4"], "write 4ms"),
        (["-o", "page.pdf"], "wrong suffix"),
        (["--job", "other"], "no traces of the job 'other'"),
        (["--live", "-o", "page.html"], "leave out -o"),
        (["--routes", "none.json"], "none.json: No such file"),
    ],
)
def test_command__refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], text: str
) -> None:
    folder = job(tmp_path / "job", 2, 1, 1)
    out = [] if "-o" in options else ["-o", str(tmp_path / "page.html")]
    if "--live" in options:
        out = []
    assert invoke(["report", str(folder), *out, *options]) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_command__several_jobs_need_a_choice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        process = rank_of(tmp_path, 0, 1, WEFT_TRACE_JOB=name)
        process.name = f"{len(name) + ord(name[0]):016x}"
        comm = communicator(process, 5, 0, 1)
        operation(process, comm, "AllReduce", 1, 2)
        process.write()
    out = str(tmp_path / "page.html")
    assert invoke(["report", str(tmp_path), "-o", out]) == 2
    assert "choose one with --job" in capsys.readouterr().err
    assert invoke(["report", str(tmp_path), "-o", out, "--job", "one"]) == 0
    assert "Job one" in Page(Path(out).read_text()).text
