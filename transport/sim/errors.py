"""Decides how a wrong scenario is told: file, line, key, what is wrong and what to do, in one line.

Never judges a value: who reads it does.
"""

from __future__ import annotations

from transport.errors import InvalidArgumentError


class ScenarioError(InvalidArgumentError):
    """What is wrong with a scenario, in one line that says what to do."""


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
