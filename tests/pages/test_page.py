"""Tests that pages escape what they show and need no other file."""

import re
from pathlib import Path
from typing import Any

import jinja2
import pytest

from transport import pages

TEMPLATE = """{% extends "base.html" %}
{% from "macros.html" import facts, notes, plots, table %}
{% block body %}
{{ table(rows) }}{{ notes(remarks) }}{{ plots(drawn, missing) }}
{{ facts([["<s>", "<em>"]]) }}{{ data }}
{% endblock %}
"""


def made(folder: Path, **more: object) -> str:
    (folder / "own.html").write_text(TEMPLATE)
    values = {
        "rows": (["<b>"], [["a & b"], ["<script>"]]),
        "remarks": ["<i>"],
        "drawn": [],
        "missing": "<u>",
        "data": pages.as_it_is("<hr>"),
    }
    return pages.rendered(folder / "own.html", title="a <title>", **{**values, **more})


def test_rendered__escapes_texts(tmp_path: Path) -> None:
    html = made(tmp_path, command="weft sim <x>")
    for text in ("a &lt;title&gt;", "weft sim &lt;x&gt;", "<th>&lt;b&gt;</th>", "&lt;script&gt;"):
        assert text in html
    for text in (
        "<td>a &amp; b</td>",
        "<li>&lt;i&gt;</li>",
        "No plot: &lt;u&gt;",
        "<hr>",
        "&lt;em&gt;",
    ):
        assert text in html
    assert "<script" not in html


def drawing(title: str = "") -> Any:
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().set_title(title)
    return figure


def test_plot__has_the_colours_of_the_page_and_no_text() -> None:
    pytest.importorskip("matplotlib")
    svg = pages.plot(drawing("</svg><script>"))
    assert svg.startswith("<svg ")
    assert "currentColor" in svg
    assert "var(--paper)" in svg
    for text in ("#000000", "#ffffff", "script", "<!--", "<metadata", "xmlns"):
        assert text not in svg
    assert svg == pages.plot(drawing("</svg><script>"))


def test_rendered__is_one_file_with_both_schemes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    html = made(tmp_path, drawn=[pages.plot(drawing())])
    assert html.startswith("<!doctype html>")
    assert html.endswith("</html>\n")
    assert "prefers-color-scheme: dark" in html
    assert "<svg " in html
    assert not re.search(r"https?://|<link|@import|url\((?!#)", html)
    assert "partial" not in html
    assert "these results are partial" in made(tmp_path, partial=True)


def test_rendered__a_value_that_is_missing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "own.html").write_text("{{ nothing }}")
    with pytest.raises(jinja2.UndefinedError, match="nothing"):
        pages.rendered(tmp_path / "own.html", title="")
