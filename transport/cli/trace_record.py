"""`weft trace record`: runs a command with tracing on, then prints what was recorded."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from transport import native
from transport.cli import child
from transport.cli.options import OutputFolder
from transport.cli.others import program_of
from transport.cli.profiler import load_profiler
from transport.ground.units import bytes_text, counted

if TYPE_CHECKING:
    from transport.trace.folder import ProcessFiles
    from transport.trace.losses import Losses


@click.command(
    "record",
    short_help="Run a command and record what NCCL does in it.",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "-o",
    "--out",
    type=OutputFolder(),
    help="Folder for the trace; by default a new one, weft-trace-TIME-PID.",
)
@click.option(
    "--join", is_flag=True, help="Other hosts of the same job write into the folder, too."
)
@click.option(
    "--job", metavar="NAME", help="Name of the job in the trace; by default the launcher's."
)
@click.option("--kernels", is_flag=True, help="Record the times of kernels; this slows NCCL down.")
@click.argument("cmd", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    out: Path | None, join: bool, job: str | None, kernels: bool, cmd: tuple[str, ...]
) -> int:
    """Run CMD with NCCL profiled by weft, under any network of NCCL, and show what was recorded.

    The exit status is that of CMD (126 or 127 if it cannot be run), or 1 if CMD succeeded and ranks
    are lost, as on a full disk. To use weft as the network as well, run weft run in CMD.

    Example: weft trace record -o traces -- torchrun --nproc-per-node 8 train.py
    """
    if not native.PLUGIN_PATH.exists():
        raise click.ClickException(
            f"the plugin is not built ({native.PLUGIN_PATH}): run make build"
        )
    program = program_of(cmd[0])
    folder, is_new = _folder(out, join)
    try:
        variables = environment(dict(os.environ), folder, kernels, job)
        status = child.run([program, *cmd[1:]], variables)
        return _show(folder, status, join) or status
    finally:
        if is_new and not join:  # with --join, other hosts may still write into it
            with contextlib.suppress(OSError):
                folder.rmdir()  # fails if it holds a trace


def environment(
    current: dict[str, str], folder: Path, kernels: bool, job: str | None = None
) -> dict[str, str]:
    """The user's variables, plus those that make NCCL load the profiler and write traces."""
    chosen = dict(current)
    chosen["WEFT_TRACE"] = str(folder)
    load_profiler(chosen)
    if kernels:
        chosen["WEFT_TRACE_KERNELS"] = "1"
    if job is not None:
        chosen["WEFT_TRACE_JOB"] = job
    return chosen


def _folder(out: Path | None, join: bool) -> tuple[Path, bool]:
    """The folder for the trace, and whether it was created. Without `join`, it holds no trace."""
    name = f"weft-trace-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder = (out if out is not None else Path(name)).absolute()
    try:
        if not folder.parent.is_dir():
            raise click.UsageError(f"cannot write {folder}: there is no folder {folder.parent}")
        is_new = not folder.is_dir()
        folder.mkdir(exist_ok=True)
        if not join and next(folder.rglob("*.trace"), None) is not None:
            raise click.UsageError(
                f"{folder} holds a trace already: give another folder, or --join if other hosts of "
                "the same job write it"
            )
    except OSError as error:
        raise click.UsageError(f"cannot write {folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise click.UsageError(f"cannot write {folder}: no permission")
    return folder, is_new


def _show(folder: Path, status: int, join: bool) -> int:
    """Prints on stderr what was recorded and what is lost; 1: CMD succeeded, but ranks are lost."""
    from transport.trace.folder import scan
    from transport.trace.losses import losses

    processes, problems = scan(folder)
    for one in problems:
        click.echo(f"weft: {one}", err=True)
    found = losses(folder, processes, whole=not join)
    if processes:
        _show_recorded(folder, processes)
    elif not found.lost:
        why = (
            "CMD made no NCCL communicator and no weft connection, or its NCCL has no profiler "
            "(before 2.23)"
        )
        if status != 0:
            why = f"CMD ended with status {status}, see its output above"
        click.echo(f"weft: nothing was recorded: {why}", err=True)
    _show_losses(folder, found)
    failed = found.lost or (found.cut and found.is_full)
    return 1 if failed and status == 0 else 0


def _show_recorded(folder: Path, processes: Sequence[ProcessFiles]) -> None:
    hosts = len({one.host for one in processes})
    paths = [path for one in processes for path, _ in one.paths.values()]
    size = sum(path.stat().st_size for path in paths if path.exists())
    click.echo(
        f"weft: recorded {counted(len(processes), 'process', 'processes')} on "
        f"{counted(hosts, 'host')} in {folder}: {counted(len(paths), 'file')}, "
        f"{bytes_text(size)}; next: weft trace info {folder}",
        err=True,
    )


def _show_losses(folder: Path, found: Losses) -> None:
    """Prints how many processes are lost or cut short, and whether the disk is full."""
    from transport.trace.notes import ranges

    full = f"the disk of {folder} is full"
    if found.lost:
        named = f" (ranks {ranges(found.ranks)})" if found.ranks else ""
        why = full if found.is_full else "they were killed, or the disk was full"
        click.echo(f"weft: ranks without any record: {found.lost}{named}: {why}", err=True)
    if found.cut:
        why = full if found.is_full else "they were killed, still run, or the disk was full"
        click.echo(f"weft: ranks whose trace has no end: {found.cut}: {why}", err=True)
