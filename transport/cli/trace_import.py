"""`weft trace import`: makes tables from files that other tools wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from transport.cli import trace_open as shared
from transport.cli.options import OutputFolder
from transport.cli.output import json_option, write_json

if TYPE_CHECKING:
    from transport.trace.imported import Import

Function = Callable[..., None]

INPUT = click.Path(exists=True, dir_okay=False, path_type=Path)
INPUT_OR_FOLDER = click.Path(exists=True, path_type=Path)


@click.group("import", short_help="Make tables from files of NCCL, PyTorch, Nsight, Chakra.")
def command() -> None:
    """Make tables from what NCCL, its Inspector, PyTorch, Nsight Systems or Chakra wrote.

    All commands of weft trace can open the folder. The bytes that ranks sent to each other are
    derived from the operations, because such files do not record them.
    """


class Reader(Protocol):
    """Reads files of one kind, one after the other."""

    def read(self, file: Path, /) -> None: ...

    def finish(self) -> Import: ...


def importer(name: str, metavar: str = "FILE...") -> Callable[[Function], click.Command]:
    """A command of `weft trace import` with the files, the folder that it writes, and --json.

    metavar: FILE|DIR... takes folders as well.
    """
    type_ = INPUT_OR_FOLDER if "DIR" in metavar else INPUT

    def decorated(function: Function) -> click.Command:
        for option in (
            json_option,
            click.option(
                "-o",
                "--out",
                required=True,
                type=OutputFolder(),
                help="A new or empty folder for the tables.",
            ),
            click.argument("files", metavar=metavar, nargs=-1, required=True, type=type_),
        ):
            function = option(function)
        return command.command(name)(function)

    return decorated


def write_tables(reader: Reader, files: Iterable[Path], out: Path) -> Import:
    """Reads the files and writes the tables; errors of the files become those of the command."""
    with shared.reporting_errors():
        for file in files:
            reader.read(file)
        found = reader.finish()
        found.write(out)
    return found


@importer("nccl-log")
@click.option(
    "--assume-ring", is_flag=True, help="Assume a ring for collectives of unknown algorithm."
)
def nccl_log(files: tuple[Path, ...], out: Path, assume_ring: bool, json_path: str | None) -> None:
    """Read what NCCL logs with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING.

    A file may have the lines of many processes, and other lines as well.

    Example: weft trace import nccl-log job.log -o tables
    """
    from transport.trace.nccl_log import NcclLogs

    logs = NcclLogs(assume_ring)
    found = write_tables(logs, files, out)
    show(found, out, json_path, {"nccl_versions": sorted(logs.versions)})


@importer("kineto")
@click.option(
    "--assume-world",
    is_flag=True,
    help="Assume that operations of unknown process groups are of all ranks.",
)
def kineto(files: tuple[Path, ...], out: Path, assume_world: bool, json_path: str | None) -> None:
    """Read what torch.profiler exports with export_chrome_trace(), one FILE for each rank.

    A FILE may be compressed with gzip. If a file does not tell its rank, name it rankN.json.

    Example: weft trace import kineto rank*.json.gz -o tables
    """
    from transport.trace.kineto import KinetoTraces

    show(write_tables(KinetoTraces(assume_world), files, out), out, json_path)


@importer("flight")
def flight(files: tuple[Path, ...], out: Path, json_path: str | None) -> None:
    """Read dumps of PyTorch's Flight Recorder, one FILE for each rank: pickle or JSON.

    The name of a FILE ends with its rank, as PyTorch writes it. weft diagnose then says which rank
    did not call an operation, or called another one.

    Example: weft trace import flight /tmp/nccl_trace_rank_* -o tables
    """
    from transport.trace.flight import FlightDumps

    show(write_tables(FlightDumps(), files, out), out, json_path)


@importer("inspector", "FILE|DIR...")
def inspector(files: tuple[Path, ...], out: Path, json_path: str | None) -> None:
    """Read what NCCL's Inspector wrote: JSON lines, one file for each process, or folders of them.

    The job sets NCCL_PROFILER_PLUGIN to the Inspector's library, NCCL_INSPECTOR_ENABLE=1,
    NCCL_INSPECTOR_DUMP_DIR and, to know when operations ran, NCCL_INSPECTOR_DUMP_VERBOSE=1.

    Example: weft trace import inspector nccl-inspector-17 -o tables
    """
    from transport.trace.inspector import InspectorLogs

    show(write_tables(InspectorLogs(), files, out), out, json_path)


@importer("nsys")
@click.option(
    "--rank",
    "ranks",
    type=click.IntRange(0, 1 << 24),
    multiple=True,
    help="Rank of the first FILE, of the second, ...; may be repeated.",
)
def nsys(files: tuple[Path, ...], out: Path, ranks: tuple[int, ...], json_path: str | None) -> None:
    """Read SQLite exports of Nsight Systems: kernels and NVTX ranges of NCCL.

    Each FILE is what nsys export --type sqlite --include-blobs=true wrote, of one or several
    processes. Ranks are those of --rank, of a name such as report.rank3.sqlite, of the ranges in
    which communicators begin, or the number at the end of a name such as report.3.sqlite.

    Example: weft trace import nsys report.*.sqlite -o tables
    """
    from transport.trace.nsys import NsysReports

    if ranks and len(ranks) != len(files):
        raise click.UsageError(f"--rank is given {len(ranks)} times for {len(files)} files")
    show(write_tables(NsysReports(ranks), files, out), out, json_path)


@importer("chakra")
@click.option(
    "--assume-complete",
    is_flag=True,
    help="Assume that the FILEs are of all ranks: a process group has the ranks that name it.",
)
def chakra(
    files: tuple[Path, ...], out: Path, assume_complete: bool, json_path: str | None
) -> None:
    """Read execution traces of Chakra, one FILE for each rank: Protocol Buffers or JSON.

    The name of a FILE ends with its rank: NAME.RANK.et. Its communication nodes become operations;
    those of computation are skipped.

    Example: weft trace import chakra chakra.*.et --assume-complete -o tables
    """
    from transport.trace.chakra_import import ChakraTraces

    show(write_tables(ChakraTraces(assume_complete), files, out), out, json_path)


def show(
    found: Import, out: Path, json_path: str | None, more: dict[str, list[str]] | None = None
) -> None:
    """Says what was read. more: further items of the JSON document."""
    from transport.trace.imported import summary

    if json_path is not None:
        counts: dict[str, Any] = {"read": dict(found.read), "unknown": dict(found.unknown)}
        counts |= {"processes": len(found.sources), "notes": found.notes}
        write_json(counts | (more or {}), json_path)
    else:
        shared.show_notes(found.notes)
    count = len(found.sources)
    click.echo(f"wrote {out}: {count} processes; read {summary(found)}", err=True)
