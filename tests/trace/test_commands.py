"""Tests of the command line: output, exit statuses, and one line for each error."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import clean_environment
from tests.waiting import PATIENCE_S
from transport import native
from transport.cli import invoke
from transport.trace.folder import scan
from transport.trace.losses import losses
from transport.trace.query import QueryError, select
from transport.trace.store import Store, open_store

from .writer import Process, channel, communicator, operation, rank_of

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "from transport.cli import main; main()", "trace"]
CLEAN = clean_environment("NCCL_")
CLEAN["PYTHONPATH"] = str(ROOT)


def trace(*words: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        cwd=cwd,
        env=CLEAN,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def output(*words: str | Path) -> str:
    done = trace(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with traces of an all-reduce of four ranks on two nodes; rank 3 has no trace."""
    where = tmp_path / "traces"
    where.mkdir()
    for rank in range(3):
        process = rank_of(where, rank, 4, per_node=2)
        comm = communicator(process, 5, rank, 4, name="world")
        op = operation(process, comm, "AllReduce", 10, 20, count=100)
        if rank == 1:
            channel(process, comm, op, 2, 1000, 11, 19)
        process.write()
    return where


def test_info__says_what_there_is_and_what_is_missing(folder: Path) -> None:
    said = output("info", folder)
    assert "without trace: 3" in said
    assert "3 operations" in said
    assert "note: no trace of rank 3 (of 4)" in said
    found = json.loads(output("info", folder, "--json", "-"))
    assert (found["processes"], found["ranks"], found["missing_ranks"]) == (3, 4, [3])
    assert [one["host"] for one in found["hosts"]] == ["node0", "node1"]
    assert found["rows"]["operations"] == 3


def test_matrix__prints_cells_with_marks(folder: Path) -> None:
    lines = output("matrix", folder).splitlines()
    assert lines[0] == "bytes by rank: 4 x 4, 2.2 kB"
    assert lines[2].split() == ["0", ".", "~600", "B", ".", "."]
    assert lines[3].split() == ["1", ".", ".", "1", "kB", "."]


def test_matrix__writes_files(folder: Path, tmp_path: Path) -> None:
    files = {f"--{kind}": tmp_path / f"m.{kind}" for kind in ("csv", "html", "png")}
    words = [word for pair in files.items() for word in pair]
    said = output("matrix", folder, "--scale", "log", *words, "--json", "-")
    assert json.loads(said)["cells"][1]["value"] == 1000
    assert files["--csv"].read_text().splitlines()[2] == "1,2,1000,measured"
    assert files["--html"].read_text().startswith("<!doctype html>")
    assert files["--png"].stat().st_size > 1000


def test_matrix__large_ones_are_shades_and_a_list(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 100)
    comm = communicator(process, 5, 0, 100)
    op = operation(process, comm, "Send", 1, 2, kind=1, root=99, algorithm="")
    channel(process, comm, op, 99, 4096, 1, 2)
    process.write()
    for scale in ("linear", "log"):
        lines = output("matrix", tmp_path, "--scale", scale).splitlines()
        assert lines[1] == " " * 63 + "@"
        assert lines[65].startswith('shades: " " nothing, "." little, ... "@" up to 4.096 kB')
        assert lines[65].endswith("; each is the sum of up to 2 x 2 cells")
        assert (", logarithmic;" in lines[65]) == (scale == "log")
        assert lines[67].split()[:4] == ["0", "99", "4.096", "kB"]


def test_matrix__shades_tell_unknown_cells_from_empty_ones(tmp_path: Path) -> None:
    """Ranks 0 and 1 of 20 have a communicator of their own, with an operation of unknown size."""
    process = rank_of(tmp_path, 0, 20)
    communicator(process, 9, 0, 20)
    operation(process, communicator(process, 5, 0, 2), "AllReduce", 1, 2, datatype="new", count=1)
    process.write()
    other = rank_of(tmp_path, 1, 20)
    communicator(other, 9, 1, 20)
    operation(other, communicator(other, 5, 1, 2), "AllReduce", 1, 2, datatype="new", count=1)
    other.write()
    lines = output("matrix", tmp_path).splitlines()
    assert lines[0] == "bytes by rank: 20 x 20, ?"
    assert [line.rstrip() for line in lines[1:5]] == [" ?", "?", "", ""]
    assert lines[21] == 'shades: "?" unknown, " " nothing'
    assert lines[22].startswith("note: ")


def test_profile__prints_and_writes_json(folder: Path) -> None:
    assert "AllReduce" in output("profile", folder)
    found = json.loads(output("profile", folder, "--json", "-"))
    assert found["operations"][0]["count"] == 3
    assert found["communicators"][0]["parallelism"] == "data"


def test_query__answers_and_changes_nothing(folder: Path, tmp_path: Path) -> None:
    sql = "SELECT rank, sum(bytes) AS total FROM processes JOIN operations USING (process) "
    sql += "GROUP BY ALL ORDER BY ALL"
    assert output("query", folder, sql, "--csv", "-") == "rank,total\n0,400\n1,400\n2,400\n"
    assert json.loads(output("query", folder, sql, "--json", "-"))[0] == {"rank": 0, "total": 400}
    assert "comm_id" in output("query", folder, "DESCRIBE comms")
    out = tmp_path / "x"
    for bad in (
        "DROP TABLE comms",
        "SELECT 1; SELECT 2",
        "",
        "SELECT nothing",
        "SELECT",
        f"COPY comms TO '{out}'",
        f"EXPLAIN ANALYZE COPY comms TO '{out}'",
    ):
        done = trace("query", folder, bad)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), bad
    assert not out.exists()


@pytest.mark.parametrize("exported", [False, True])
def test_query__reads_no_other_files(folder: Path, tmp_path: Path, exported: bool) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with open_store(folder) as store:
        store.to_parquet(tmp_path / "it's")
    with open_store(tmp_path / "it's" if exported else folder) as store:
        for call in ("read_csv", "read_text", "glob", "sniff_csv"):
            with pytest.raises(QueryError, match="disabled by configuration"):
                select(store, f"SELECT * FROM {call}('{other}')")
        assert select(store, "SELECT count(*) AS n FROM operations") == (["n"], [(3,)])
        assert store.notes()


def test_export__is_read_again(folder: Path, tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    output("export", folder, "-o", tables)
    assert output("matrix", tables) == output("matrix", folder)
    assert trace("export", folder, "-o", tables).returncode == 2
    output("export", folder, "-o", tmp_path / "csv", "--format", "csv")
    assert (tmp_path / "csv" / "comms.csv").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["info", "--json"],
        ["matrix", "--csv"],
        ["matrix", "--html"],
        ["profile", "--json"],
        ["query", "SELECT 1", "--csv"],
        ["timeline", "-o"],
    ],
)
def test_commands__a_full_disk_is_a_failure(
    folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["trace", words[0], str(folder), *words[1:], "/dev/full"]) == 1
    assert "cannot write /dev/full: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["parquet", "csv", "chakra"])
def test_export__a_failed_one_leaves_nothing(
    folder: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def full(*_: object) -> None:
        assert list(out.iterdir()) or form != "chakra"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Store, "_copy", full)
    monkeypatch.setattr("transport.trace.chakra._write_message", full)
    assert invoke(["trace", "export", str(folder), "-o", str(out), "--format", form]) == 1
    assert not out.exists()


def test_diff__shows_what_changed(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    process = rank_of(other, 0, 4)
    comm = communicator(process, 5, 0, 4)
    operation(process, comm, "AllReduce", 10, 20, count=100)
    process.write()
    found = json.loads(output("diff", folder, other, "--json", "-"))
    assert found["bytes"][0]["what"] == ["0", "1"]
    assert (found["bytes"][0]["ratio"], found["calls"][0]["after"]) == (1, 1)
    said = output("diff", folder, other)
    assert "second trace: no trace of ranks 1-3 (of 4)" in said
    assert said.splitlines()[0] == "bytes by rank: 2 of 3 cells changed"
    assert said.splitlines()[1].split()[:4] == ["from", "to", "before", "after"]
    assert "\ncalls of operations: 1 of 1 rows changed\n" in said
    said = output("diff", folder, other, "--top", "1")
    assert said.startswith("bytes by rank: 2 of 3 cells changed; the 1 whose share changed most\n")


@pytest.mark.parametrize("name", ["info", "matrix", "profile", "diff", "export", "query"])
def test_commands__bad_folders_are_one_line(tmp_path: Path, name: str) -> None:
    more: dict[str, list[str | Path]] = {
        "diff": [tmp_path],
        "export": ["-o", tmp_path / "x"],
        "query": ["SELECT 1"],
    }
    for bad in (tmp_path, tmp_path / "none"):
        done = trace(name, bad, *more.get(name, []))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"weft: {bad} ")
        assert done.stderr.count("\n") == 1


def test_commands__two_jobs_must_be_told_apart(tmp_path: Path) -> None:
    for at, job in enumerate(("17", "18")):
        process = rank_of(tmp_path, 0, 1, SLURM_JOB_ID=job)
        process.name = f"{at:016x}"
        communicator(process, 5, 0, 1)
        process.write()
    done = trace("matrix", tmp_path)
    assert done.returncode == 2
    assert "choose one with --job" in done.stderr
    assert output("matrix", tmp_path, "--job", "17").startswith("bytes by rank: 1 x 1")
    assert "jobs       17, 18" in output("info", tmp_path)
    assert trace("matrix", tmp_path, "--job", "19").returncode == 2


@pytest.mark.parametrize(
    "words",
    [["--comm", "x"], ["--op", "x"], ["--kind", "p2p"], ["--from", "nan"], ["--measure", "x"]],
)
def test_commands__wrong_choices_are_one_line(folder: Path, words: list[str]) -> None:
    done = trace("matrix", folder, *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_matrix__a_function_that_the_trace_lacks_is_told(folder: Path, tmp_path: Path) -> None:
    said = trace("matrix", folder, "--op", "x").stderr
    assert "no operations of the function x, only: AllReduce" in said
    with open_store(folder) as store:
        store.rows("DELETE FROM operations")
        store.to_parquet(tmp_path / "tables")
    said = trace("matrix", tmp_path / "tables", "--op", "x").stderr
    assert "the trace has no operations of NCCL, so none of the function x: leave the" in said


needs_plugin = pytest.mark.skipif(not native.PLUGIN_PATH.exists(), reason="the plugin is not built")


@needs_plugin
def test_record__traces_a_program(build_tree: Path, tmp_path: Path) -> None:
    host = build_tree / "weft_profiler_host"
    if not host.exists():
        pytest.fail(f"{host} is not built: run make test-native")
    out = tmp_path / "out"
    words = ["sh", "-c", f'"{host}" "$NCCL_PROFILER_PLUGIN" 5']
    done = trace("record", "-o", out, "--", *words)
    assert done.returncode == 0, done.stderr
    assert "recorded 1 process on 1 host" in done.stderr
    assert "123456789abcdef0" in output("profile", out)
    above = tmp_path / "absent" / "folder"
    refused = trace("record", "-o", str(above), "--", "true")
    assert (refused.returncode, above.parent.exists()) == (2, False)
    assert f"there is no folder {above.parent}" in refused.stderr
    again = trace("record", "-o", out, "--", "true")
    assert (again.returncode, "holds a trace already" in again.stderr) == (2, True)
    assert trace("record", "--join", "-o", out, "--", "true").returncode == 0


def on_a_small_disk(size_bytes: int, mount: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs words with a tmpfs at `mount`, in a mount namespace of its own."""
    script = f"mount -t tmpfs -o size={size_bytes} weft '{mount}' && exec \"$@\""
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *words],
        env=CLEAN,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="a small disk is a tmpfs, which root mounts with unshare and mount",
)


@needs_plugin
@needs_mounts
@pytest.mark.parametrize(("pages", "status"), [(2, 1), (4, 1), (256, 0)])
def test_record__ranks_lost_to_a_full_disk_are_counted(
    build_tree: Path, tmp_path: Path, pages: int, status: int
) -> None:
    """A file with all records needs two pages, and one that has only a header needs one."""
    if on_a_small_disk(1 << 20, tmp_path, "true").returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here, as in a container without the right to")
    host = build_tree / "weft_profiler_host"
    ranks = f"for r in 0 1 2 3; do RANK=$r WORLD_SIZE=4 '{host}' $NCCL_PROFILER_PLUGIN 5 & done"
    words = ("record", "-o", str(tmp_path / "out"), "--", "sh", "-c", f"{ranks}; wait")
    done = on_a_small_disk(pages * 4096, tmp_path, *COMMAND, *words)
    assert done.returncode == status, done.stderr
    counted = {
        what: int(number)
        for what, number in re.findall(r"weft: ranks (\w+ [\w ]+): (\d+)", done.stderr)
    }
    assert ("is full" in done.stderr) == bool(counted) == bool(status)
    assert sum(counted.values()) <= 4
    if pages == 2:
        assert counted["without any record"] >= 2


def test_losses__of_each_kind_are_told_apart(tmp_path: Path) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "4"}
    whole = Process(tmp_path, os.uname().nodename, 100, f"{1:016x}", variables)
    communicator(whole, 5, 0, 4)
    whole.write()
    (tmp_path / "weft-00000000000000aa-000000.trace").touch()
    processes, problems = scan(tmp_path)
    assert len(problems) == 1
    found = losses(tmp_path, processes)
    assert (found.lost, found.cut, found.is_full) == (1, 0, False)
    (path, header), *_ = processes[0].paths.values()
    path.write_bytes(path.read_bytes()[: header.bytes])
    found = losses(tmp_path, scan(tmp_path)[0])
    assert (found.lost, found.ranks) == (2, (0,))


@needs_plugin
@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -9 $$", 137), (":", 0)])
def test_record__passes_the_exit_status_on(tmp_path: Path, script: str, status: int) -> None:
    done = trace("record", "--", "sh", "-c", script, cwd=tmp_path)
    assert done.returncode == status
    assert "nothing was recorded" in done.stderr
    assert list(tmp_path.iterdir()) == []  # the folder that it made is empty, and removed


@needs_plugin
def test_record__an_empty_folder_of_the_user_stays(tmp_path: Path) -> None:
    mine, new, joined = tmp_path / "mine", tmp_path / "new", tmp_path / "joined"
    mine.mkdir()
    (tmp_path / "damaged").write_bytes(b"\x7fELF")
    (tmp_path / "damaged").chmod(0o755)
    for words in (["-o", mine], ["-o", new], ["--join", "-o", joined]):
        assert trace("record", *map(str, words), "--", str(tmp_path / "damaged")).returncode == 126
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged", "joined", "mine"]


@needs_plugin
def test_record__refuses_what_cannot_run(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    for words, status in (
        (["--", "no-such-command"], 127),
        (["-o", "out", "--", "no-such-command"], 127),
        (["-o", "out", "--", "./text"], 126),
        (["-o", "/proc/x", "--", "true"], 2),
        ([], 2),
    ):
        done = trace("record", *words, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (status, 1), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
