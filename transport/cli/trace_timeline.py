"""`weft trace timeline`: writes a timeline that Perfetto shows."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, cast

import click

from transport.cli import trace_open as shared
from transport.cli.options import output_file
from transport.cli.output import json_option, write_json
from transport.ground import created

LIMIT = 1_000_000
# Kind of events -> what it is called where it is counted, if that differs.
NAMES = {"stripes": "sent stripes"}


@click.command("timeline", short_help="Write a timeline for ui.perfetto.dev.")
@shared.folder_argument
@click.option(
    "-o",
    "--out",
    required=True,
    metavar="FILE",
    type=output_file(".perfetto-trace", ".pftrace", ".gz"),
    help="The file for the timeline, NAME.perfetto-trace; if it ends in .gz, it is compressed. A "
    "file that exists is replaced.",
)
@shared.job_option
@click.option("--rank", "ranks", metavar="RANK", multiple=True, help="Only this rank; repeatable.")
@shared.comm_option
@shared.from_option
@shared.to_option
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1),
    default=LIMIT,
    show_default=True,
    help="Write at most N events; a note says how many are left out.",
)
@json_option
def command(
    folder: Path,
    out: Path,
    job: str | None,
    ranks: tuple[str, ...],
    comm: str | None,
    from_s: float | None,
    to_s: float | None,
    limit: int,
    json_path: str | None,
) -> None:
    """Write a timeline of ranks, communicators, channels and messages for ui.perfetto.dev.

    Operations have the names and arguments that the profiler of PyTorch gives them. An arrow leads
    from each message that was sent to where it was received.

    Example: weft trace timeline traces -o job.perfetto-trace.gz --from 10 --to 12
    """
    from transport.trace.timeline import Choice, write_timeline

    span = shared.filters_of(None, None, None, from_s, to_s)
    choice = Choice(ranks, comm, span.from_ns, span.to_ns, limit)
    with shared.opened(folder, job) as store, shared.reporting_errors():
        with _opened(out) as file:
            written = write_timeline(store, file, choice)
        notes = store.notes()
    if written.left_out:
        notes.insert(0, f"left out because of --limit {limit}: {_counts(written.left_out)}")
    if written.untimed:
        notes.append(f"{written.untimed} operations are not shown: the trace has no times of them")
    if json_path is not None:
        write_json(asdict(written) | {"notes": notes}, json_path)
    else:
        shared.show_notes(notes)
    click.echo(f"wrote {out}: {_counts(written.by_kind) or 'no events'}", err=True)


def _counts(by_kind: dict[str, int]) -> str:
    return ", ".join(f"{count} {NAMES.get(kind, kind)}" for kind, count in by_kind.items() if count)


@contextmanager
def _opened(out: Path) -> Iterator[BinaryIO]:
    """The file, open for bytes. A file that exists is only replaced once all is written."""
    target = out.resolve()
    # Devices, pipes and files in a folder that cannot be written to are written in place.
    aside = (not out.exists() or out.is_file()) and os.access(target.parent, os.W_OK)
    try:
        with created.replacing(target) if aside else out.open("wb") as file:
            if out.suffix == ".gz":
                with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield file
    except OSError as error:
        if error.filename in (None, str(target)):
            error.filename = str(out)
        raise
