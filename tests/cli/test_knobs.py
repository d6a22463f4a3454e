"""Tests `weft knobs` with names, and where settings of the environment are wrong."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from transport import native
from transport.cli import invoke, knobs

pytestmark = pytest.mark.skipif(
    not native.PLUGIN_PATH.exists(), reason="the native code is not built"
)


def shown(*words: str) -> Result:
    return CliRunner().invoke(knobs.command, list(words), standalone_mode=False)


def variables(result: Result) -> list[str]:
    """The first words of the lines of a table, but its headings."""
    lines = result.stdout.splitlines()[1:]
    return [line.split()[0] for line in lines if line.startswith("WEFT_")]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["WEFT_PATHS"], ["WEFT_PATHS"]),
        (["paths"], ["WEFT_PATHS"]),
        (["port-base", "rto"], ["WEFT_PORT_BASE", "WEFT_RTO"]),
        (["WEFT_PORT"], ["WEFT_PORT_BASE"]),
        (["_port"], ["WEFT_CONTROL_PORT", "WEFT_PORT_BASE", "WEFT_RDMA"]),
        (["stall"], ["WEFT_PEER_TIMEOUT"]),
    ],
)
def test_knobs__of_a_name_or_a_part_of_one(names: list[str], found: list[str]) -> None:
    assert variables(shown(*names)) == found


def test_knobs__one_has_value_default_range_and_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_PATHS", "3")
    _, row, meaning, note = shown("WEFT_PATHS").stdout.splitlines()
    assert row.split() == ["WEFT_PATHS", "3", "*", "0", "or", "1..256", "count", "operator"]
    assert "Paths to each peer" in meaning
    assert "default: 0" in meaning
    assert note == "* differs from the default"


def test_knobs__a_key_is_shown_without_the_others() -> None:
    for name in ("stall", "WEFT_PEER_TIMEOUT=stall", "peer_timeout=stall=2s"):
        lines = shown(name).stdout.splitlines()
        keys = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
        assert keys == ["stall"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("pahts", "did you mean WEFT_PATHS?"),
        ("WEFT_PORTBASE", "did you mean WEFT_PORT_BASE?"),
        ("silense", "did you mean WEFT_PEER_TIMEOUT=silence?"),
        ("WEFT_RTO=mni", "did you mean WEFT_RTO=min?"),
        ("zzzz", "weft knobs lists them"),
    ],
)
def test_knobs__an_unknown_name_is_told_the_nearest(
    name: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["knobs", "WEFT_PATHS", name]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert f"no knob {name}" in said.err
    assert meant in said.err


def test_knobs__named_ones_as_json() -> None:
    rows = json.loads(shown("paths", "stall", "--json", "-").stdout)
    assert [row["variable"] for row in rows] == ["WEFT_PATHS", "WEFT_PEER_TIMEOUT"]
    assert rows[0]["value"] == "0"
    assert [key["name"] for key in rows[1]["keys"]] == ["stall"]


def test_knobs__a_wrong_setting_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PATHS", "3"), ("PATH", "3"), ("PORT_BASE", "abc"), ("POLL", "x")):
        monkeypatch.setenv(f"WEFT_{name}", value)
    every = shown()
    assert (every.return_value, every.stderr.count("\n")) == (2, 3)
    begins = [line.split()[:2] for line in every.stdout.splitlines()]
    for row in (["WEFT_PATHS", "3"], ["WEFT_PORT_BASE", "?"], ["engine", "?"]):
        assert row in begins
    one = shown("port_base", "--json", "-")
    assert json.loads(one.stdout)[0]["value"] is None
    assert (one.return_value, one.stderr.count("\n")) == (2, 1)
    assert "WEFT_PORT_BASE=abc" in one.stderr
    assert shown("paths").return_value == 0


def test_knobs__the_page_has_all_of_them() -> None:
    assert invoke(["knobs", "--markdown", "paths"]) == 2
