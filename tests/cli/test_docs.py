"""Tests `weft docs`, and that what messages say to read with it exists."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.waiting import PATIENCE_S
from transport.cli import docs, invoke

ROOT = Path(__file__).parents[2]
# As messages write it: weft docs PAGE, and a section in quotes or of one word with a capital.
NAMED = re.compile(r'weft docs ([a-z]+)(?: \\?"([^"\\]+)\\?"| ([A-Z]\w+))?')
SECTION = (
    "## One\n\ntext one\n\n```\n# no heading\n```\n\n### Below\n\ndeep\n\n## Two *b*\n\ntext two\n"
)
PAGE = f"# Title\n\nFor nobody.\n\n{SECTION}"


def shown(*words: str) -> str:
    done = CliRunner().invoke(docs.command, list(words), standalone_mode=False)
    assert done.exception is None
    return done.stdout


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit status and what is said on stderr."""
    status = invoke(["docs", *words])
    return status, capsys.readouterr().err


def test_docs__lists_every_page_with_its_first_line() -> None:
    lines = shown().splitlines()[1:]
    names = {file.stem.lower() for file in (ROOT / "docs").glob("*.md")}
    assert names <= {line.split()[0] for line in lines}
    assert any("For operators: what a message means" in line for line in lines)


@pytest.mark.parametrize("word", ["operating", "OPERATING", "OPERATING.md", "docs/OPERATING.md"])
def test_docs__a_page_as_people_name_it(word: str) -> None:
    assert shown(word) == (ROOT / "docs" / "OPERATING.md").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["operating", "Ports and firewalls"],
        ["operating", "ports", "and", "firewalls"],
        ["oper", "firewall"],
        ["OPERATING.md#ports-and-firewalls"],
    ],
)
def test_docs__a_section_alone(words: list[str]) -> None:
    text = shown(*words)
    assert text.startswith("## Ports and firewalls\n")
    assert "WEFT_PORT_BASE" in text
    assert text.count("\n## ") == 0


def test_sections__have_those_below_and_no_headings_of_code() -> None:
    parts = docs.sections(PAGE)
    assert [(one.level, one.title) for one in parts] == [
        (1, "Title"),
        (2, "One"),
        (3, "Below"),
        (2, "Two *b*"),
    ]
    one = docs.section_named("one", parts, "X.md")
    assert one == SECTION.partition("## Two")[0]
    assert docs.section_named("below", parts, "X.md") == "### Below\n\ndeep\n\n"
    assert docs.section_named("Two b", parts, "X.md").endswith("text two\n")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["oprating"], "did you mean operating?"),
        (["p"], "planning, policies"),
        (["operating", "Ports and frewalls"], "did you mean Ports and firewalls?"),
        (["diagnosis", "what is"], "several sections of DIAGNOSIS.md"),
        (["--find"], "--find needs words"),
        (["--fnd", "x"], "did you mean --find?"),
        (["../../etc/passwd"], "there is no page"),
    ],
)
def test_docs__what_is_not_there_is_told_the_nearest(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = said(capsys, *words)
    assert (status, hint in text, text.count("\n")) == (2, True, 1), text


def test_find__names_page_and_section(capsys: pytest.CaptureFixture[str]) -> None:
    rows = shown("--find", "openssl", "rand").splitlines()
    assert any(row.startswith("operating") and "A secret" in row for row in rows)
    phrase = shown("--find", "Ports and Firewalls").splitlines()[1:]
    assert any(row.split()[0] == "operating" for row in phrase)
    # Whole words, and names with capitals as they are written; begins of words if nothing else.
    lines = shown("--find", "RoCE").splitlines()[1:]
    assert lines
    assert all("RoCE" in line for line in lines)
    assert all("process" not in shown("--find", word) for word in ("roce", "Roce"))
    assert "firewalls" in shown("--find", "firew")
    assert said(capsys, "--find", "no such words anywhere") == (
        1,
        "weft: no section has no such words anywhere\n",
    )


def test_docs__parts_that_open_in_bold() -> None:
    text = shown("estimation", "Memory")
    assert text.startswith("## A training step\n\n**Memory** is the peak")
    assert "**Computation**" not in text
    assert text.count("**Memory") == 1


def test_docs__are_paged_on_a_terminal(tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho paged; cat\n")
    pager.chmod(0o755)
    ours, theirs = pty.openpty()
    script = "from transport.cli import main; main()"
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        done = subprocess.Popen(
            [sys.executable, "-c", script, "docs", "operating", "A secret"],
            env=os.environ | {"PAGER": str(pager), "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.STDOUT,
        )
        os.close(theirs)
        text = b""
        while b"## A secret" not in text:
            text += terminal.read(1024)
        assert text.startswith(b"paged")
        # The rest has to be read: a terminal that is full would keep the pager waiting.
        while True:
            try:
                terminal.read(1024)
            except OSError:  # EIO: the last process of the terminal has ended
                break
        assert done.wait(PATIENCE_S) == 0


def test_docs__a_wheel_reads_its_own_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs, "SHIPPED", tmp_path)
    status, text = said(capsys)
    assert (status, "the pages are missing" in text) == (1, True)
    (tmp_path / "OPERATING.md").write_text(PAGE)
    assert shown("operating", "below") == "### Below\n\ndeep\n"


def references() -> Iterator[tuple[str, str, str]]:
    """File, page and section of each `weft docs` that the package or a page names."""
    kinds = (".py", ".yml", ".json", ".env", ".html")
    files = [one for one in (ROOT / "transport").rglob("*") if one.suffix in kinds]
    for file in (*files, *(ROOT / "docs").glob("*.md"), ROOT / "README.md"):
        for page, quoted, word in NAMED.findall(" ".join(file.read_text().split())):
            yield file.name, page, quoted or word


def test_messages__name_pages_and_sections_that_exist() -> None:
    found = list(references())
    assert len(found) > 10
    for file, page, section in found:
        path = ROOT / "docs" / f"{page.upper()}.md"
        assert path.exists(), (file, page)
        if section:
            parts = docs.sections(path.read_text())
            assert docs.section_named(section, parts, path.name), (file, section)


def test_messages__name_no_page_by_its_file() -> None:
    """A page that a person is to read is named by the command, which works from a wheel."""
    for file in (ROOT / "transport").rglob("*.py"):
        text = file.read_text()
        strings = re.findall(r'"[^"\n]*docs/[A-Z]+\.md, [^"\n]*"', text)
        assert strings == [], file
