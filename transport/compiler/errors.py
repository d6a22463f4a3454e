"""Decides how a refused policy is reported: where, why, and what to write instead.

Never touches a policy.
"""

from __future__ import annotations


class PolicyError(Exception):
    """A policy that cannot be compiled."""

    def __init__(self, file: str, line: int, reason: str, remedy: str) -> None:
        super().__init__(f"{file}:{line}: {reason}; {remedy}")
        self.file = file
        self.line = line
        self.reason = reason
        self.remedy = remedy
