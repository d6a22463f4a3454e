"""The exceptions for a policy that cannot be compiled: file, line, reason and remedy."""

from __future__ import annotations

from transport.ground.extras import install

INSTALL = install("policies")  # what compiling needs


class PolicyError(Exception):
    """A policy cannot be compiled. Line 0 means that the line is not known."""

    def __init__(self, file: str, line: int, reason: str, remedy: str) -> None:
        place = f"{file}:{line}" if line else file
        super().__init__(f"{place}: {reason}; {remedy}")
        self.file = file
        self.line = line
        self.reason = reason
        self.remedy = remedy


class ToolMissingError(PolicyError):
    """No policy can be compiled on this host, as something is not installed."""

    def __init__(self, what: str, reason: str, remedy: str) -> None:
        super().__init__(what, 0, reason, remedy)
