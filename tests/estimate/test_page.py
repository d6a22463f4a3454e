"""Tests that the outputs shown in docs/ESTIMATION.md are those of the commands."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from transport.cli import weft

PAGE = Path(__file__).parents[2] / "docs" / "ESTIMATION.md"
LEFT_OUT = "..."
# Commands with files that the page shows, which test_docs.py writes, or that nobody has here.
OF_FILES = re.compile(r"^weft estimate overlap|\.(json|hlo|txt)\b")
SHOWN = re.compile(r"^```\n\$ (weft estimate (?:[^\n]*\\\n)*[^\n]*)\n(.+?)^```$", re.M | re.S)


def shown() -> list[tuple[str, str]]:
    """The commands of the page that read no files of users, each with its output."""
    found = [(one[1].replace("\\\n", " "), one[2]) for one in SHOWN.finditer(PAGE.read_text())]
    return [(command, text) for command, text in found if not OF_FILES.search(command)]


def pattern(output: str) -> str:
    """A regular expression of an output, in which `...` stands for anything."""
    lines = (
        "(?:.*\n)*?" if line == LEFT_OUT else re.escape(line).replace(r"\.\.\.", ".*") + "\n"
        for line in output.splitlines()
    )
    return "".join(lines)


def test_page__shows_outputs() -> None:
    assert len(shown()) >= 10


@pytest.mark.parametrize(("command", "output"), shown())
def test_page__shows_what_the_command_prints(command: str, output: str) -> None:
    done = CliRunner().invoke(weft, shlex.split(command)[1:])
    printed = done.stdout or done.stderr.replace("Error:", "weft:", 1)
    assert re.fullmatch(pattern(output), printed), done.output
