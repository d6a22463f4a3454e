"""Tests that a telemetry page counts only as a page of its owner, and that others cost nothing."""

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.support import LOCAL, pair
from tests.live.support import weft
from transport import Endpoint, telemetry
from transport.live import read
from transport.live.exporter import Exporter
from transport.telemetry.page import HEADER, PAGE_BYTES_MAX, USER_BYTES_MAX

NOBODY = 65_534
# Numbers of endpoints for pages made by a test: far above those that this process opens.
FORGED, SECOND, MANY = 9_000_000, 9_000_001, range(9_000_010, 9_000_030)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root reads pages of other users")


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Path]:
    """The page of an endpoint of this process, with traffic, in a directory like /dev/shm."""
    tmp_path.chmod(0o1777)
    with pair(telemetry=str(tmp_path), paths=2) as (here, there):
        here.send(b"something")
        there.recv(100)
        yield telemetry.pages(tmp_path)[0]


def put(path: Path, data: bytes, owner: int = NOBODY, mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    os.chown(path, owner, owner)
    return path


def named(page: Path, **changes: int) -> Path:
    """The path with other numbers in its name: user, space, pid, start, endpoint."""
    keys = ("user", "space", "pid", "start", "endpoint")
    numbers = dict(zip(keys, map(int, re.findall(r"\d+", page.name)), strict=True)) | changes
    return page.with_name("weft-" + "-".join(str(numbers[key]) for key in keys) + ".page")


def refused(path: Path) -> str:
    with pytest.raises(telemetry.ForeignPageError) as caught:
        telemetry.read_page(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@as_root
def test_owner__of_the_file_must_be_the_user_in_its_name(mine: Path) -> None:
    forged = put(named(mine, endpoint=FORGED), mine.read_bytes())
    assert refused(forged) == f"{forged}: it belongs to uid {NOBODY}, not to uid 0"
    assert forged not in telemetry.pages(mine.parent)
    found = telemetry.read_pages(mine.parent)
    assert [page.user for page in found.pages] == [0, 0]
    assert (found.ignored, len(found.problems)) == (1, 1)
    assert found.problems[0].startswith(f"ignored {forged}: ")


@as_root
def test_owner__can_only_speak_of_processes_of_its_own(mine: Path) -> None:
    """Nobody's page, honestly named, that claims to describe a process of root."""
    forged = put(named(mine, user=NOBODY), mine.read_bytes())
    assert f"process {os.getpid()} runs as uid 0" in refused(forged)
    assert "is the page of another process" in refused(
        put(named(mine, user=NOBODY, pid=os.getpid() + 1), mine.read_bytes())
    )


@as_root
def test_owner__of_a_process_is_read_by_root(tmp_path: Path) -> None:
    """A process of another user has a page, which root reads as that user's."""
    tmp_path.chmod(0o1777)
    (there, told), (back, done) = os.pipe(), os.pipe()
    descriptor = os.open(tmp_path, os.O_PATH)  # folders above it may be closed to other users
    child = os.fork()
    if child == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            with Endpoint(**LOCAL, telemetry=f"/proc/self/fd/{descriptor}"):
                os.write(told, b"x")
                os.read(back, 1)
        finally:
            os._exit(0)
    try:
        os.close(told)
        assert os.read(there, 1) == b"x"
        (page,) = telemetry.read_pages(tmp_path).pages
        assert (page.user, page.pid, page.process_state) == (NOBODY, child, "running")
    finally:
        os.write(done, b"x")
        os.waitpid(child, 0)
        for each in (descriptor, there, back, done):
            os.close(each)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_mode__that_lets_others_write_is_refused(mine: Path, mode: int) -> None:
    copy = put(named(mine, endpoint=FORGED), mine.read_bytes(), os.geteuid(), mode)
    assert f"others than its owner can change it (mode {mode:04o}, 1 names)" in refused(copy)


def test_name__a_second_one_does_not_count(mine: Path) -> None:
    copy = put(named(mine, endpoint=FORGED), mine.read_bytes(), os.geteuid())
    os.link(copy, named(mine, endpoint=SECOND))
    assert "2 names" in refused(copy)


@as_root
def test_readers__say_once_what_they_ignore(mine: Path) -> None:
    for number in MANY:
        put(
            named(mine, endpoint=number),
            mine.read_bytes().replace(b"127.0.0.1\0", b"6.6.6.6\0\0\0"),
        )
    done = weft("counters", "--live", str(os.getpid()), where=mine.parent)
    assert "6.6.6.6" not in done.stdout
    assert done.stderr.count("\n") == 1
    assert ", and 19 more like it" in done.stderr
    done = weft("top", "--count", "2", "--interval", "0.1", where=mine.parent)
    assert done.stderr.count("ignored") == 1
    said: list[str] = []
    exporter = Exporter(where=mine.parent, log=said.append)
    for _ in range(2):
        text = {
            key[0]: value
            for values in exporter.scrape().of.values()
            for key, value in values.items()
        }
        assert text["weft_exporter_ignored_pages"] == 20
        assert text["weft_exporter_unreadable_pages"] == 0
    assert len(said) == 1
    for path in mine.parent.glob("weft-*-90000??.page"):
        path.unlink()
    exporter.scrape()
    assert said[1:] == ["no telemetry page is ignored any more"]


@as_root
def test_cost__of_empty_files_is_their_header(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        empty = put(named(mine, user=NOBODY, pid=7, start=1, endpoint=number), b"")
        os.truncate(empty, PAGE_BYTES_MAX)
    wanted: list[int] = []
    plain = os.pread

    def counted(file: int, size: int, offset: int) -> bytes:
        wanted.append(size)
        return plain(file, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    found = telemetry.read_pages(mine.parent)
    assert len(found.pages) == 2
    assert sum(wanted) < 200 * HEADER.size + 2 * 3 * (PAGE_BYTES_MAX // 4)


@as_root
def test_cost__of_another_user_is_bounded(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with a valid header that says that all of an empty file is a page."""
    head = bytearray(mine.read_bytes()[:4096])
    head[16:24] = struct.pack("<Q", PAGE_BYTES_MAX)
    space = int(mine.name.split("-")[2])
    for number in range(40):
        huge = put(named(mine, user=NOBODY, space=space + 1, endpoint=number), bytes(head))
        os.truncate(huge, PAGE_BYTES_MAX)
    wanted: list[int] = []
    plain = os.pread

    def counted(file: int, size: int, offset: int) -> bytes:
        wanted.append(size)
        return plain(file, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    found = telemetry.read_pages(mine.parent)
    assert [page.user for page in found.pages] == [0, 0]
    assert sum(wanted) < 4 * USER_BYTES_MAX


def test_metrics__of_containers_do_not_mix(mine: Path) -> None:
    """Pages have the same pid and endpoint in two PID namespaces and, as root, of two users."""
    data = bytearray(mine.read_bytes())
    users = [os.geteuid(), NOBODY] if os.geteuid() == 0 else [os.geteuid()]
    for user in users:
        for space in (7, 8):
            struct.pack_into("<Q", data, 40, space)
            put(named(mine, user=user, space=space), bytes(data), user)
    reading = read(mine.parent)
    assert len(reading.pages) == 2 + 2 * len(users)
    made = Exporter(where=mine.parent).scrape()
    pids = {
        dict(labels)["pid"]
        for values in made.of.values()
        for _, labels in values
        if labels and labels[0][0] == "pid"
    }
    pid = os.getpid()
    want = {str(pid), f"{pid}@7", f"{pid}@8"}
    assert pids == want | ({f"{pid}@7/{NOBODY}", f"{pid}@8/{NOBODY}"} if len(users) > 1 else set())
