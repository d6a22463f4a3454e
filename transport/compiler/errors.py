"""The exception for a policy that cannot be compiled: file, line, reason and remedy."""

from __future__ import annotations

INSTALL_NUMBA = "pip install 'numba>=0.68.0,<0.69'"


class PolicyError(Exception):
    """A policy cannot be compiled. Line 0 means that the line is not known."""

    def __init__(self, file: str, line: int, reason: str, remedy: str) -> None:
        place = f"{file}:{line}" if line else file
        super().__init__(f"{place}: {reason}; {remedy}")
        self.file = file
        self.line = line
        self.reason = reason
        self.remedy = remedy
