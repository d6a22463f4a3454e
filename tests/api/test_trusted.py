"""Tests that files which others can change, or secrets which others can read, are not used."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from transport import trusted
from transport.errors import InvalidArgumentError
from transport.ground import created
from transport.trusted import UntrustedError

NOBODY = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")


def made(folder: Path, mode: int, owner: int = -1) -> Path:
    file = folder / "file"
    file.write_bytes(b"content")
    file.chmod(mode)
    os.chown(file, owner, -1)
    return file


def refusal(open_it: Callable[[], object]) -> str:
    """The text of the error, which must be one line."""
    with pytest.raises(UntrustedError) as caught:
        open_it()
    assert isinstance(caught.value, InvalidArgumentError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o444, 0o755])
def test_file__that_only_its_owner_can_write_is_read(tmp_path: Path, mode: int) -> None:
    with trusted.open_file(made(tmp_path, mode), what="the plan") as file:
        assert file.read() == b"content"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o777])
def test_file__that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    file = made(tmp_path, mode)
    said = refusal(lambda: trusted.open_file(file, what="the plan"))
    assert said == (
        f"the plan {file} is not used: it belongs to uid {os.geteuid()} and has mode {mode:04o}, "
        f"so others than uid {os.geteuid()} and root can change it: run chmod go-w {file}"
    )


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610])
def test_secret__that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = made(tmp_path, mode)
    said = refusal(lambda: trusted.open_file(file, secret=True, what="the token file"))
    assert f"can read or change it: run chmod go= {file}" in said
    file.chmod(0o400)
    trusted.open_file(file, secret=True, what="the token file").close()


@as_root
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666])
def test_file__of_another_user_is_refused(tmp_path: Path, mode: int) -> None:
    file = made(tmp_path, mode, NOBODY)
    said = refusal(lambda: trusted.open_file(file, what="the plan"))
    assert f"belongs to uid {NOBODY}" in said
    assert f"run chown 0 {file}" in said
    assert (f"and chmod go-w {file}" in said) == (mode == 0o666)


@as_root
def test_file__of_root_counts_for_every_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    file = made(tmp_path, 0o644)
    descriptor = os.open(tmp_path, os.O_PATH)  # folders above it may be closed to other users
    os.seteuid(NOBODY)
    try:
        with trusted.open_file(f"/proc/self/fd/{descriptor}/file", what="the plan") as opened:
            assert opened.read() == b"content"
    finally:
        os.seteuid(0)
        os.close(descriptor)
    assert file.stat().st_uid == 0


@as_root
def test_link__its_target_decides(tmp_path: Path) -> None:
    """Mounted secrets are links. A stranger's link to our file is harmless, ours to his is not."""
    file, link = made(tmp_path, 0o600), tmp_path / "link"
    link.symlink_to(file)
    os.lchown(link, NOBODY, -1)
    trusted.open_file(link, what="the plan").close()
    os.chown(file, NOBODY, -1)
    os.lchown(link, 0, -1)
    assert f"belongs to uid {NOBODY}" in refusal(lambda: trusted.open_file(link, what="the plan"))


def test_file__that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, said in (
        ("pipe", "is not a regular file"),
        ("absent", "No such file or directory"),
        ("a\0b", "null"),
        (".", "is not a regular file"),
    ):
        assert said in refusal(partial(trusted.open_file, tmp_path / name, what="it"))


def test_refusal__leaves_no_descriptor_open(tmp_path: Path) -> None:
    file = made(tmp_path, 0o666)
    before = os.listdir("/proc/self/fd")
    for _ in range(20):
        refusal(lambda: trusted.open_file(file, what="the plan"))
    assert os.listdir("/proc/self/fd") == before


def test_directory__counts_if_nobody_else_can_put_files_there(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir(0o755)
    trusted.check_directory(folder, what="the policy directory")
    for mode in (0o775, 0o757, 0o1777):
        folder.chmod(mode)
        said = refusal(lambda: trusted.check_directory(folder, what="the policy directory"))
        assert f"run chmod go-w {folder}" in said
    assert "No such file" in refusal(lambda: trusted.check_directory(tmp_path / "no", what="it"))
    (tmp_path / "file").touch()
    said = refusal(lambda: trusted.check_directory(tmp_path / "file", what="it"))
    assert said == f"it {tmp_path / 'file'} is not a directory"


@as_root
def test_directory__of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir(0o755)
    os.chown(folder, NOBODY, -1)
    said = refusal(lambda: trusted.check_directory(folder, what="the policy directory"))
    assert f"run chown 0 {folder}" in said


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_replace__makes_a_file_that_counts_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    file = tmp_path / "plan"
    before = os.umask(umask)
    try:
        for content in (b"old", b"new"):
            created.replace(file, content)
    finally:
        os.umask(before)
    with trusted.open_file(file, what="the plan") as opened:
        assert opened.read() == b"new"
    assert os.listdir(tmp_path) == ["plan"]
    with pytest.raises(OSError, match="directory"):
        created.replace(tmp_path / "none" / "plan", b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        created.replace(tmp_path / "folder", b"")
    assert sorted(os.listdir(tmp_path)) == ["folder", "plan"]
