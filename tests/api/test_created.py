"""Tests that output files are made only where nothing of anyone else is lost."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest

from transport.ground import created

NOBODY = 65534


def test_created__a_file_is_new_or_this_users_own(tmp_path: Path) -> None:
    file = tmp_path / "out"
    for content in ("a longer text", "text", b"bytes"):
        created.write_output(file, content)
        assert file.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    created.write_output("/dev/null", "text")


def test_created__a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    """A limit of the size of files stands for the full disk."""
    there, new = tmp_path / "there", tmp_path / "new"
    there.write_text("precious")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        for file in (there, new):
            with pytest.raises(OSError, match="File too large") as refused:
                created.write_output(file, bytes(1_000))
            assert refused.value.filename == str(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [one.name for one in tmp_path.iterdir()] == ["there"]
    assert there.read_text() == "precious"


def test_created__the_mode_of_a_file_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    out.chmod(0o600)
    created.write_output(out, "new")
    assert (out.read_text(), stat.S_IMODE(out.stat().st_mode)) == ("new", 0o600)


def test_created__no_umask_lets_a_group_write(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        created.write_output(tmp_path / "new", "text")
        created.replace(tmp_path / "replaced", "text", durable=True)
    finally:
        os.umask(before)
    for name in ("new", "replaced"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o644
    assert sorted(one.name for one in tmp_path.iterdir()) == ["new", "replaced"]


@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "pipe", "read pipe"])
def test_created__nothing_is_written_through_another_name(kind: str, tmp_path: Path) -> None:
    precious, out = tmp_path / "precious", tmp_path / "out"
    precious.write_text("precious")
    reader = -1
    if kind == "link":
        out.symlink_to(precious)
    elif kind == "dangling":
        out.symlink_to(tmp_path / "absent")
    elif kind == "hard link":
        out.hardlink_to(precious)
    else:
        os.mkfifo(out)
        if kind == "read pipe":
            reader = os.open(out, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match=r"link|regular|No such device") as refused:
        created.write_output(out, "new")
    assert refused.value.filename == str(out)
    assert precious.read_text() == "precious"
    assert not (tmp_path / "absent").exists()
    if reader >= 0:
        os.close(reader)


def test_created__a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    precious, out = tmp_path / "precious", tmp_path / "out"
    precious.write_text("precious")
    out.symlink_to(precious)
    created.replace(out, b"new")
    assert (precious.read_text(), out.read_text(), out.is_symlink()) == ("precious", "new", False)


def test_created__a_file_of_another_user_stays(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make files of another user")
    out = tmp_path / "out"
    out.write_text("precious")
    os.chown(out, NOBODY, NOBODY)
    with pytest.raises(PermissionError, match="belongs to uid 65534"):
        created.write_output(out, "new")
    assert out.read_text() == "precious"
