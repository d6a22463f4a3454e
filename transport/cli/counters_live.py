"""Telemetry pages as text, for `weft counters`: counters of running and just killed processes."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from transport import telemetry
from transport.cli.output import print_table, write_json

PHASES = ("open", "failed", "closing", "closed")
FLOW_COUNTERS = (
    *("bytes_sent", "bytes_received", "segments_sent", "segments_received"),
    *("segments_resent", "segments_lost", "inflight_bytes", "window_bytes"),
)
ALL = "all"


def show(which: str, json_path: str | None) -> None:
    """Prints the telemetry pages of one process, or of all."""
    if which != ALL and not (which.isascii() and which.isdigit()):
        raise click.UsageError(f"--live takes the id of a process, not {which}")
    pid = None if which == ALL else int(which)
    where = telemetry.directory()
    try:
        read = telemetry.read_pages(where, () if pid is None else (pid,))
    except telemetry.PageError as error:
        raise click.ClickException(str(error)) from None
    for problem in read.problems:
        click.echo(f"weft: {problem}", err=True)
    found = read.pages
    if not found and (pid is not None or read.problems):
        whose = "" if pid is None else f" of process {pid}"
        raise click.ClickException(f"no telemetry page{whose} in {where} can be read")
    if json_path is not None:
        write_json([_plain(asdict(page)) for page in found], json_path)
        return
    for page in found:
        _print(page)
    if not found:
        click.echo(f"no running or just killed process has a telemetry page in {where}")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _print(page: telemetry.Page) -> None:
    began = datetime.fromtimestamp(page.created_realtime_ns / 1e9).isoformat(" ", "seconds")
    owner = "" if page.user == os.geteuid() else f" of uid {page.user}"
    click.echo(
        f"process {page.pid}{owner}: {page.process_state}, counts since {began}, {page.path}"
    )
    _print_engines(page)
    _section(
        ["peer", "engine", "address", "heard", "is", "flows", "keepalives", "answered"],
        [_peer_cells(page, peer) for peer in page.peers],
    )
    names = list(page.peers[0].paths[0].counters) if page.peers and page.peers[0].paths else []
    _section(
        ["peer", "path", *names],
        [
            [str(peer.index), str(number), *(str(path.counters.get(name, 0)) for name in names)]
            for peer in page.peers
            for number, path in enumerate(peer.paths)
            if path.counters.get("segments_sent") or path.counters.get("downs")
        ],
    )
    _section(
        ["connection", "stripe", "engine", "peer", "is", "sends", "unsent_bytes", "receives"],
        [_flow_cells(page, flow)[:8] for flow in page.flows],
    )
    _section(
        ["connection", "stripe", "progress", *FLOW_COUNTERS],
        [_flow_cells(page, flow)[:2] + _flow_cells(page, flow)[8:] for flow in page.flows],
    )


def _section(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    found = list(rows)
    if found:
        click.echo()
        print_table(heads, found)


def _print_engines(page: telemetry.Page) -> None:
    names = list(page.engines[0].counters) if page.engines else []
    rows = [["last round", *(_ago(page, engine, "turn_ns") for engine in page.engines)]]
    rows.append(["asleep", *("yes" if e.state.get("sleeping") else "no" for e in page.engines)])
    for name in names:
        values = [engine.counters.get(name, 0) for engine in page.engines]
        if any(values):
            rows.append([name, *map(str, values)])
    rows += [
        [name, *(_spread(engine.histograms.get(name, ())) for engine in page.engines)]
        for name in (page.engines[0].histograms if page.engines else ())
    ]
    rows += [[name, str(value)] for name, value in page.process.counters.items() if value]
    _section(["counter", *(f"engine {engine.index}" for engine in page.engines)], _even(rows))


def _spread(counts: Sequence[int]) -> str:
    """The number of values in a histogram, and upper bounds of two quantiles."""
    median, high = (telemetry.quantile(counts, share) for share in (0.5, 0.99))
    return "0" if median is None else f"{sum(counts)}: p50 <= {median}, p99 <= {high}"


def _even(rows: list[list[str]]) -> list[list[str]]:
    width = max(map(len, rows))
    return [row + [""] * (width - len(row)) for row in rows]


def _peer_cells(page: telemetry.Page, peer: telemetry.PeerRow) -> list[str]:
    counters = [peer.counters.get(n, 0) for n in ("flows", "keepalives_sent", "probes_answered")]
    said = peer.state.get
    state = "dead" if said("dead") else "waited for" if said("waited_for") else "idle"
    state = _was(page, state)
    cells = [peer.index, said("engine"), said("address"), _ago(page, peer, "heard_ns"), state]
    return [str(cell) for cell in (*cells, *counters)]


def _flow_cells(page: telemetry.Page, flow: telemetry.Row) -> list[str]:
    said = flow.state.get
    phase = said("phase")
    known = isinstance(phase, int) and 0 <= phase < len(PHASES)
    cells = [*(said(name) for name in ("connection", "stripe", "engine", "peer"))]
    cells += [_was(page, PHASES[int(phase or 0)] if known else str(phase))]
    cells += [*(said(name) for name in ("sends", "unsent_bytes", "receives"))]
    cells += [_ago(page, flow, "progress_ns")]
    return [str(cell) for cell in (*cells, *(flow.counters.get(n, 0) for n in FLOW_COUNTERS))]


def _was(page: telemetry.Page, state: str) -> str:
    """The state, marked as the last one if the process has ended."""
    return f"was {state}" if page.process_state == "gone" else state


def _ago(page: telemetry.Page, row: telemetry.Row, name: str) -> str:
    """Text like "3.100 s ago": from the time in the state field `name` to the page's reading."""
    at_ns = row.state.get(name)
    if not isinstance(at_ns, int) or at_ns <= 0:
        return "never"
    seconds = (page.read_ns - at_ns) / 1e9
    return f"{seconds:.3f} s ago" if seconds < 60 else f"{seconds:.0f} s ago"
