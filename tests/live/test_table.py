"""Tests tables that fit a width, the view that keys change, and keys from bytes."""

from dataclasses import replace

from tests.live.support import flow, page, peer, reading
from transport.live import columns, rates
from transport.live.keys import KeyParser
from transport.live.table import Column, chosen, lay_out, sorted_by
from transport.live.view import HELP, View, content, help_lines, status, window

COLUMNS: list[Column[tuple[int, str]]] = [
    Column("NUMBER", lambda item: str(item[0]), 0, lambda item: item[0] or None),
    Column("SQUARE", lambda item: str(item[0] ** 2), 2),
    Column("WORDS", lambda item: item[1], 0, lambda item: item[1], ascending=True, left=True),
]
ITEMS = [(3, "three"), (0, "none"), (12, "a long text about twelve")]


def test_table__aligns_and_marks_its_order() -> None:
    assert lay_out(COLUMNS, ITEMS, 80, "NUMBER") == [
        "NUMBER↓  SQUARE  WORDS",
        "      3       9  three",
        "      0       0  none",
        "     12     144  a long text about twelve",
    ]


def test_table__leaves_out_and_cuts_what_does_not_fit() -> None:
    long = [(12, "a long text about twelve, which is longer than forty characters")]
    assert lay_out(COLUMNS, long, 56)[1] == (
        "    12     144  a long text about twelve, which is long~"
    )
    assert lay_out(COLUMNS, long, 55)[1] == (
        "    12  a long text about twelve, which is longer than~"
    )
    for width in range(1, 40):
        assert all(len(line) <= width for line in lay_out(COLUMNS, ITEMS, width))


def test_table__the_least_important_column_goes_first() -> None:
    assert chosen([0, 5, 1, 0], [4, 4, 4, 4], 22) == [0, 1, 2, 3]
    assert chosen([0, 5, 1, 0], [4, 4, 4, 4], 21) == [0, 2, 3]
    assert chosen([0, 5, 1, 0], [4, 4, 4, 4], 10) == [0, 3]
    assert chosen([0, 5, 1, 0], [4, 4, 4, 4], 1) == [0, 3]


def test_table__is_sorted_with_unknown_values_last() -> None:
    assert [item[0] for item in sorted_by(COLUMNS, "NUMBER", ITEMS)] == [12, 3, 0]
    assert [item[0] for item in sorted_by(COLUMNS, "WORDS", ITEMS)] == [12, 0, 3]
    assert sorted_by(COLUMNS, "SQUARE", ITEMS) == sorted_by(COLUMNS, "NONE", ITEMS) == ITEMS


def test_view__keys_toggle_sort_and_scroll() -> None:
    view = View()
    assert view.pressed("p", 10, 50).paths
    assert not view.pressed("p", 10, 50).pressed("p", 10, 50).paths
    assert view.pressed("c", 10, 50).connections
    assert view.pressed("e", 10, 50).engines
    assert view.pressed("h", 10, 50).help
    assert not view.pressed("h", 10, 50).pressed("h", 10, 50).help
    assert view.pressed("?", 10, 50) == view
    assert view.pressed("s", 10, 50).sort != view.sort
    assert view.pressed("s", 10, 50).pressed("S", 10, 50) == view
    seen = set()
    for _ in columns.SORTABLE:
        view = view.pressed("s", 10, 50)
        seen.add(view.sort)
    assert seen == set(columns.SORTABLE)
    offsets = []
    for key in ("down", "page down", "up", "end", "down", "page up", "home", "up"):
        view = view.pressed(key, 10, 50)
        offsets.append(view.offset)
    assert offsets == [1, 9, 8, 42, 42, 34, 0, 0]


def test_view__a_window_on_the_lines_says_where_it_is() -> None:
    lines = [str(number) for number in range(50)]
    assert window(lines, View(), 51) == lines
    shown = window(lines, View(offset=42), 10)
    assert shown == [*lines[42:], "lines 43 to 50 of 50"]
    assert window(lines, View(offset=99), 10) == shown
    assert [len(window(lines, View(), height)) for height in (0, 1, 2, 3)] == [0, 0, 1, 2]


def test_view__shows_the_tables_that_are_on() -> None:
    made = page(peers=(peer(paths=2),), flows=(flow(receives=1),))
    found = rates(None, reading(made))
    assert sum("PID" in line for line in content(found, View(), 200)) == 2
    everything = View(engines=True, connections=True, paths=True)
    lines = content(found, everything, 200)
    assert sum("PID" in line for line in lines) == 5
    assert sum("usable" in line for line in lines) == 2
    assert content((), everything, 200) == []
    for view in (everything, replace(everything, help=True)):
        for width in (1, 20, 40, 60, 80, 120):
            assert all(len(line) <= width for line in content(found, view, width))
            assert len(status(found, view, width)) <= width
    narrow = content(found, View(), 50)
    assert "WAITS" in narrow[0]
    assert "WINDOW" not in narrow[0]


def test_view__every_column_sorts() -> None:
    made = [page(pid=pid, flows=(flow(bytes_sent=pid),)) for pid in (1, 2, 3)]
    found = rates(None, reading(*made))
    for heading in columns.SORTABLE:
        everything = View(sort=heading, engines=True, connections=True, paths=True)
        assert content(found, everything, 200)


def test_keys__from_bytes_in_parts() -> None:
    parser = KeyParser()
    assert parser.feed(b"qS") == ["q", "S"]
    assert parser.feed(b"\x1b[A\x1bOB\x1b[5~\x1b[6~") == ["up", "down", "page up", "page down"]
    assert parser.feed(b"\x1b") == []
    assert parser.feed(b"[") == []
    assert parser.feed(b"Hp") == ["home", "p"]
    assert parser.feed(b"\x1b[1;5Cx\x00\xff\x7f") == ["x"]
    assert parser.feed(b"\x1bq") == ["q"]
    for _ in range(40):
        parser.feed(b"\x1b[" + b"1;" * 40)
    assert parser.feed(b"q")[-1] == "q"


def test_help__loses_no_word_on_a_narrow_screen() -> None:
    words = " ".join(HELP).split()
    for width in (200, 80, 40):
        lines = help_lines(width)
        assert max(map(len, lines)) <= width
        assert " ".join(lines).split() == words
    # On a screen that is narrower than a word, words are cut and all characters are kept.
    narrow = "".join("".join(help_lines(10)).split())
    assert narrow == "".join(words)


def test_view__a_wait_that_a_table_cuts_stands_whole_below() -> None:
    """Its end, after the semicolon, tells the cases apart."""
    found = rates(None, reading(page()))
    text = "look at that process first"
    wait = replace(found[0].wait, text=f"no answer from 10.0.0.2 for 8 s on all 4 paths; {text}")
    found = (replace(found[0], wait=wait, peers=()),)
    lines = content(found, View(), 60)
    assert max(map(len, lines)) <= 60
    table, below = lines[: lines.index("")], lines[lines.index("") + 1 :]
    assert not any(text in line for line in table)
    assert " ".join(line.strip() for line in below) == f"4711 waits: {wait.text}"
    wide = content(found, View(), 10_000)
    assert wide[-1].endswith(wait.text)
    assert "" not in wide
