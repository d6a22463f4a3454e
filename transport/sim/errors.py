"""Exceptions for scenarios (one line with file, line, key and remedy) and for sweeps."""

from __future__ import annotations

from transport.errors import InvalidArgumentError, WeftError


class ScenarioError(InvalidArgumentError):
    """A scenario is wrong; the message is one line that says how to fix it."""


class WorkerLostError(WeftError):
    """A process of a sweep ended before its runs were done; rows received earlier are valid."""


class BadKeyError(Exception):
    """A key of a scenario is wrong. Code that knows its file converts this to a ScenarioError.

    path: the key from the outermost table inwards, such as ("workload", 0, "pattern").
    """

    def __init__(self, path: tuple[str | int, ...], text: str) -> None:
        super().__init__(text)
        self.path = path
        self.text = text


def dotted(path: tuple[str | int, ...]) -> str:
    """The path of a key as text, such as "workload.0.pattern"."""
    return ".".join(str(part) for part in path)
