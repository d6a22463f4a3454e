"""`weft trace import`: makes tables from files that other tools wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from transport.cli import trace_open as shared
from transport.cli.options import OutputFolder
from transport.cli.output import json_option, write_json

if TYPE_CHECKING:
    from transport.trace.imported import Import

files_argument = click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
out_option = click.option(
    "-o",
    "--out",
    required=True,
    type=OutputFolder(),
    help="A new or empty folder for the tables.",
)


@click.group("import")
def command() -> None:
    """Make tables from logs of NCCL, or what PyTorch's profiler or Flight Recorder wrote.

    All commands of weft trace can open the folder. The bytes that ranks sent to each other are
    derived from the operations, because such files do not record them.
    """


@command.command("nccl-log")
@files_argument
@out_option
@click.option(
    "--assume-ring", is_flag=True, help="Assume a ring for collectives of unknown algorithm."
)
@json_option
def nccl_log(files: tuple[Path, ...], out: Path, assume_ring: bool, json_path: str | None) -> None:
    """Read what NCCL logs with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING.

    A file may have the lines of many processes, and other lines as well.

    Example: weft trace import nccl-log job.log -o tables
    """
    from transport.trace.nccl_log import NcclLogs

    with shared.reporting_errors():
        logs = NcclLogs(assume_ring)
        for file in files:
            logs.read(file)
        found = logs.finish()
        found.write(out)
    _show(found, out, json_path, {"nccl_versions": sorted(logs.versions)})


@command.command("kineto")
@files_argument
@out_option
@click.option(
    "--assume-world",
    is_flag=True,
    help="Assume that operations of unknown process groups are of all ranks.",
)
@json_option
def kineto(files: tuple[Path, ...], out: Path, assume_world: bool, json_path: str | None) -> None:
    """Read what torch.profiler exports with export_chrome_trace(), one FILE for each rank.

    A FILE may be compressed with gzip. If a file does not tell its rank, name it rankN.json.

    Example: weft trace import kineto rank*.json.gz -o tables
    """
    from transport.trace.kineto import KinetoTraces

    with shared.reporting_errors():
        traces = KinetoTraces(assume_world)
        for file in files:
            traces.read(file)
        found = traces.finish()
        found.write(out)
    _show(found, out, json_path, {})


@command.command("flight")
@files_argument
@out_option
@json_option
def flight(files: tuple[Path, ...], out: Path, json_path: str | None) -> None:
    """Read dumps of PyTorch's Flight Recorder, one FILE for each rank: pickle or JSON.

    The name of a FILE ends with its rank, as PyTorch writes it. weft diagnose then says which rank
    did not call an operation, or called another one.

    Example: weft trace import flight /tmp/nccl_trace_rank_* -o tables
    """
    from transport.trace.flight import FlightDumps

    with shared.reporting_errors():
        dumps = FlightDumps()
        for file in files:
            dumps.read(file)
        found = dumps.finish()
        found.write(out)
    _show(found, out, json_path, {})


def _show(found: Import, out: Path, json_path: str | None, more: dict[str, list[str]]) -> None:
    from transport.trace.imported import summary

    if json_path is not None:
        counts = {"read": dict(found.read), "unknown": dict(found.unknown)}
        write_json(
            counts | {"processes": len(found.sources), "notes": found.notes} | more, json_path
        )
    else:
        shared.show_notes(found.notes)
    count = len(found.sources)
    click.echo(f"wrote {out}: {count} processes; read {summary(found)}", err=True)
