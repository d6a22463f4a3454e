"""Shows on stderr how far a command is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

OnProgress = Callable[[str, float], None]  # what is done now, and the share that is done
LINE_S = 5.0
LONG_S = 2.0


@contextmanager
def progress_on_a_terminal(title: str) -> Iterator[OnProgress]:
    """A progress bar on stderr, removed at the end; none if stderr is not a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what, share: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda what, share: bar.update(task, completed=share, description=f"{title}: {what}")


@contextmanager
def said_if_long(line: str, after_s: float = LONG_S) -> Iterator[None]:
    """Prints the line on a terminal's stderr if what it encloses takes longer than `after_s`."""
    if not Console(stderr=True).is_terminal:
        yield
        return
    timer = threading.Timer(after_s, click.echo, (f"weft: {line}",), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def progress_or_lines(title: str, line_s: float = LINE_S) -> Iterator[OnProgress]:
    """A progress bar on a terminal. Else on stderr a line for each thing that is done, and one
    every `line_s` seconds while it goes on."""
    if Console(stderr=True).is_terminal:
        with progress_on_a_terminal(title) as progress:
            yield progress
        return
    lines = _Lines(title, line_s)
    thread = threading.Thread(target=lines.repeat, daemon=True, name="weft-progress")
    thread.start()
    try:
        yield lines.show
    finally:
        lines.end()
        thread.join()


class _Lines:
    """Lines that say what is done now, and for how long."""

    def __init__(self, title: str, line_s: float) -> None:
        self._title, self._line_s = title, line_s
        self._what, self._since_s, self._said_s = "", 0.0, 0.0
        self._changed = threading.Condition()
        self._ending = False

    def show(self, what: str, share: float) -> None:
        """Prints what is done now, unless it is the same as before."""
        with self._changed:
            if what != self._what:
                self._what, self._since_s = what, time.monotonic()
                self._say("")
                self._changed.notify()

    def repeat(self) -> None:
        """Prints it again from time to time until end() is called."""
        with self._changed:
            while not self._ending:
                left_s = self._said_s + self._line_s - time.monotonic()
                if not self._what:
                    self._changed.wait()
                elif left_s > 0:
                    self._changed.wait(left_s)
                else:
                    self._say(f": for {time.monotonic() - self._since_s:.0f} s now")

    def end(self) -> None:
        """Ends repeat()."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def _say(self, more: str) -> None:
        self._said_s = time.monotonic()
        click.echo(f"weft: {self._title}: {self._what}{more}", err=True)
