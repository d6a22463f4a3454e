"""Reads files that users name: regular ones of a bounded size, as pipes and devices never end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_bytes(path: Path, bytes_max: int) -> bytes:
    """The bytes of a regular file.

    OSError, whose strerror says what is wrong, also for pipes, devices and folders, and for files
    of more than `bytes_max`.
    """
    # O_NONBLOCK, because opening a FIFO would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if refusal := refused(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, refusal, str(path))
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(bytes_max + 1)
    finally:
        os.close(descriptor)
    if len(data) > bytes_max:
        raise OSError(errno.EFBIG, f"it is larger than {_size(bytes_max)}, the most that is read")
    return data


def read_text(path: Path, bytes_max: int) -> str:
    """The text of a regular file in UTF-8, without a byte order mark. OSError: as read_bytes().

    UnicodeDecodeError: it is no such text.
    """
    return read_bytes(path, bytes_max).decode("utf-8-sig")


def refused(mode: int) -> str:
    """Why a file of this st_mode is not read; empty: it is a regular one."""
    if stat.S_ISREG(mode):
        return ""
    if stat.S_ISDIR(mode):
        return "it is a folder: give a file"
    kind = "pipe" if stat.S_ISFIFO(mode) else "device" if _is_device(mode) else "socket"
    return f"it is a {kind}: save what it gives in a file, and give that"


def _is_device(mode: int) -> bool:
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count:,} bytes"
