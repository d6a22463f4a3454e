"""Opens what `weft diagnose` judges: a trace, and dumps and logs of the same job beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from transport.cli import trace_open as shared

if TYPE_CHECKING:
    from transport.trace.beside import Beside


@contextmanager
def opened(
    folder: Path, job: str | None, until_ns: int, files: Sequence[Path]
) -> Iterator[list[Beside]]:
    """The sources on a job, the main one first: the trace, if the folder has one.

    files: dumps and logs; those in the folder are found by themselves.
    """
    from transport.trace.beside import Beside, found_in, name_of, named, read

    with ExitStack() as stack:
        with shared.reporting_errors():
            given = named(files)
            same = {file.resolve() for file in given}
            inside = found_in(folder) if folder.is_dir() else {}
            inside = {file: kind for file, kind in inside.items() if file.resolve() not in same}
            others, problems = read(given, inside)
        for one in others:
            stack.enter_context(one.store)
        made = []
        if not others or has_trace(folder):
            store = stack.enter_context(shared.opened(folder, job, until_ns=until_ns))
            made.append(Beside(name_of(store), store))
        made += others
        made[0].notes = (*made[0].notes, *problems)
        yield made


def has_trace(folder: Path) -> bool:
    """Whether there are traces of weft, or imported tables, below the folder."""
    tables = folder / "processes.parquet"
    return tables.exists() or next(folder.rglob("*.trace"), None) is not None
