"""What is wrong with a scenario (file, line, key, what to do, in one line), and what ends a sweep.

Values are judged where they are read.
"""

from __future__ import annotations

from transport.errors import InvalidArgumentError, WeftError


class ScenarioError(InvalidArgumentError):
    """What is wrong with a scenario, in one line that says what to do."""


class WorkerLostError(WeftError):
    """A process of a sweep ended before its runs were done; rows that had come are good."""


class BadKeyError(Exception):
    """What is wrong with one key; who knows the file makes a ScenarioError of it.

    `path`: as in the file, from the outermost table inwards: ("workload", 0, "pattern").
    """

    def __init__(self, path: tuple[str | int, ...], text: str) -> None:
        super().__init__(text)
        self.path = path
        self.text = text


def dotted(path: tuple[str | int, ...]) -> str:
    """As people write it: workload.0.pattern."""
    return ".".join(str(part) for part in path)
