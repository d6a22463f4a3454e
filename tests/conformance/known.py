"""Decides which failures of shipped policies are known: each with its cause, none forever.

Never touches a bound. An entry whose check passes fails the test: it is to be removed.
"""

from __future__ import annotations

# (family, policy, check) -> why it fails.
KNOWN: dict[tuple[str, str, str], str] = {
    ("path", "mixed", "takes a healed path back"): (
        "only bursts that come back enter the queue, and a probe is none: while others come back, "
        "a path that was shunned is never tried again"
    ),
}
