"""Runs commands of ESTIMATION.md on the files that it shows, and examples of help texts."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from transport.cli import weft
from transport.cli.estimate import command as estimate

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ESTIMATION.md"
BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.M | re.S)
EXAMPLE = re.compile(r"^ *(?:Example: )?(weft estimate .*)", re.M)
OF_FILES = re.compile(r"simulate|overlap|calibrate|check|tune|\.(json|sh|toml|hlo|txt|et)\b")
# Heading of a section -> the names of the files that its first blocks are.
SECTIONS = {
    "A model and a plan from files": ["config.json", "deepspeed.json"],
    "A graph of PyTorch, a trace of Chakra": ["step.txt"],
    "An XLA program": ["step.hlo"],
}


def blocks_of(heading: str) -> list[str]:
    text = PAGE.read_text()
    begin = text.index(f"\n## {heading}\n")
    return BLOCK.findall(text[begin : text.index("\n## ", begin + 4)])


@pytest.mark.parametrize(("heading", "files"), SECTIONS.items())
def test_estimation__commands_print_what_the_page_says(
    heading: str, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line `...` stands for any lines."""
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(heading)
    for name, content in zip(files, blocks, strict=False):
        Path(name).write_text(content)
    shown = [one for one in blocks[len(files) :] if one.startswith("$ weft ")]
    assert shown
    for one in shown:
        first, _, wanted = one.partition("\n")
        done = CliRunner().invoke(weft, shlex.split(first.removeprefix("$ weft ")))
        assert done.exit_code == 0, done.output
        pattern = ".*".join(map(re.escape, f"\n{wanted}".split("\n...\n")))
        assert re.fullmatch(pattern, f"\n{done.output}", re.S), done.output


def examples() -> list[str]:
    """Commands in the help of `weft estimate` that need no file, in one line each."""
    texts = [(one.help or "").replace("\\\n", " ") for one in estimate.commands.values()]
    found = [line.split("weft ", 1)[1] for text in texts for line in EXAMPLE.findall(text)]
    return [one for one in found if not OF_FILES.search(one)]


def test_help__shows_examples() -> None:
    assert len(examples()) >= 8


@pytest.mark.parametrize("example", examples())
def test_help__examples_work(example: str) -> None:
    done = CliRunner().invoke(weft, shlex.split(example))
    assert done.exit_code == 0, done.output
