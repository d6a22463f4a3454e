"""`weft report --live`: serves the report of a running job until a signal."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path

import click

from transport.cli import INTERRUPTED
from transport.cli.diagnose_live import NICE, folder_of
from transport.cli.http_options import in_url
from transport.cli.packages import PAGES, TRACES, need_packages
from transport.diagnose import settled_ns
from transport.errors import InvalidArgumentError
from transport.live.http import Access, is_loopback, serving
from transport.live.serve import until_a_signal
from transport.report import Options, Source, report_of
from transport.report.live import LivePage
from transport.trace.store import open_store

__all__ = ["folder_of", "run"]

LISTEN = ("127.0.0.1", 0)
WILDCARDS = ("0.0.0.0", "::")  # all addresses of this host: a URL needs its name
CONNECTION_S = 900.0  # the page of a large job takes minutes to compute


def run(
    where: Path,
    source: Source,
    options: Options,
    interval_s: float,
    listen: tuple[str, int] | None,
    who: Access,
) -> int:
    """Serves until SIGINT or SIGTERM; returns the exit status.

    listen: host and port, 0: any free one; None: LISTEN. who: gives TLS. The token of the URL is
    always needed.
    """
    need_packages("weft report --live", TRACES, PAGES, "tornado")
    os.nice(NICE)
    host, port = listen or LISTEN
    token = secrets.token_urlsafe(24)
    page = LivePage(lambda: made(where, source, options, interval_s), token, interval_s)

    def said(at: int) -> None:
        if not is_loopback(host) and who.tls is None:
            click.echo(
                f"weft: the URL's token crosses the network in clear text to {host}: give "
                "--tls-cert, or listen at 127.0.0.1 and forward the port by ssh",
                err=True,
            )
        name = socket.gethostname() if host in WILDCARDS else host
        click.echo(f"weft: serving {who.scheme}://{in_url(name)}:{at}/?token={token}")
        click.echo("weft: reload the page for newer numbers; Ctrl-C ends", err=True)

    try:
        ended = until_a_signal(serving(page, host, port, who, CONNECTION_S), said)
    except OSError as error:
        place = f"{in_url(host)}:{port}" if port else host
        raise click.ClickException(f"cannot listen at {place}: {error.strerror or error}") from None
    return INTERRUPTED if ended == signal.SIGINT else 0


def made(where: Path, source: Source, options: Options, interval_s: float) -> str:
    """The page of the folder as it is now. WeftError if it has no trace, or several jobs."""
    now_ns = settled_ns(where)
    live = f"Of a job that may still run: reload for newer numbers, at most every {interval_s:g} s."
    words = shlex.join(["weft", *sys.argv[1:]])
    with open_store(where, job=source.job, until_ns=now_ns) as store:
        jobs = [job or "unnamed" for job, _ in store.jobs()]
        if len(jobs) > 1:
            raise InvalidArgumentError(f"{where} has traces of several jobs: choose with --job")
        return report_of(store, replace(options, now_ns=now_ns), source, words, live=live)
