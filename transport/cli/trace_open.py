"""Opens traces for the commands of `weft trace`, and the options that these share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from transport.cli import WRONG_PATH
from transport.cli.output import unwritten, write_file
from transport.cli.progress import progress_on_a_terminal
from transport.ground.text import printable

if TYPE_CHECKING:
    from transport.trace.inventory import Inventory
    from transport.trace.matrix import Filters
    from transport.trace.store import Store

NOTES_MAX = 20  # limit of printed notes

folder_argument = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
MEASURE = (
    "What a cell is: bytes, number of messages, bytes resent, or the latency from post to "
    "acknowledgment, as mean or 99th percentile (of weft's network only)."
)
job_option = click.option("--job", metavar="NAME", help="Only this job, if DIR has several.")
comm_option = click.option("--comm", metavar="NAME|ID", help="Only this communicator.")
op_option = click.option("--op", metavar="FUNCTION", help="Only this function, such as AllReduce.")
kind_option = click.option(
    "--kind", type=click.Choice(["collective", "p2p"]), help="Only operations of this kind."
)
from_option = click.option(
    "--from",
    "from_s",
    metavar="SECONDS",
    type=float,
    help="Only what began at least this long after the first record.",
)
to_option = click.option(
    "--to",
    "to_s",
    metavar="SECONDS",
    type=float,
    help="Only what began less than this long after the first record.",
)

routes_option = click.option(
    "--routes",
    "routes_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The links of paths; default: routes.json in DIR, if it is there.",
)
inventory_option = click.option(
    "--inventory",
    "inventory_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A TOML file with the rack, switch ports, NICs and GPUs of hosts and ranks.",
)


def inventory_of(file: Path | None) -> Inventory | None:
    """The inventory in a file; None: no file was given."""
    from transport.trace.inventory import InventoryError, read

    try:
        return None if file is None else read(file)
    except InventoryError as error:
        raise click.UsageError(f"--inventory: {error}") from None


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Turns errors of traces into one line: exit status 2 for a wrong argument, else 1."""
    from transport.trace.layout import TraceError
    from transport.trace.places import ChoiceError
    from transport.trace.query import QueryError
    from transport.trace.store import TraceExtraError

    try:
        yield
    except TraceExtraError as error:
        raise click.ClickException(str(error)) from None
    except (TraceError, ChoiceError, QueryError) as error:
        raise click.UsageError(str(error)) from None
    except BrokenPipeError:
        raise  # the reader closed the pipe: click ends without a message
    except OSError as error:
        if error.errno in WRONG_PATH and error.filename is not None:
            raise  # of the trace itself
        raise unwritten(error.filename or "the output", error) from None


@contextmanager
def opened(
    folder: Path, job: str | None, *, one_job: bool = True, until_ns: int | None = None
) -> Iterator[Store]:
    """Opens a folder of traces. If `one_job`, several jobs in it are an error without `job`.

    until_ns: leaves out records after this time of day.
    """
    from transport.trace.store import open_store

    with reporting_errors():
        with progress_on_a_terminal("reading traces") as progress:
            store = open_store(
                folder,
                job=job,
                until_ns=until_ns,
                progress=lambda done, of: progress(f"{done} of {of}", done / of),
            )
        with store:
            jobs = store.jobs()
            if one_job and len(jobs) > 1:
                named = ", ".join(
                    f"{name or 'unnamed'} ({count} processes)" for name, count in jobs
                )
                raise click.UsageError(
                    f"{folder} has traces of {len(jobs)} jobs, {named}: choose one with --job"
                )
            yield store


def filters_of(
    comm: str | None,
    op: str | None,
    kind: str | None,
    from_s: float | None,
    to_s: float | None,
) -> Filters:
    from transport.trace.matrix import Filters

    if from_s is not None and to_s is not None and not from_s < to_s:
        raise click.UsageError(f"--from {from_s:g} --to {to_s:g}: --to must be later than --from")
    return Filters(comm, op, kind, _ns(from_s), _ns(to_s))


def _ns(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not abs(seconds) < 1e9:
        raise click.UsageError(f"--from, --to: {seconds}: must be seconds since the first record")
    return round(seconds * 1e9)


def show_notes(notes: Sequence[str]) -> None:
    for note in notes[:NOTES_MAX]:
        click.echo(f"note: {printable(note)}")
    if notes[NOTES_MAX:]:
        click.echo(f"note: {len(notes) - NOTES_MAX} more notes: --json has them all")


def write_text(text: str, out: Path) -> None:
    write_file(out, text)
    click.echo(f"wrote {out}", err=True)
