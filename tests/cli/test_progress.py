"""Tests that a command says how far it is, also where stderr is no terminal."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from tests.waiting import until
from transport.cli import progress as shown
from transport.cli.progress import progress_or_lines, said_if_long


def test_progress__without_a_terminal_a_line_comes_again_while_the_same_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = ""

    def repeats(what: str) -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return re.search(rf"^weft: host: {what}: for \d+ s now$", said, re.MULTILINE) is not None

    with progress_or_lines("host", line_s=0.001) as progress:
        progress("first", 0.0)
        until(lambda: repeats("first"))
        progress("second", 0.5)
        progress("second", 0.6)
        until(lambda: repeats("second"))
    lines = said.splitlines()
    assert lines.count("weft: host: first") == lines.count("weft: host: second") == 1
    assert lines.index("weft: host: first") < lines.index("weft: host: second")


def test_progress__nothing_is_said_before_anything_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress_or_lines("host", line_s=0.001):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("is_terminal", [True, False])
def test_said_if_long__tells_a_terminal_alone(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = SimpleNamespace(is_terminal=is_terminal)
    monkeypatch.setattr(shown, "Console", lambda stderr: fake)
    said = ""

    def is_said() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return said == "weft: judging\n" * is_terminal

    with said_if_long("judging", after_s=0.001):
        until(is_said)
    with said_if_long("never", after_s=1e6):
        pass
    assert capsys.readouterr().err == ""
