"""Reads a report's page as a browser does: its elements, its data, its commands."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from transport.cli import weft


class Page(HTMLParser):
    """The elements of a page. tags: how many of each. commands: the texts of <pre>.

    rows: the cells of each row of each table, by the caption of the table.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.commands: list[str] = []
        self.rows: dict[str, list[list[str]]] = {}
        self.texts: list[str] = []
        self.data: dict[str, Any] = {}
        self.attributes: list[tuple[str, str | None]] = []
        self._open: list[str] = []
        self._caption = ""
        self._is_data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes += attrs
        self._is_data = tag == "script" and ("id", "data") in attrs
        self._open.append(tag)
        if tag == "tr" and self._caption:
            self.rows[self._caption].append([])
        if tag in ("td", "th") and self._caption:
            self.rows[self._caption][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass
        if tag == "table":
            self._caption = ""

    def handle_data(self, data: str) -> None:
        inner = self._open[-1] if self._open else ""
        if inner == "script":
            if self._is_data:
                self.data = json.loads(data)
            return
        if inner == "caption":
            self._caption = data
            self.rows[data] = []
        elif inner in ("td", "th") and self._caption:
            self.rows[self._caption][-1][-1] += data
        elif inner == "pre":
            self.commands.append(data)
        if inner not in ("style", "title"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def chart(self, name: str) -> dict[str, Any]:
        (found,) = (one for one in self.data["charts"] if one["id"] == name)
        return dict(found)


def reported(folder: Path, *options: str) -> Page:
    """Runs `weft report` on a folder, and reads the page."""
    out = folder.parent / f"{folder.name}.html"
    done = CliRunner().invoke(weft, ["report", str(folder), "-o", str(out), *options])
    assert done.exit_code == 0, done.output
    text = out.read_text()
    assert len(text.encode()) <= 2_000_000
    return Page(text)


def said(*words: str, status: int = 0) -> Any:
    """What a command of weft writes as JSON."""
    done = CliRunner().invoke(weft, [*words, "--json", "-"])
    assert done.exit_code == status, done.output
    return json.loads(done.stdout)
