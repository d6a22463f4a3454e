"""Values of TOML tables that users write: errors name the key, what it has and what it needs."""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection, Mapping
from typing import Any

from transport.ground.text import similar

SHOWN_MAX = 40  # characters of a value in an error


class TableError(ValueError):
    """A key that is missing, unknown or has a wrong value, in one line."""


def known_keys(table: Mapping[str, Any], known: Collection[str], where: str = "") -> None:
    """TableError if the table has other keys. where: what its keys begin with in errors."""
    names = sorted(known)
    if strange := sorted(set(table) - set(known)):
        hints = ", ".join(f"{where}{one}{_hint(one, names)}" for one in strange)
        keys = "unknown key" + "s" * (len(strange) > 1)
        raise TableError(f"{keys} {hints}: known are {', '.join(names)}")


def _hint(word: str, known: list[str]) -> str:
    hint = similar(word, known)
    return f" ({hint.removeprefix('; ')})" if hint else ""


def number(
    table: Mapping[str, Any],
    key: str,
    where: str = "",
    default: float | None = None,
    least: float = 0.0,
    most: float = 1e18,
) -> float:
    """A number from `least` to `most`. default: if the key is missing; None: it must not be."""
    found = table.get(key, default)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise wrong(table, key, where, "a number")
    if not (math.isfinite(found) and least <= found <= most):
        raise TableError(f"{where}{key}: {found}: must be {least:g} to {most:g}")
    return found


def whole(
    table: Mapping[str, Any],
    key: str,
    where: str = "",
    default: int | None = None,
    most: float = 1e18,
) -> int:
    """A whole number from 1 to `most`."""
    found = number(table, key, where, default, 1, most)
    if found != int(found):
        raise wrong(table, key, where, "a whole number")
    return int(found)


def text(table: Mapping[str, Any], key: str, where: str = "") -> str:
    found = table.get(key)
    if not isinstance(found, str) or not found:
        raise wrong(table, key, where, "a text")
    return found


def texts(table: Mapping[str, Any], key: str, where: str = "") -> tuple[str, ...]:
    """A list of texts; none if the key is missing."""
    found = table.get(key, [])
    if not isinstance(found, list):
        raise wrong(table, key, where, "a list of texts")
    for at, one in enumerate(found):
        if not isinstance(one, str) or not one:
            raise wrong({key: one}, key, where, "a text", f"[{at}]")
    return tuple(found)


def inner(
    table: Mapping[str, Any], key: str, where: str = "", example: str = ""
) -> Mapping[str, Any]:
    """A table in the table. example: how to write it."""
    found = table.get(key)
    if not isinstance(found, Mapping):
        raise wrong(table, key, where, f"a table{example}")
    return found


def wrong(
    table: Mapping[str, Any], key: str, where: str, wanted: str, place: str = ""
) -> TableError:
    """The error of a key that is missing, or whose value is not what is wanted."""
    if key not in table:
        return TableError(f"{where}{key}: missing: give {wanted}")
    return TableError(f"{where}{key}{place}: expected {wanted}, not {_shown(table[key])}")


def _shown(value: Any) -> str:
    """The type of a value of TOML, and the value if it is short."""
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value}"[: SHOWN_MAX + len("the number ")]
    if isinstance(value, str):
        return f"the text {value[:SHOWN_MAX]!r}" if value else "an empty text"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "a list"
    is_date = isinstance(value, datetime.date | datetime.time)
    return f"the date {value}" if is_date else f"{value!r}"[:SHOWN_MAX]
