"""Writes output files at paths where another user may have put a link, a pipe or a file.

Nothing is written through a symbolic link, into a pipe, or over a file of another user. Files get
mode 0644 or less, whatever the umask is: weft refuses a policy or plan that its group can write.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

_MODE = 0o644
# The folder may not be written, although the file may, or the longer name is too long.
NO_FILE_BESIDE = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
_FLAGS = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def refusal(folder: Path | str) -> str:
    """Why no file can be created in a folder; "" if one can. It creates one and removes it.

    Rights do not tell: root has them in /proc and on file systems that are mounted read-only.
    """
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return os.strerror(error.errno or errno.EIO)
    return ""


def open_output(path: Path | str) -> BinaryIO:
    """Opens a file for writing: creates it, or empties it if it exists and is this user's.

    OSError, which names the file, if it is a link, no regular file, or another user's. Names in
    /dev, such as /dev/stdout, are opened without these checks: only root can create files there.
    """
    path = os.fspath(path)
    if _is_device(path):
        return open(path, "wb")
    return os.fdopen(_create(path), "wb")


def open_text(path: Path | str) -> TextIO:
    """Opens a file for writing text in UTF-8, with the checks of open_output()."""
    return io.TextIOWrapper(open_output(path), encoding="utf-8")


def write_output(path: Path | str, content: str | bytes) -> None:
    """Writes a whole file, with the checks of open_output().

    If it fails, as on a full disk, the file is as it was before.
    """
    path, data = os.fspath(path), content if isinstance(content, bytes) else content.encode()
    if not _is_device(path):
        mode = _MODE
        with suppress(FileNotFoundError):
            descriptor = _open_own(path)
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            os.close(descriptor)
        try:
            with replacing(path, mode=mode) as out:
                out.write(data)
            return
        except OSError as error:
            if error.errno not in NO_FILE_BESIDE:
                raise
    with open_output(path) as out:
        out.write(data)


@contextmanager
def replacing(path: Path | str, *, durable: bool = False, mode: int = _MODE) -> Iterator[BinaryIO]:
    """Opens a new file that takes the place of `path` when the block has ended without an error.

    A reader sees the old content or the new one. A link is replaced, not followed.
    durable: the new content is on the disk (fsync) before it replaces the old content. mode: of
    the new file, less the umask.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.new")
    try:
        with open(os.open(beside, _FLAGS | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
            yield out
            if durable:
                out.flush()
                os.fsync(out.fileno())
        os.replace(beside, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(beside)
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(beside)):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def replace(path: Path | str, content: str | bytes, *, durable: bool = False) -> None:
    """Replaces a whole file atomically; durable: as for replacing()."""
    with replacing(path, durable=durable) as out:
        out.write(content if isinstance(content, bytes) else content.encode())


def _is_device(path: str) -> bool:
    """Whether a path names something in /dev, however it is spelled, except in /dev/shm."""
    folder = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    return f"{folder}/".startswith("/dev/") and not f"{folder}/".startswith("/dev/shm/")


def _create(path: str) -> int:
    with suppress(FileExistsError):
        return os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, _MODE)
    descriptor = _open_own(path)
    try:
        os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_own(path: str) -> int:
    """Opens a file that exists, after the checks of open_output(), and leaves its content."""
    # O_NONBLOCK, because opening a FIFO would wait for its reader.
    try:
        descriptor = os.open(path, _FLAGS | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(
                errno.ELOOP, "it is a symbolic link: name the file itself", path
            ) from None
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise PermissionError(errno.EPERM, "it is not a regular file: name another", path)
        if found.st_uid != os.geteuid():
            text = f"it belongs to uid {found.st_uid}: remove it, or name another"
            raise PermissionError(errno.EPERM, text, path)
        if found.st_nlink > 1:
            text = "it has other names (hard links): remove it, or name another"
            raise PermissionError(errno.EPERM, text, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
