"""The content of `weft top`: choices that keys change, and the lines of the screen."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from transport.live import columns
from transport.live.rates import ProcessRates
from transport.live.table import Column, cut, lay_out, sorted_by

Item = TypeVar("Item")
HELP = (
    "q         quit",
    "s, S      sort by the next or previous column",
    "e         engines on or off",
    "c         connections on or off",
    "p         paths on or off",
    "arrows, PageUp, PageDown, Home, End   scroll",
    "h         this help on or off",
    "",
    "SENT/s is bytes that peers acknowledged; of a path, bytes sent, with resends. RECEIVED/s "
    "is bytes placed into receives. LOSS is segments declared lost divided by segments sent. "
    "RTT is the largest of the paths. DOWN counts paths that stopped answering. WAITS says what "
    "a process, peer or connection waits for. Columns that do not fit are left out.",
)
PROSE_WIDTH = 92  # longest line of a text


@dataclass(frozen=True, slots=True)
class View:
    """The choices that the user made by pressing keys. offset: number of lines scrolled past."""

    sort: str = columns.SORTED_FIRST
    engines: bool = False
    paths: bool = False
    connections: bool = False
    help: bool = False
    offset: int = 0

    def pressed(self, key: str, height: int, lines: int) -> View:
        """The view after a key, on a screen of `height` lines of which the content has `lines`."""
        if key in ("s", "S"):
            step = 1 if key == "s" else -1
            at = columns.SORTABLE.index(self.sort) + step
            return replace(self, sort=columns.SORTABLE[at % len(columns.SORTABLE)])
        if key in ("p", "c", "e", "h"):
            return replace(
                self,
                paths=self.paths != (key == "p"),
                connections=self.connections != (key == "c"),
                engines=self.engines != (key == "e"),
                help=not self.help and key == "h",
                offset=0,
            )
        page = max(1, height - 2)
        steps = {"up": -1, "down": 1, "page up": -page, "page down": page, "home": -lines}
        offset = self.offset + steps.get(key, lines if key == "end" else 0)
        return replace(self, offset=max(0, min(offset, lines - page)))


def content(
    processes: Sequence[ProcessRates], view: View, width: int, marked: bool = True
) -> list[str]:
    """All lines of the tables, before scrolling. marked: an arrow shows the order of rows."""
    mark = view.sort if marked else ""
    if view.help:
        return help_lines(width)
    tables = [
        _table(columns.PROCESSES, processes, view, mark, width),
        _table(
            columns.PEERS, [(p, peer) for p in processes for peer in p.peers], view, mark, width
        ),
    ]
    if view.engines:
        engines = [(p, engine) for p in processes for engine in p.engines]
        tables.insert(1, _table(columns.ENGINES, engines, view, mark, width))
    if view.connections:
        found = [(p, one) for p in processes for one in p.connections]
        tables.append(_table(columns.CONNECTIONS, found, view, mark, width))
    if view.paths:
        paths = [(p, peer, each) for p in processes for peer in p.peers for each in peer.paths]
        tables.append(_table(columns.PATHS, paths, view, mark, width))
    lines: list[str] = []
    for table in tables:
        lines += ["", *table] if lines and table else table
    return lines + _whole_waits(processes, view, lines, width)


def _whole_waits(
    processes: Sequence[ProcessRates], view: View, lines: Sequence[str], width: int
) -> list[str]:
    """The texts of WAITS that a table cuts, of which the end tells apart why; each once."""
    if not any(line.endswith("~") for line in lines):
        return []
    found = []
    for process in processes:
        waits = [process.wait, *(peer.wait for peer in process.peers)]
        if view.connections:
            waits += [connection.wait for connection in process.connections]
        found += [(columns.name_of(process), wait.text) for wait in waits]
    cut_off = [f"{pid} waits: {text}" for pid, text in found if not _is_whole(text, lines)]
    wrapped = [
        line
        for one in dict.fromkeys(cut_off)
        for line in textwrap.wrap(one, max(width, 1), subsequent_indent="  "[: width - 3])
    ]
    return ["", *wrapped] if wrapped else []


def _is_whole(text: str, lines: Iterable[str]) -> bool:
    return any(line.endswith(text) for line in lines)


def help_lines(width: int) -> list[str]:
    """The help, wrapped to the width of the screen; what a key does is indented below it."""
    lines: list[str] = []
    for one in HELP:
        key, gap, _ = one.partition("  ")
        indent = " " * (len(one) - len(one[len(key) :].lstrip())) if gap else ""
        room = max(min(width, PROSE_WIDTH), 1)
        indent = indent if len(indent) < room // 2 else "  "
        lines += textwrap.wrap(one, room, subsequent_indent=indent) or [""]
    return [cut(line, width) for line in lines]


def _table(
    of: Sequence[Column[Item]], items: Sequence[Item], view: View, mark: str, width: int
) -> list[str]:
    if not items:
        return []
    return lay_out(of, sorted_by(of, view.sort, items), width, mark)


def status(processes: Sequence[ProcessRates], view: View, width: int, note: str = "") -> str:
    """The first line of the screen."""
    peers = sum(len(process.peers) for process in processes)
    parts = [
        f"weft top: {len(processes)} processes, {peers} peers",
        f"sorted by {view.sort}",
        "h: help" if not view.help else "h: back",
    ]
    return cut(", ".join([*parts, *([note] if note else [])]), width)


def window(lines: Sequence[str], view: View, height: int) -> list[str]:
    """The lines that are visible below the first line of a screen of `height` lines."""
    room = max(0, height - 1)
    if len(lines) <= room:
        return list(lines)
    offset = min(view.offset, max(0, len(lines) - room + 1))
    shown = list(lines[offset : offset + room - 1])
    last = offset + len(shown)
    return [*shown, f"lines {offset + 1} to {last} of {len(lines)}"] if room else []


def is_heading(line: str) -> bool:
    """Whether a line holds the headings of a table, of which the first is PID in all tables."""
    return line.lstrip().startswith("PID")
