"""Decides which failures of shipped policies are known: each with its cause, none forever.

Never touches a bound. An entry whose check passes fails the test: it is to be removed.
"""

from __future__ import annotations

# (family, policy, check) -> why it fails.
KNOWN: dict[tuple[str, str, str], str] = {}
