"""Finds the line of a key in a TOML text, which tomllib does not report."""

from __future__ import annotations

import re
from collections.abc import Iterator

Path = tuple[str | int, ...]

_PART = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)\s*(\.?)""")
# Matches strings and comments, in which brackets have no meaning.
_HIDDEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|' + r"'''.*?'''|" + r'"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'|#[^\n]*",
    re.DOTALL,
)


def _parts(text: str) -> tuple[list[str], int]:
    """The parts of the dotted key at the start of the text, and the offset where it ends."""
    found, at = [], 0
    while (match := _PART.match(text, at)) is not None:
        word = match[1]
        found.append(word[1:-1] if word[0] in "\"'" else word)
        at = match.end()
        if not match[2]:
            break
    return found, at


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Line number and first line of each table header and each `key = value`."""
    # Replace strings and comments by blanks, except line ends, so that brackets can be counted.
    bare = _HIDDEN.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    depth, begin = 0, 0
    for number, (plain, line) in enumerate(zip(bare.split("\n"), text.split("\n"), strict=True), 1):
        if depth == 0 and plain.strip():
            begin = number
            yield begin, line
        if not plain.lstrip().startswith("[") or depth:
            depth += sum(plain.count(one) for one in "[{") - sum(plain.count(one) for one in "]}")


def lines_of(text: str) -> dict[Path, int]:
    """The line number of every table and key, by path; arrays of tables are indexed."""
    found: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()

    def place(names: list[str]) -> Path:
        """The path of a table header; for an array of tables, the path of its last table."""
        at: Path = ()
        for name in names:
            at = (*at, name)
            if at in counts:
                at = (*at, counts[at] - 1)
        return at

    for number, line in _statements(text.replace("\r\n", "\n")):
        words = line.lstrip()
        if words.startswith("[["):
            names, _ = _parts(words[2:])
            array = (*place(names[:-1]), *names[-1:])
            counts[array] = counts.get(array, 0) + 1
            table = (*array, counts[array] - 1)
            found.setdefault(array, number)
            found[table] = number
        elif words.startswith("["):
            table = place(_parts(words[1:])[0])
            found[table] = number
        else:
            names, _ = _parts(words)
            for count in range(1, len(names) + 1):
                found.setdefault((*table, *names[:count]), number)
    return found


def line_of(lines: dict[Path, int], path: Path) -> int:
    """The line of a key, or of the innermost table around it that has a line, or 1."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)
