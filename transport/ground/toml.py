"""Reads TOML files, with errors in one line, and writes tables as TOML, which tomllib cannot."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transport.ground.regular import read_text


class TomlError(ValueError):
    """A file cannot be read or is not TOML; the message is one line that names it."""


def read(file: Path, bytes_max: int | None = None) -> dict[str, Any]:
    """The tables of a file. bytes_max: its largest size, and it must be regular; None: any."""
    try:
        text = read_text(file, bytes_max) if bytes_max else file.read_text(encoding="utf-8")
    except OSError as error:
        raise TomlError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TomlError(f"{file} is not TOML: it is no text in UTF-8") from None
    return parsed(text, str(file))


def parsed(text: str, file: str) -> dict[str, Any]:
    """The tables of the text of a file."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TomlError(f"{file} is not TOML: {error}") from None
    except ValueError as error:  # a number with thousands of digits
        raise TomlError(f"{file} cannot be read: {error}") from None
    except RecursionError:
        raise TomlError(f"{file} is nested too deeply") from None


def written(tables: Mapping[str, Any]) -> str:
    """The tables as TOML: plain keys, then tables, then arrays of tables."""
    return "\n\n".join("\n".join(part) for part in _parts(tables, "", "")) + "\n"


def rounded(value: float, digits: int) -> float:
    """The number with `digits` significant digits, so that a file does not show all 17."""
    return float(f"{value:.{digits}g}")


def _parts(table: Mapping[str, Any], path: str, head: str) -> Iterator[list[str]]:
    """The lines of a table, then those of each table in it. head: its [name] line; "": none."""
    plain = {k: v for k, v in table.items() if not _is_table(v) and not _is_tables(v)}
    lines = [f"{_key(name)} = {_value(value)}" for name, value in plain.items()]
    if lines or head:
        yield [head, *lines] if head else lines
    for name, value in table.items():
        inner = f"{path}{_key(name)}"
        if _is_table(value):
            yield from _parts(value, f"{inner}.", f"[{inner}]")
        elif _is_tables(value):
            for one in value:
                yield from _parts(one, f"{inner}.", f"[[{inner}]]")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # Thousands are separated by underscores, as in handwritten scenarios.
        return f"{value:_}"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value)  # a JSON string is a TOML string
    if isinstance(value, Sequence):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    raise TypeError(f"{value!r}: a value of this type cannot be written as TOML")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(_is_table(one) for one in value)
