"""Parses the bytes that a terminal sends into keys."""

from __future__ import annotations

import re

NAMES = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
}
# A whole escape sequence, by which a terminal sends a key such as Up, and the beginning of one.
SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])")
BEGINNING = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
PENDING_BYTES_MAX = 32


class KeyParser:
    """Splits bytes from a terminal into keys; an escape sequence may arrive in several parts."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[str]:
        """The keys whose bytes have all arrived: letters as they are, other keys by name."""
        rest = self._pending + data
        keys = []
        while rest:
            if BEGINNING.match(rest) and len(rest) < PENDING_BYTES_MAX:
                break
            match = SEQUENCE.match(rest)
            taken = match[0] if match is not None else rest[:1]
            rest = rest[len(taken) :]
            name = NAMES.get(taken, chr(taken[0]) if taken[0] < 128 and len(taken) == 1 else "")
            if name.isprintable() and name:
                keys.append(name)
        self._pending = rest
        return keys
