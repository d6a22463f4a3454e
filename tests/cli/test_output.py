"""Tests that tables in a pipe have no trailing blanks, and the width that COLUMNS names."""

from __future__ import annotations

import pytest

from transport.cli import invoke
from transport.cli.output import PIPE_WIDTH, plain_width, print_table

LISTS = (["sim", "--list"], ["counters"], ["knobs"], ["policy", "list"], ["deploy"])


@pytest.mark.parametrize("columns", ["", "80"])
@pytest.mark.parametrize("words", LISTS, ids=" ".join)
def test_lists__have_no_trailing_blanks(
    words: list[str],
    columns: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert invoke(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert [line for line in lines if line != line.rstrip()] == []


def test_table__wraps_at_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("a", "word " * 30), ("b", "")]
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(["name", "text"], rows)
    assert len(capsys.readouterr().out.splitlines()) == 3
    monkeypatch.setenv("COLUMNS", "40")
    print_table(["name", "text"], rows)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3
    assert max(map(len, lines)) <= 40
    assert lines[-1] == "b"


def test_width__of_a_pipe_is_that_of_columns_if_it_is_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for given in ("", "0", "wide", "-5"):
        monkeypatch.setenv("COLUMNS", given)
        assert plain_width(PIPE_WIDTH) == PIPE_WIDTH
    monkeypatch.setenv("COLUMNS", "72")
    assert plain_width(PIPE_WIDTH) == 72
