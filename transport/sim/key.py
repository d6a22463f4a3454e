"""Describes the keys of a scenario's tables: kind, default, bounds and meaning of a key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from transport.ground import units
from transport.sim.errors import BadKeyError

HOSTS_MAX = 65_536
BYTES_MAX = 1 << 40
NS_MAX = 10**15  # largest time: eleven days
RATE_MAX = 1 << 43  # largest rate in bytes/s: 70 Tb/s

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Key:
    """One key: its kind, default, bounds and meaning.

    Kinds: int, bytes, ns, rate, share, number, bool, text, words (text or a list), table, tables
    (an array of tables), list (of numbers), sizes and ranks (both text or a list).
    If the default is None, the meaning says how the value is derived.
    """

    kind: str
    default: Any
    meaning: str
    low: float = 0
    high: float = HOSTS_MAX
    choices: tuple[str, ...] = ()

    def read(self, path: Path, value: Any) -> Any:
        """The value in its base unit; raises BadKeyError if it is wrong."""
        try:
            return self._checked(value)
        except ValueError as error:
            raise BadKeyError(path, str(error)) from None

    def _checked(self, value: Any) -> Any:
        if self.kind in _UNITS:
            whole = _UNITS[self.kind](value)
            if not self.low <= whole <= self.high:
                raise ValueError(f"{value!r}: expected from {self.low:,} to {self.high:,}")
            return whole
        if self.kind in ("int", "share", "number"):
            kinds = (int,) if self.kind == "int" else (int, float)
            fits = isinstance(value, kinds) and not isinstance(value, bool)
            if not fits or not self.low <= value <= self.high or not math.isfinite(value):
                what = "a whole number" if self.kind == "int" else "a number"
                raise ValueError(f"{value!r}: expected {what} from {self.low:,} to {self.high:,}")
            return value
        if not isinstance(value, _TYPES[self.kind]):
            raise ValueError(f"{value!r}: expected {_EXPECTED[self.kind]}")
        if self.choices and value not in self.choices:
            close = get_close_matches(str(value), self.choices, n=1, cutoff=0.5)
            told = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(f"{value!r}: choose one of {', '.join(self.choices)}{told}")
        return value


_UNITS = {"bytes": units.bytes_of, "ns": units.ns_of, "rate": units.rate_of}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "bool": bool,
    "text": str,
    "words": (str, list),
    "table": Mapping,
    "sizes": (str, list),
    "ranks": (str, list),
    "tables": (list, tuple),
    "list": (list, tuple),
}
_EXPECTED = {
    "bool": "true or false",
    "text": "text in quotes",
    "words": "text, or a list of texts",
    "table": "a table",
    "tables": "an array of tables: write its name in two pairs of brackets",
    "list": "a list of whole numbers",
    "sizes": "a name in quotes, or a list of [bytes, cumulative share]",
    "ranks": 'hosts as text such as "0-31" or "0-62/2,70", or a list of numbers',
}

Table = dict[str, Key]


def bytes_key(default: Any, meaning: str, low: int = 0, high: int = BYTES_MAX) -> Key:
    return Key("bytes", default, meaning, low, high)


def ns_key(default: Any, meaning: str, low: int = 0) -> Key:
    return Key("ns", default, meaning, low, NS_MAX)


def int_key(default: Any, meaning: str, low: int = 1, high: int = HOSTS_MAX) -> Key:
    return Key("int", default, meaning, low, high)


def share_key(default: Any, meaning: str) -> Key:
    return Key("share", default, meaning, 0, 1)


def rate_key(default: Any, meaning: str) -> Key:
    return Key("rate", default, meaning, 1_000, RATE_MAX)
