"""Tests that only regular files of a bounded size are read, and nothing waits for a pipe."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from transport.ground import regular


def test_regular__reads_files_up_to_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"\xef\xbb\xbfabc")
    assert regular.read_bytes(file, 6) == b"\xef\xbb\xbfabc"
    assert regular.read_text(file, 6) == "abc"
    with pytest.raises(OSError, match="larger than 5 bytes"):
        regular.read_bytes(file, 5)
    (tmp_path / "link").symlink_to(file)
    assert regular.read_bytes(tmp_path / "link", 6)


def test_regular__refuses_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))
    for path, says in (
        (tmp_path / "pipe", "it is a pipe"),
        (Path("/dev/zero"), "it is a device"),
        (tmp_path, "it is a folder"),
        (tmp_path / "socket", "No such device"),  # of the kernel, which does not open it
        (tmp_path / "absent", "No such file"),
    ):
        with pytest.raises(OSError, match=says):
            regular.read_bytes(path, 10)
