"""Tests the files to which matrices are written: HTML pages, pictures, CSV, JSON."""

import base64
import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transport.trace.matrix import DERIVED, MEASURED, Matrix
from transport.trace.matrix_files import document, page, picture, table


def small(size: int = 3, unknown: tuple[tuple[int, ...], ...] = ((0, 2),)) -> Matrix:
    return Matrix(
        "process",
        tuple(f"<b>&{at}" for at in range(size)),
        "bytes",
        "bytes",
        np.array([0, 1]),
        np.array([1, 2]),
        np.array([7.0, 2.5]),
        np.array([MEASURED, DERIVED], np.uint8),
        unknown,
        ("a note </script>",),
    )


def content(html: str) -> dict[str, Any]:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    decoded: dict[str, Any] = json.loads(found[1])
    return decoded


def unpacked(text: str, dtype: str) -> list[Any]:
    values: list[Any] = np.frombuffer(base64.b64decode(text), dtype).tolist()
    return values


def test_page__holds_the_cells_and_needs_nothing_else() -> None:
    html = page(small(), ["first"], True)
    data = content(html)
    assert data["labels"] == ["<b>&0", "<b>&1", "<b>&2"]
    assert unpacked(data["cells"], "<u4") == [1, 5]
    assert unpacked(data["values"], "<f8") == [7.0, 2.5]
    assert unpacked(data["states"], "u1") == [MEASURED, DERIVED]
    assert data["floats"] == "f8"
    assert [unpacked(one, "<u4") for one in data["unknown"]] == [[0, 2]]
    assert "<li>first</li><li>a note &lt;/script&gt;</li>" in html
    assert data["log"] is True
    assert (data["by"], data["measure"], data["unit"]) == ("process", "bytes", "bytes")
    assert html.count("</script>") == 2
    assert not re.search(r"https?://|src=|<link|@import|url\(", html)


def test_page__says_what_it_shows_with_escaped_names() -> None:
    html = page(small(), [], False, [("job", "<i>17")], "weft trace matrix <dir>")
    for text in (
        *("<td>job</td><td>&lt;i&gt;17</td>", "<td>total</td><td>9.5 B + ?</td>"),
        *("<td>cells with a value</td><td>2 of 9</td>", "weft trace matrix &lt;dir&gt;"),
        "<td>&lt;b&gt;&amp;0</td><td>&lt;b&gt;&amp;1</td><td>7 B</td><td>measured</td>",
        "<td>&lt;b&gt;&amp;1</td><td>2.5 B</td><td>7 B</td>",
    ):
        assert text in html
    assert "<b>" not in re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    late = replace(small(), measure="latency_mean", unit="ns")
    assert "<td>total</td>" not in page(late, [], False)


def test_page__has_all_cells_in_order_when_many_are_used() -> None:
    at = np.array([0, 0, 1]), np.array([0, 1, 1])
    values, states = np.array([1.0, 2.0, 3.0]), np.full(3, MEASURED, np.uint8)
    matrix = Matrix("rank", ("0", "1"), "bytes", "bytes", *at, values, states, (), ())
    data = content(page(matrix, [], False))
    assert data["cells"] is None
    assert unpacked(data["values"], "<f8") == [1, 2, 0, 3]
    assert unpacked(data["states"], "u1") == [MEASURED, MEASURED, 0, MEASURED]


def test_page__of_4096_rows_is_small_when_few_cells_are_used() -> None:
    size = 4096
    ring = np.arange(size)
    of = (ring, (ring + 1) % size, np.full(size, 1.0), np.full(size, MEASURED, np.uint8))
    labels = tuple(map(str, range(size)))
    everyone = (tuple(range(size)),)
    html = page(Matrix("rank", labels, "bytes", "bytes", *of, everyone, ()), [], False)
    assert len(html) < 300_000


def test_table__is_csv() -> None:
    rows = list(csv.reader(io.StringIO(table(small()))))
    assert rows == [
        ["from", "to", "bytes", "state"],
        ["<b>&0", "<b>&1", "7", "measured"],
        ["<b>&1", "<b>&2", "2.5", "derived"],
        ["<b>&0", "<b>&2", "?", "unknown"],
        ["<b>&2", "<b>&0", "?", "unknown"],
    ]


def test_document__is_json() -> None:
    found = json.loads(json.dumps(document(small(), ["x"])))
    assert found["cells"][1] == {"from": "<b>&1", "to": "<b>&2", "value": 2.5, "state": "derived"}
    unknown = {"from": "<b>&2", "to": "<b>&0", "value": None, "state": "unknown"}
    assert found["cells"][3] == unknown
    assert found["unknown"] == [["<b>&0", "<b>&2"]]
    assert found["notes"] == ["x", "a note </script>"]


@pytest.mark.parametrize("logarithmic", [False, True])
@pytest.mark.parametrize("size", [3, 2500])
def test_picture__is_a_png(tmp_path: Path, size: int, logarithmic: bool) -> None:
    picture(small(size), tmp_path / "m.png", logarithmic)
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")


def test_picture__of_an_empty_matrix_is_drawn(tmp_path: Path) -> None:
    none = np.empty(0, np.int64)
    empty = Matrix(
        "rank", ("0",), "bytes", "bytes", none, none, np.empty(0), none.astype(np.uint8), (), ()
    )
    picture(empty, tmp_path / "m.png", True)
    assert (tmp_path / "m.png").exists()
