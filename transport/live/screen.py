"""Shows rates on a terminal, and changes the view when keys are pressed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from transport.live import view as views
from transport.live.rates import ProcessRates, rates
from transport.live.reading import Reading
from transport.live.terminal import Terminal, die_of
from transport.live.view import View
from transport.telemetry import PageError


@dataclass
class Source:
    """Reads telemetry pages, keeps the rates between the last two readings.

    note: a read error, or how many processes have ended. seen: pages of processes that ran.
    """

    take: Callable[[], Reading]
    before: Reading | None = None
    processes: tuple[ProcessRates, ...] = ()
    note: str = ""
    seen: set[Path] = field(default_factory=set)

    def refresh(self) -> None:
        """Reads all telemetry pages once."""
        try:
            now = self.take()
        except PageError as error:
            self.before, self.processes, self.note = None, (), str(error)
            return
        self.processes = rates(self.before, now)
        self.before = now
        self.seen.update(page.path for page in now.pages)
        # Pages of processes that ended before the first reading may be days old.
        count = len(now.ended & self.seen)
        ended = f"ended: {count}" if count else ""
        self.note = now.problems[0] if now.problems else ended


def watch(
    take: Callable[[], Reading], interval_s: float, view: View, console: Console
) -> int | None:
    """Shows the rates until `q`, Ctrl-C or a signal.

    Returns SIGINT after Ctrl-C, else None. Another signal ends the process.
    """
    source = Source(take)
    source.refresh()
    while True:
        with (
            Terminal() as terminal,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            view = _session(terminal, live, source, interval_s, view)
        if terminal.ended not in (None, signal.SIGINT):
            die_of(int(terminal.ended or 0))
        if terminal.ended is not None or not terminal.suspended:
            return terminal.ended
        die_of(signal.SIGTSTP)


def _session(terminal: Terminal, live: Live, source: Source, interval_s: float, view: View) -> View:
    """Runs until a key or a signal requests to quit or to suspend; returns the view."""
    due_s = time.monotonic() + interval_s
    while terminal.ended is None and not terminal.suspended:
        width, height = live.console.size
        lines = views.content(source.processes, view, width)
        live.update(_screen(source, view, lines, width, height), refresh=True)
        for key in terminal.keys(due_s):
            if key == "q":
                return view
            view = view.pressed(key, height, len(lines))
        if time.monotonic() >= due_s:
            source.refresh()
            due_s = time.monotonic() + interval_s
    return view


def _screen(source: Source, view: View, lines: Sequence[str], width: int, height: int) -> Group:
    shown = views.window(lines, view, height)
    nothing = "" if source.processes else "no running process has a telemetry page here"
    note = source.note or nothing
    head = views.status(source.processes, view, width, note).ljust(width)
    texts = [Text(head, "reverse", no_wrap=True, overflow="crop")]
    for line in shown:
        style = "bold" if views.is_heading(line) else ""
        texts.append(Text(line, style, no_wrap=True, overflow="crop"))
    return Group(*texts)
