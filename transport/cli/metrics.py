"""`weft metrics`: counters and states of running processes for Prometheus."""

from __future__ import annotations

import signal
from importlib import resources
from pathlib import Path

import click

from transport import telemetry
from transport.cli import INTERRUPTED
from transport.cli.http_options import access_of, access_options, address, in_url
from transport.cli.options import JSON, OutputFile
from transport.cli.output import write_file
from transport.cli.packages import need_packages
from transport.live.exporter import SERIES_MAX, Exporter
from transport.live.http import Access
from transport.live.serve import serve, text

BOARD = "weft-grafana.json"
ALERTS = "weft-alerts.yml"


@click.command("metrics")
@click.argument("pids", metavar="[PID]...", nargs=-1, type=click.IntRange(1))
@click.option(
    "--listen",
    metavar="HOST:PORT",
    type=address,
    default="127.0.0.1:9464",
    show_default=True,
    help="Where to serve. Whoever reaches this address can read the metrics, unless there is "
    "--token-file; the default is reachable from this host only. Port 0: any free one.",
)
@click.option(
    "--once", is_flag=True, help="Print the metrics once instead of serving them, and end."
)
@click.option(
    "--paths/--no-paths", default=True, help="Whether each path has metrics.  [default: --paths]"
)
@click.option(
    "--max-series",
    "series_max",
    metavar="N",
    type=click.IntRange(1),
    default=SERIES_MAX,
    show_default=True,
    help="Export at most N series (metrics with their labels): if there are more, add up paths, "
    "then peers, then engines.",
)
@click.option(
    "--board",
    "board_path",
    metavar="FILE",
    type=OutputFile(*JSON, dir_okay=False, writable=True, allow_dash=True),
    help="Write a Grafana dashboard of these metrics to FILE and end; - is stdout.",
)
@click.option(
    "--alerts",
    "alerts_path",
    metavar="FILE",
    type=OutputFile(dir_okay=False, writable=True, allow_dash=True),
    help="Write alerting rules for Prometheus to FILE and end; - is stdout.",
)
@access_options
def command(
    pids: tuple[int, ...],
    listen: tuple[str, int],
    once: bool,
    paths: bool,
    series_max: int,
    board_path: str | None,
    alerts_path: str | None,
    **files: Path | None,
) -> int:
    """Serve counters and states of running processes to Prometheus, until Ctrl-C.

    Without PID: all processes of this user, as root of all users, that use weft. Each keeps its
    counters in a file, its telemetry page, in /dev/shm or where WEFT_TELEMETRY says.

    \b
    Examples:
      weft metrics
      weft metrics --once
      weft metrics --listen 0.0.0.0:9464 --token-file token --tls-cert cert.pem --tls-key key.pem
      weft metrics --board weft.json
    """
    for path, name in ((board_path, BOARD), (alerts_path, ALERTS)):
        if path is not None:
            write_file(path, resources.files("transport.live").joinpath(name).read_text())
    if board_path is not None or alerts_path is not None:
        return 0
    need_packages("weft metrics", "prometheus_client", *([] if once else ["tornado"]))
    try:
        telemetry.pages()
    except telemetry.PageError as error:
        raise click.ClickException(str(error)) from None
    exporter = Exporter(pids=pids, paths=paths, series_max=series_max, once=once, log=_log)
    if once and any(files.values()):
        raise click.UsageError("--once serves nobody: leave out --token-file and --tls-…")
    if not once:
        return _serve(exporter, *listen, access_of(**files))
    click.echo(text(exporter), nl=False)
    return 0


def _log(line: str) -> None:
    click.echo("weft: " + " ".join(line.split()), err=True)


def _serve(exporter: Exporter, host: str, port: int, who: Access) -> int:
    """Serves until SIGINT or SIGTERM; returns the exit status."""
    shown = in_url(host)

    def serving(at: int) -> None:
        for warning in who.warnings(host):
            _log(warning)
        click.echo(f"weft: serving {who.scheme}://{shown}:{at}/metrics")

    try:
        ended = serve(exporter, host, port, who, serving)
    except OSError as error:
        why = error.strerror or str(error)
        raise click.ClickException(
            f"cannot listen at {shown}:{port}: {why}: give another address or port with --listen "
            "(port 0: any free one)"
        ) from None
    return INTERRUPTED if ended == signal.SIGINT else 0
