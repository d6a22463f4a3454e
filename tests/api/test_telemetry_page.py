"""Tests telemetry pages of running, stopped, killed and forked processes, and damaged pages."""

import json
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.support import LOCAL, PATIENCE_S, child, content, line, pair, running
from tests.stopping import stopped
from tests.waiting import in_order, until
from transport import Endpoint, telemetry
from transport.errors import InvalidArgumentError, SystemCallError, WeftError

MESSAGE = content(300_000, 1)


def only(where: Path, pid: int | None = None) -> telemetry.Page:
    (path,) = telemetry.pages(where, pid)
    return telemetry.read_page(path)


def at_rest(where: Path) -> telemetry.Page | None:
    """The page if it shows that all sends are acknowledged and the next receive is posted.

    A later page may not show it: states are published after the counters, so that those of an
    earlier message may stand beside the counters of the last one.
    """
    page = only(where)
    (flow,) = page.flows
    waits = flow.state["sends"] == 0 and flow.state["receives"] == 1
    return page if waits and flow.counters["bytes_sent"] == 7 * len(MESSAGE) else None


def killed_at_rest(process: subprocess.Popen[str], where: Path) -> bool:
    """Kills the process if its page, which it cannot change meanwhile, shows it at rest."""
    with stopped(process.pid):
        if at_rest(where) is None:
            return False
        process.kill()
        process.wait(PATIENCE_S)
        return True


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Starts a process that has echoed two megabytes; yields it and the directory of its page."""
    with running(child("echo", WEFT_TELEMETRY=str(tmp_path), WEFT_PATHS="4")) as process:
        handle = bytes.fromhex(line(process))
        settings = LOCAL | {"paths": 4, "telemetry": "off"}
        with Endpoint(**settings) as endpoint, endpoint.connect(handle) as connection:
            for _ in range(7):
                connection.send(MESSAGE)
                assert connection.recv(len(MESSAGE)) == MESSAGE
            until(lambda: at_rest(tmp_path))
            yield process, tmp_path


def check_traffic(page: telemetry.Page) -> None:
    """Checks the page of a process that echoed seven messages."""
    (flow,) = page.flows
    (peer,) = page.peers
    assert flow.counters["bytes_received"] == flow.counters["bytes_sent"] == 7 * len(MESSAGE)
    assert flow.state["connection"] != 0
    assert (flow.state["peer"], flow.state["stripe"], flow.state["stripes"]) == (peer.index, 0, 1)
    assert peer.state["address"] == "127.0.0.1"
    assert peer.counters["flows"] == 1
    assert len(peer.paths) == 4
    assert sum(path.counters["bytes_sent"] for path in peer.paths) >= 7 * len(MESSAGE)
    assert all(path.counters["usable"] == 1 for path in peer.paths)
    (engine,) = page.engines
    segments = sum(path.counters["segments_sent"] for path in peer.paths)
    assert engine.counters["datagrams_sent"] >= segments == flow.counters["segments_sent"]
    batches = engine.histograms["batch_datagrams"]
    assert len(batches) == 40
    assert 0 < sum(batches) <= engine.counters["datagrams_sent"]
    assert in_order(1, int(engine.state["turn_ns"]), page.read_ns)
    assert page.process.state["engines"] == 1
    assert page.process.counters["rows_refused"] == 0


def test_quantile__bounds_the_values_of_a_histogram() -> None:
    counts = (1, 0, 2, 0, 5) + (0,) * 34 + (2,)  # one value below 1, two of 2 to 3, five of 8 to 15
    assert [telemetry.quantile(counts, share) for share in (0, 0.1, 0.3, 0.5, 0.8)] == [
        *(0, 0, 3, 15, 15)
    ]
    assert telemetry.quantile(counts, 1) == 1 << 38  # the last bucket's start
    assert telemetry.quantile((0,) * 40, 0.5) is None
    with pytest.raises(InvalidArgumentError, match="share must be from 0 to 1"):
        telemetry.quantile(counts, 1.5)


def test_page__a_running_process_is_read(echo: tuple[subprocess.Popen[str], Path]) -> None:
    process, where = echo
    page = until(lambda: at_rest(where))
    assert (page.pid, page.process_state) == (process.pid, "running")
    check_traffic(page)
    assert page.flows[0].state["sends"] == page.flows[0].state["unsent_bytes"] == 0
    assert page.peers[0].state["waited_for"] == 1
    assert page.peers[0].state["dead"] == 0
    an_hour_s = 3600
    assert page.realtime_s(page.read_ns) == pytest.approx(time.time(), abs=an_hour_s)
    assert telemetry.pages(where, process.pid + 1) == []


def test_page__a_stopped_process_is_read(echo: tuple[subprocess.Popen[str], Path]) -> None:
    process, where = echo
    with stopped(process.pid):
        assert only(where).process_state == "stopped"
        check_traffic(only(where))
    until(lambda: only(where).process_state == "running")


def test_page__a_killed_process_leaves_its_last_counters(
    echo: tuple[subprocess.Popen[str], Path],
) -> None:
    process, where = echo
    until(lambda: killed_at_rest(process, where))
    page = only(where, process.pid)
    assert page.process_state == "gone"
    check_traffic(page)
    assert page.flows[0].state["receives"] == 1
    # The next process that uses this directory marks the page as that of an ended process.
    with Endpoint(**LOCAL, telemetry=str(where)):
        assert len(telemetry.pages(where)) == 2
        path = page.path
        assert path.stat().st_mode & 0o777 == 0o400
        check_traffic(telemetry.read_page(path))
        os.utime(path, (0, 0))
        with Endpoint(**LOCAL, telemetry=str(where)):
            assert not path.exists()
    assert telemetry.pages(where) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="making a PID namespace needs root")
def test_page__a_process_in_a_container_is_read_and_left_alone(tmp_path: Path) -> None:
    """A pid is valid only in its PID namespace: a process outside must not call one inside dead."""
    launcher = ("unshare", "--pid", "--fork", "--kill-child")
    inside = child("echo", launcher=launcher, WEFT_TELEMETRY=str(tmp_path))
    with (
        running(inside),
        Endpoint(**LOCAL, telemetry="off") as endpoint,
        endpoint.connect(bytes.fromhex(line(inside))) as connection,
    ):
        connection.send(MESSAGE)
        assert connection.recv(len(MESSAGE)) == MESSAGE
        page = only(tmp_path, 1)
        assert page.process_state == "unknown"
        assert [flow.counters["bytes_received"] for flow in page.flows] == [len(MESSAGE)]
        os.utime(page.path, (0, 0))
        with Endpoint(**LOCAL, telemetry=str(tmp_path)):
            pass
        assert telemetry.pages(tmp_path, 1) == [page.path]


def test_page__a_fork_neither_counts_in_it_nor_removes_it(tmp_path: Path) -> None:
    with pair(telemetry=str(tmp_path)) as (here, there):
        here.send(b"before")
        there.recv(100)
        before = telemetry.pages(tmp_path)
        pid = os.fork()
        if pid == 0:
            try:
                here.close()
                here.send(b"child")
            except WeftError:
                os._exit(7)
            finally:
                os._exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert telemetry.pages(tmp_path) == before
        here.send(b"after")
        there.recv(100)
        pages = [telemetry.read_page(path) for path in before]
        received = sum(flow.counters["bytes_received"] for page in pages for flow in page.flows)
        assert received == len(b"before") + len(b"after")
        assert {page.pid for page in pages} == {os.getpid()}


def test_page__two_endpoints_have_two_and_closing_removes_them(tmp_path: Path) -> None:
    with pair(telemetry=str(tmp_path)) as (here, _):
        assert len(telemetry.pages(tmp_path)) == 2
        here.close()
    assert list(tmp_path.iterdir()) == []


def test_page__peers_and_flows_beyond_its_rows_count_elsewhere(tmp_path: Path) -> None:
    settings = LOCAL | {"paths": 1}
    with (
        Endpoint(**settings, telemetry=str(tmp_path)) as left,
        Endpoint(**settings, telemetry="off") as right,
        right.listen() as listener,
    ):
        kept = []
        while left.counters().rows_refused < 3:
            kept.append((left.connect(listener.handle), listener.accept(timeout_s=PATIENCE_S)))
        here, there = kept[-1]
        receive = there.irecv_into(memory := bytearray(len(MESSAGE)))
        here.send(MESSAGE)
        receive.wait(timeout_s=PATIENCE_S)
        assert memory == MESSAGE
        assert here.counters().bytes_sent == len(MESSAGE)
        page = only(tmp_path)
        assert len(page.flows) == len(kept) - 3
        assert page.process.counters["rows_refused"] == 3


def test_page__a_directory_that_does_not_work_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemCallError, match=r"WEFT_TELEMETRY=.*No such file"):
        Endpoint(**LOCAL, telemetry=str(tmp_path / "none"))
    with pytest.raises(InvalidArgumentError, match="must be auto, off, or the absolute path"):
        Endpoint(**LOCAL, telemetry="tmp")


@pytest.fixture
def image(tmp_path: Path) -> bytes:
    """A page with traffic in it, as bytes."""
    with pair(telemetry=str(tmp_path), paths=2) as (here, there):
        here.send(b"something")
        there.recv(100)
        return telemetry.pages(tmp_path)[0].read_bytes()


def reads(path: Path, data: bytes) -> bool:
    """Whether the file is a valid page; any exception except PageError fails the test."""
    path.write_bytes(data)
    try:
        page = telemetry.read_page(path)
    except telemetry.PageError:
        return False
    json.dumps([page.process.state, [dict(p.state) for p in page.peers]])
    page.realtime_s(0)
    return True


def test_damage__cut_files_are_refused(image: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut"
    assert reads(path, image)
    sizes = [0, 1, 7, 8, 79, 80, 279, 280, 4096, len(image) // 2, len(image) - 1]
    assert not any(reads(path, image[:size]) for size in sizes)
    assert reads(path, image + b"more")


def test_damage__a_header_that_lies_is_refused(image: bytes, tmp_path: Path) -> None:
    lies = [
        (0, b"notapage"),
        (8, struct.pack("<I", 2)),
        *((at, struct.pack("<I", value)) for at in (12, 28) for value in (0, 2**31, 2**32 - 1)),
        *((at, struct.pack("<Q", value)) for at in (16, 64, 72) for value in (2**32, 2**64 - 1)),
        *((80 + 32 * n + 16, struct.pack("<Q", 2**63)) for n in range(5)),
        *(
            (80 + 32 * n + 24, struct.pack("<I", value))
            for n in range(5)
            for value in (0, 2**32 - 1)
        ),
        *((80 + 32 * n + 28, struct.pack("<I", 2**32 - 1)) for n in range(5)),
    ]
    for at, value in lies:
        assert not reads(tmp_path / "lie", image[:at] + value + image[at + len(value) :]), at


def test_damage__random_bytes_never_crash_the_reader(image: bytes, tmp_path: Path) -> None:
    draw = random.Random(7)
    path = tmp_path / "random"
    head = 8192  # damage only the header, the schema and the first rows, where it has an effect
    for _ in range(400):
        data = bytearray(image)
        for _ in range(draw.choice((1, 2, 8, 64))):
            where = draw.randrange(draw.choice((280, head, len(data))))
            data[where] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        reads(path, bytes(data))


def test_damage__peers_cannot_multiply_their_paths(image: bytes, tmp_path: Path) -> None:
    offset, row_bytes, rows = struct.unpack_from("<QII", image, 80 + 2 * 32 + 16)
    data = bytearray(image)
    for index in range(rows):
        at = offset + index * row_bytes
        data[at : at + row_bytes] = image[offset : offset + row_bytes]
        data[at + 8 + 64 + 8 : at + 8 + 64 + 24] = struct.pack("<qq", 0, 100)
    assert not reads(tmp_path / "many", bytes(data))


def test_damage__sections_without_rows_and_fields_that_overlap(
    image: bytes, tmp_path: Path
) -> None:
    for section in (0, 1, 2, 4):
        at = 80 + 32 * section + 16
        empty = struct.pack("<QII", len(image), struct.unpack_from("<QII", image, at)[1], 0)
        data = image[:at] + empty + image[at + 16 :]
        assert reads(tmp_path / "empty", data) == (section != 0), section
    offset, size = struct.unpack_from("<QQ", image, 64)
    schema = image[offset : offset + size]
    line = next(each for each in schema.splitlines() if each.startswith(b"engine batch"))
    words = line.split(b" ")
    words[2] = words[2].replace(b"i64x40", b"i64x99")  # more numbers than the row has room for
    words[5] = b"8".rjust(len(words[5]), b"0")
    lies = schema.replace(line, b" ".join(words))
    assert len(lies) == size
    assert not reads(tmp_path / "crowd", image.replace(schema, lies))


def test_damage__what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("fifo", "link", "none", ".", "nul\0"):
        with pytest.raises(telemetry.PageError):
            telemetry.read_page(tmp_path / name)
    with pytest.raises(telemetry.PageError, match="cannot list"):
        telemetry.pages(tmp_path / "none")


def weft(*arguments: str, where: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from transport.cli import main; main()", "counters", *arguments],
        env=os.environ | {"WEFT_TELEMETRY": str(where)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_command__prints_a_killed_process(echo: tuple[subprocess.Popen[str], Path]) -> None:
    process, where = echo
    process.kill()
    process.wait(PATIENCE_S)
    done = weft("--live", str(process.pid), where=where)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"process {process.pid}: gone" in done.stdout
    for word in ("127.0.0.1", "datagrams_sent", "rtt_ns", str(7 * len(MESSAGE))):
        assert word in done.stdout
    (page,) = json.loads(weft("--live", "--json", "-", where=where).stdout)
    assert page["pid"] == process.pid
    assert page["flows"][0]["counters"]["bytes_sent"] == 7 * len(MESSAGE)
    assert len(page["peers"][0]["paths"]) == 4


def test_command__says_that_no_process_has_a_page(tmp_path: Path) -> None:
    nothing = f"no running or just killed process has a telemetry page in {tmp_path}\n"
    assert weft("--live", where=tmp_path).stdout == nothing
    assert weft("--live", "--json", "-", where=tmp_path).stdout == "[]\n"


def test_command__says_what_it_cannot_read(tmp_path: Path) -> None:
    done = weft("--live", "1", where=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"weft: no telemetry page of process 1 in {tmp_path} can be read\n"
    (tmp_path / f"weft-{os.geteuid()}-1-2-3-4.page").write_bytes(b"?" * 100)
    done = weft("--live", where=tmp_path)
    assert done.returncode == 1
    assert "not a telemetry page" in done.stderr
    for arguments in (["--live", "x"], ["--live", "--stub"]):
        assert weft(*arguments, where=tmp_path).returncode == 2
