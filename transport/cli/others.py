"""Finds the commands of others that weft runs, and ends as a shell does if one cannot be run."""

from __future__ import annotations

import errno
import os
import shutil

import click

# Exit statuses of a shell for a command that cannot be run.
NOT_EXECUTABLE, NOT_FOUND = 126, 127


class CannotRunError(click.ClickException):
    """A command cannot be run. error: what the system said of it."""

    exit_code = NOT_EXECUTABLE

    def __init__(self, name: str, error: OSError) -> None:
        super().__init__(f"{name}: {error.strerror}")


class NoCommandError(click.ClickException):
    """There is no such command."""

    exit_code = NOT_FOUND

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: no such command")


def program_of(name: str) -> str:
    """The path of a command; NoCommandError or CannotRunError if it is none."""
    program = shutil.which(name)
    if program is not None:
        return program
    if os.path.exists(name) and os.sep in name:
        raise CannotRunError(name, PermissionError(errno.EACCES, "Permission denied"))
    raise NoCommandError(name)
