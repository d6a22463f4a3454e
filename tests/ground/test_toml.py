"""Tests reading TOML with errors in one line, and writing what can be read back."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from transport.ground.toml import TomlError, read, rounded, written

TABLES: dict[str, Any] = {
    "seed": 3,
    "bytes": 1_000_000,
    "share": 0.25,
    "on": True,
    "names": ["a", 'quote " and \\'],
    "odd key": "x",
    "between": {
        "bytes_per_s": 1e10,
        "protocols": [{"name": "LL", "base_ns": 1.5}, {"name": "Simple", "deep": {"a": 1}}],
    },
    "empty": {},
    "faults": [{"kind": "cut"}, {"kind": "slow", "links": [{"a": 1}]}],
}


def test_written__is_read_back() -> None:
    assert tomllib.loads(written(TABLES)) == TABLES
    with pytest.raises(TypeError, match="cannot be written as TOML"):
        written({"a": None})


def test_written__looks_as_if_by_hand() -> None:
    assert written({"size": 1_000_000, "a": {"b": 1, "c": [{"d": 2}]}}) == (
        "size = 1_000_000\n\n[a]\nb = 1\n\n[[a.c]]\nd = 2\n"
    )


def test_rounded__keeps_significant_digits() -> None:
    assert (rounded(0.123_456, 4), rounded(12_345_678.9, 6), rounded(0, 4)) == (0.1235, 12345700, 0)


def test_read__a_wrong_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    for content, said in (
        (b"a = ", f"{file} is not TOML: "),
        (b"a = '\xff'", f"{file} is not TOML: "),
        (b"a = " + b"[" * 100_000, f"{file} is nested too deeply"),
    ):
        file.write_bytes(content)
        with pytest.raises(TomlError) as wrong:
            read(file)
        assert str(wrong.value).startswith(said)
        assert "\n" not in str(wrong.value)
    with pytest.raises(TomlError, match=r"cannot read .*none\.toml: No such file"):
        read(tmp_path / "none.toml")
