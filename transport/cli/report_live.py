"""`weft report --live`: serves the report of a running job on this host until a signal."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path

import click

from transport.cli import INTERRUPTED
from transport.cli.diagnose_live import NICE, folder_of
from transport.cli.packages import PAGES, TRACES, need_packages
from transport.diagnose import settled_ns
from transport.errors import InvalidArgumentError
from transport.live.http import Access, serving
from transport.live.serve import until_a_signal
from transport.report import Options, Source, report_of
from transport.report.live import LivePage
from transport.trace.store import open_store

__all__ = ["folder_of", "run"]

HOST = "127.0.0.1"
CONNECTION_S = 900.0  # the page of a large job takes minutes to compute


def run(where: Path, source: Source, options: Options, interval_s: float, port: int) -> int:
    """Serves until SIGINT or SIGTERM; returns the exit status. port: 0: any free one."""
    need_packages("weft report --live", TRACES, PAGES, "tornado")
    os.nice(NICE)
    token = secrets.token_urlsafe(24)
    page = LivePage(lambda: made(where, source, options, interval_s), token, interval_s)

    def said(at: int) -> None:
        click.echo(f"weft: serving http://{HOST}:{at}/?token={token}")
        click.echo("weft: reload the page for newer numbers; Ctrl-C ends", err=True)

    try:
        ended = until_a_signal(serving(page, HOST, port, Access(), CONNECTION_S), said)
    except OSError as error:
        place = f"{HOST}:{port}" if port else HOST
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
