"""`weft report`: one page about a traced job, for its engineers and for those who pay for it."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from transport.cli import trace_open as shared
from transport.cli.estimate_overlap import WithUnit
from transport.cli.http_options import access_of, address, tls_options
from transport.cli.known_routes import known_routes
from transport.cli.options import HTML, FiniteRange, SecondsType, output_file
from transport.cli.packages import PAGES, TRACES, need_packages
from transport.cli.progress import progress_on_a_terminal

if TYPE_CHECKING:
    from transport.report import Options, Source

PAGE, OUTPUT = output_file(*HTML), "report.html"
CURRENCY_MAX = 8  # characters


def currency(given: str) -> str:
    """Checks the name or symbol of a currency."""
    if not 0 < len(given) <= CURRENCY_MAX or not given.isprintable():
        raise click.BadParameter(f"{given!r}: give a name or symbol, such as USD or €.")
    return given


@click.command("report")
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=PAGE,
    help=f"The page to write.  [default: {OUTPUT}]",
)
@shared.job_option
@shared.routes_option
@shared.inventory_option
@click.option(
    "--alone",
    "alone_ns",
    metavar="TIME",
    type=WithUnit(),
    help="The time of a step without communication, such as 158ms: tells how much communication "
    "is exposed, that is not hidden behind computation.",
)
@click.option(
    "--price",
    metavar="AMOUNT",
    type=FiniteRange(0, 1e6),
    help="The price of a GPU for an hour: says what waiting cost.",
)
@click.option(
    "--currency",
    metavar="NAME",
    default="USD",
    show_default=True,
    callback=lambda _, __, given: currency(given),
    help="Currency of --price: a name or symbol, which only labels the amounts.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Serve the page of a running job until Ctrl-C, instead of writing it.",
)
@click.option(
    "--interval",
    "interval_s",
    metavar="TIME",
    type=SecondsType(1, 3600),
    default="5s",
    show_default=True,
    help="With --live: compute the page at most once in this time, when it is loaded.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    type=address,
    help="With --live: where to serve. The default is reachable from this host only, as for an ssh "
    "forward; 0.0.0.0:PORT from others. Port 0: any free one.  [default: 127.0.0.1:0]",
)
@tls_options
def command(
    folder: Path | None,
    output: Path | None,
    job: str | None,
    routes_file: Path | None,
    inventory_file: Path | None,
    alone_ns: int | None,
    price: float | None,
    currency: str,
    live: bool,
    interval_s: float,
    listen: tuple[str, int] | None,
    **files: Path | None,
) -> int:
    """Write one page about a traced job: verdicts, traffic, operations, steps, lost time, cost.

    DIR is a folder of traces (WEFT_TRACE), also of a job that still runs, or one that weft trace
    import has written. The page needs no other file and no network; it can be printed. With --live,
    DIR may be left out if WEFT_TRACE names it.

    \b
    Examples:
      weft report /scratch/job-17 -o report.html --price 2.50
      weft report --live /scratch/job-17
      weft report --live /scratch/job-17 --listen 127.0.0.1:8080
    """
    from transport.report import Options, Source

    _check(live, output, any((listen, *files.values())))
    if live:
        from transport.cli import report_live

        folder = report_live.folder_of(folder or os.environ.get("WEFT_TRACE"))
    if folder is None:
        raise click.UsageError("Missing argument 'DIR': give the folder of a trace")
    named = "" if routes_file is None else str(routes_file)
    routes = known_routes(folder, routes_file, None)
    inventory = shared.inventory_of(inventory_file)
    options = Options(
        routes, named, alone_ns, None, price, currency, inventory, str(inventory_file or "")
    )
    source = Source(str(folder), job)
    if live:
        who = access_of(None, **files)
        return report_live.run(folder, source, options, interval_s, listen, who)
    need_packages("weft report", TRACES, PAGES)
    # The default is checked here, as --live needs no file.
    out = output or PAGE.convert(OUTPUT, None, click.get_current_context())
    write(folder, source, options, out)
    return 0


def _check(live: bool, output: Path | None, serves: bool) -> None:
    """UsageError if options do not go together. serves: options of a server are given."""
    if live and output is not None:
        raise click.UsageError("--live serves the page and writes no file: leave out -o")
    if serves and not live:
        raise click.UsageError("--listen, --tls-cert and --tls-key need --live: give it")


def write(folder: Path, source: Source, options: Options, output: Path) -> None:
    """Writes the page of a folder as it is now."""
    from transport.diagnose import settled_ns
    from transport.report import report_of

    now_ns = settled_ns(folder)
    words = shlex.join(["weft", *sys.argv[1:]])
    with (
        shared.opened(folder, source.job, until_ns=now_ns) as store,
        shared.reporting_errors(),
        progress_on_a_terminal("report") as progress,
    ):
        page = report_of(store, replace(options, now_ns=now_ns), source, words, progress)
    shared.write_text(page, output)
