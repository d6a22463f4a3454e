"""Shows on stderr how far a command is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

OnProgress = Callable[[str, float], None]  # what is done now, and the share that is done


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
