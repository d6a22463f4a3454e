"""Tests texts for a person: names from outside, hints, and Markdown tables."""

from transport.ground.text import markdown_table, nearest, printable


def test_printable__escapes_what_a_terminal_would_obey() -> None:
    assert printable("rank\x1b[2J \u202e\n") == "rank\\x1b[2J \\u202e\\n"


def test_nearest__names_one_or_lists_all() -> None:
    assert nearest("hots", ["hosts", "spines"]) == "; did you mean hosts?"
    assert nearest("x", ["hosts", "spines"]) == "; choose one of hosts, spines"
    assert nearest("x", [f"name{at}" for at in range(13)]).endswith("name11, ...")


def test_markdown_table__escapes_what_would_end_a_cell() -> None:
    assert markdown_table(("name", "meaning"), [("`a`", "x|y"), ("`b`", "")]) == (
        "| name | meaning |\n|---|---|\n| `a` | x\\|y |\n| `b` |  |"
    )
