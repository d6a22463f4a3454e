"""Opens files that a process trusts, such as policies and plans, if no other user can change them.

A file is accepted only if its owner is this process's user or root, and nobody else can write it; a
secret must not be readable by anybody else either. The file's group counts as "anybody else": its
members are not known, and its mode bits also show what an access control list permits.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from transport.errors import InvalidArgumentError

ROOT = 0
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH
_OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class UntrustedError(InvalidArgumentError):
    """A file or directory cannot be opened, or another user can change or read it."""


def open_file(path: Path | str, *, secret: bool = False, what: str) -> BinaryIO:
    """Opens a regular file for reading. Raises UntrustedError if the file is not accepted.

    what: names the file in the message, as "the token file". Symbolic links are followed, since
    secrets that are mounted into a container are links. The owner and mode of the opened file are
    checked, not those of the link, so that replacing the link meanwhile has no effect.
    """
    try:
        # O_NONBLOCK, because opening a FIFO would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise UntrustedError(f"cannot open {what} {path}: {_reason(error)}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UntrustedError(f"{what} {path} is not a regular file")
        check(status, path, secret=secret, what=what)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_directory(path: Path | str, *, what: str) -> None:
    """UntrustedError unless `path` is a directory in which nobody else can put or replace files."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise UntrustedError(f"cannot use {what} {path}: {_reason(error)}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise UntrustedError(f"{what} {path} is not a directory")
    check(status, path, what=what)


def check(status: os.stat_result, path: Path | str, *, secret: bool = False, what: str) -> None:
    """UntrustedError if other users can change `path`, or read a secret. status: its os.stat()."""
    user, mode = os.geteuid(), stat.S_IMODE(status.st_mode)
    remedies = []
    if status.st_uid not in (user, ROOT):
        remedies.append(f"chown {user}")
    if mode & (_OPEN_TO_OTHERS if secret else _WRITABLE):
        remedies.append("chmod go=" if secret else "chmod go-w")
    if remedies:
        danger = "read or change" if secret else "change"
        raise UntrustedError(
            f"{what} {path} is not used: it belongs to uid {status.st_uid} and has mode "
            f"{mode:04o}, so others than uid {user} and root can {danger} it: run "
            f"{' and '.join(f'{one} {path}' for one in remedies)}"
        )


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
