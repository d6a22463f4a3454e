"""Writes the tables of a scenario as TOML, because tomllib only reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # Thousands are separated by underscores, as in handwritten scenarios.
        return f"{value:_}"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, Sequence):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    raise TypeError(f"{value!r}: a value of this type cannot be written to a scenario")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(name)} = {_value(value)}" for name, value in table.items()]


def written(tables: Mapping[str, Any]) -> str:
    """The TOML text of a scenario: plain keys, then tables, then arrays of tables."""
    plain = {k: v for k, v in tables.items() if not _is_table(v) and not _is_tables(v)}
    parts = [_lines(plain)] if plain else []
    for name, value in tables.items():
        if _is_table(value):
            parts.append([f"[{_key(name)}]", *_lines(value)])
        elif _is_tables(value):
            parts += [[f"[[{_key(name)}]]", *_lines(one)] for one in value]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(_is_table(one) for one in value)
