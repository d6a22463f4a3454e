"""The tables of `weft top`: what each column shows of a process, engine, peer, path, connection."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar

from transport.ground.units import bytes_text, count_text, percent, time_text
from transport.live.rates import (
    ConnectionRates,
    EngineRates,
    PathRates,
    PeerRates,
    ProcessRates,
    Traffic,
)
from transport.live.table import Column

UNKNOWN = "-"
# Columns are narrow, and more digits would change with each refresh.
size = partial(bytes_text, digits=3)
duration = partial(time_text, digits=2)
share = partial(percent, places=0)
Engine: TypeAlias = tuple[ProcessRates, EngineRates]
Peer: TypeAlias = tuple[ProcessRates, PeerRates]
Path: TypeAlias = tuple[ProcessRates, PeerRates, PathRates]
Connection: TypeAlias = tuple[ProcessRates, ConnectionRates]
Item = TypeVar("Item")


def _known(show: Callable[[float], str], value: float | None) -> str:
    return UNKNOWN if value is None else show(value)


def name_of(process: ProcessRates) -> str:
    """The pid, with the number of the endpoint if it is not the first."""
    return f"{process.pid}.{process.endpoint}" if process.endpoint else str(process.pid)


def _traffic(of: Callable[[Item], Traffic], received: bool = True) -> list[Column[Item]]:
    """The columns with traffic, which all tables have."""

    def column(
        heading: str, importance: int, show: Callable[[float], str], name: str
    ) -> Column[Item]:
        def value(item: Item) -> float | None:
            found: float | None = getattr(of(item), name)
            return found

        return Column(heading, lambda item: _known(show, value(item)), importance, value)

    flows = [
        column("RECEIVED/s", 1, size, "received_bytes_s"),
        column("SEGMENTS/s", 8, count_text, "segments_sent_s"),
        column("RESENDS/s", 3, count_text, "resends_s"),
    ]
    levels = [
        column("WINDOW", 6, size, "window_bytes"),
        column("IN FLIGHT", 5, size, "inflight_bytes"),
    ]
    return [
        column("SENT/s", 1, size, "sent_bytes_s"),
        *(flows if received else [column("SEGMENTS/s", 8, count_text, "segments_sent_s")]),
        column("LOSS", 4, share, "loss_share"),
        Column(
            "RTT",
            lambda item: duration(of(item).rtt_ns) if of(item).rtt_ns else UNKNOWN,
            2,
            lambda item: of(item).rtt_ns or None,
        ),
        *(levels if received else []),
    ]


PROCESSES: list[Column[ProcessRates]] = [
    Column("PID", name_of, 0, lambda p: p.pid, ascending=True),
    Column(
        "RANK", lambda p: p.rank or UNKNOWN, 7, lambda p: float(p.rank or "inf"), ascending=True
    ),
    Column("COMMAND", lambda p: p.command or UNKNOWN, 10, left=True),
    *_traffic(lambda p: p.traffic),
    Column("CPU", lambda p: _known(share, p.cpu_share), 7, lambda p: p.cpu_share),
    Column("DOWN", lambda p: str(p.paths_down), 5, lambda p: p.paths_down),
    Column("CONNS", lambda p: str(len(p.connections)), 9, lambda p: len(p.connections)),
    Column("WAITS", lambda p: p.wait.text, 0, lambda p: p.wait.ns, left=True),
]
ENGINES: list[Column[Engine]] = [
    Column("PID", lambda e: name_of(e[0]), 0, lambda e: e[0].pid, ascending=True),
    Column("ENGINE", lambda e: str(e[1].index), 0),
    *_traffic(lambda e: e[1].traffic),
    Column("DATAGRAMS/s", lambda e: _known(count_text, e[1].datagrams_sent_s), 6),
    Column("ROUNDS/s", lambda e: _known(count_text, e[1].rounds_s), 9, lambda e: e[1].rounds_s),
    Column("CPU", lambda e: _known(share, e[1].cpu_share), 2, lambda e: e[1].cpu_share),
    Column("FLOWS", lambda e: str(e[1].open_flows), 8),
    Column("LAST ROUND", lambda e: "asleep" if e[1].asleep else _ago(e[1].turn_ns), 1, left=True),
]
PEERS: list[Column[Peer]] = [
    Column("PID", lambda p: name_of(p[0]), 0, lambda p: p[0].pid, ascending=True),
    Column("PEER", lambda p: p[1].address, 0, left=True),
    Column("ENGINE", lambda p: str(p[1].engine), 7),
    *_traffic(lambda p: p[1].traffic),
    Column("DOWN", lambda p: f"{p[1].paths_down}/{len(p[1].paths)}", 3, lambda p: p[1].paths_down),
    Column("HEARD", lambda p: _ago(p[1].heard_ns), 4, lambda p: p[1].heard_ns),
    Column("FLOWS", lambda p: str(p[1].flows), 9),
    Column("WAITS", lambda p: p[1].wait.text, 0, lambda p: p[1].wait.ns, left=True),
]
PATHS: list[Column[Path]] = [
    Column("PID", lambda p: name_of(p[0]), 0, lambda p: p[0].pid, ascending=True),
    Column("PEER", lambda p: p[1].address, 0, left=True),
    Column("ENGINE", lambda p: str(p[1].engine), 7),
    Column("PATH", lambda p: str(p[2].number), 0),
    *_traffic(lambda p: p[2].traffic, received=False),
    Column("PROBES/s", lambda p: _known(count_text, p[2].probes_s), 9, lambda p: p[2].probes_s),
    Column("DOWNS", lambda p: str(p[2].downs), 3, lambda p: p[2].downs),
    Column("IS", lambda p: "usable" if p[2].usable else "down", 0, left=True),
]
CONNECTIONS: list[Column[Connection]] = [
    Column("PID", lambda c: name_of(c[0]), 0, lambda c: c[0].pid, ascending=True),
    Column("CONNECTION", lambda c: str(c[1].id), 2),
    Column("PEER", lambda c: " ".join(c[1].peers) or UNKNOWN, 0, left=True),
    *_traffic(lambda c: c[1].traffic),
    Column("SENDS", lambda c: str(c[1].sends), 3, lambda c: c[1].sends),
    Column("RECEIVES", lambda c: str(c[1].receives), 3, lambda c: c[1].receives),
    Column("UNSENT", lambda c: size(c[1].unsent_bytes), 4, lambda c: c[1].unsent_bytes),
    Column("WAITS", lambda c: c[1].wait.text, 0, lambda c: c[1].wait.ns, left=True),
]
# Headings of the columns to sort by, through which the keyboard keys `s` and `S` step.
SORTABLE = tuple(column.heading for column in PROCESSES if column.sort is not None)
SORTED_FIRST = "SENT/s"  # the column by which `weft top` sorts until the user chooses another


def _ago(age_ns: int | None) -> str:
    return "never" if age_ns is None else f"{duration(age_ns)} ago"
