"""Opens what `weft diagnose` judges: a trace, and dumps, logs and RAS of the same job beside it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from transport.cli import trace_open as shared

if TYPE_CHECKING:
    from transport.diagnose import Diagnosis
    from transport.diagnose.hardware import Trouble
    from transport.trace.beside import Beside
    from transport.trace.inventory import Inventory


@contextmanager
def opened(
    folder: Path | None,
    job: str | None,
    until_ns: int,
    files: Sequence[Path],
    asked: Beside | None = None,
) -> Iterator[list[Beside]]:
    """The sources on a job, the main one first: the trace, if the folder has one.

    files: dumps, logs and statuses; those in the folder are found by themselves. asked: what RAS
    answered.
    """
    from transport.trace.beside import Beside, found_in, name_of, named, read

    with ExitStack() as stack:
        with shared.reporting_errors():
            given = named(files)
            same = {file.resolve() for file in given}
            inside = found_in(folder) if folder is not None and folder.is_dir() else {}
            inside = {file: kind for file, kind in inside.items() if file.resolve() not in same}
            others, problems = read(given, inside)
        if asked is not None:
            if any(one.kind == asked.kind for one in others):
                problems.append("statuses of RAS in files are left out: --ras asked for new ones")
            others = [*(one for one in others if one.kind != asked.kind), asked]
        for one in others:
            stack.enter_context(one.store)
        made = []
        if folder is not None and (not others or has_trace(folder)):
            store = stack.enter_context(shared.opened(folder, job, until_ns=until_ns))
            made.append(Beside(name_of(store), store))
        made += others
        made[0].notes = (*made[0].notes, *problems)
        yield made


def has_trace(folder: Path) -> bool:
    """Whether there are traces of weft, or imported tables, below the folder."""
    tables = folder / "processes.parquet"
    return tables.exists() or next(folder.rglob("*.trace"), None) is not None


def with_gpus(
    found: Diagnosis,
    sources: Sequence[Beside],
    inventory: Inventory | None,
    logs: Sequence[str],
) -> Diagnosis:
    """The diagnosis with the faults of GPUs that kernel logs tell: files, or that of this host."""
    from transport.diagnose.facts import SIMULATED_NS_MAX, processes_of
    from transport.diagnose.hardware import Job, hardware_faults, with_hardware

    processes = [one for source in sources for one in processes_of(source.store)]
    job = Job(processes, max((one.last_ns for one in processes), default=0), inventory)
    troubles, notes = troubles_of(logs)
    if not logs and job.end_ns > SIMULATED_NS_MAX and socket.gethostname() in job.hosts:
        troubles, notes = troubles_here()
    faults, more = hardware_faults(job, troubles)
    return with_hardware(found, faults, [*notes, *more])


def troubles_of(logs: Sequence[str]) -> tuple[list[Trouble], list[str]]:
    """The errors of GPUs in files, each as FILE or HOST=FILE."""
    from transport.diagnose.hardware import of_log
    from transport.host.kernel_log import KernelLogError, read_file

    made = []
    for text in logs:
        host, equals, name = text.partition("=")
        host, name = (host, name) if equals and not Path(text).exists() else ("", text)
        try:
            made += of_log(read_file(Path(name)), host)
        except KernelLogError as error:
            raise click.UsageError(f"--kernel-log: cannot read {error}") from None
    return made, []


def troubles_here() -> tuple[list[Trouble], list[str]]:
    """The errors of GPUs in the kernel log of this host, and a note if it cannot be read."""
    from transport.diagnose.hardware import of_log
    from transport.host.kernel_log import KernelLogError, Kmsg

    try:
        log = Kmsg()
        try:
            return of_log(log.read(), socket.gethostname()), []
        finally:
            log.close()
    except KernelLogError as error:
        return [], [f"kernel log not readable: {error}: XID errors are not seen (--kernel-log)"]
