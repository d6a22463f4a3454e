"""Makes telemetry pages with made-up values, and runs two real processes that exchange messages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.api.support import PATIENCE_S, ROOT, child, line, running
from tests.environment import clean_environment
from transport.live import Facts, Reading
from transport.telemetry import Page, PeerRow, Row

SECOND = 1_000_000_000
NOW = 1000 * SECOND  # CLOCK_MONOTONIC of made-up pages


def engine(index: int = 0, generation: int = 1, **values: int) -> Row:
    """An engine that sleeps; `values` are states and counters."""
    state = {"turn_ns": NOW, "sleeping": 1, "published_ns": NOW, "open_flows": 1}
    states = {name: values.pop(name, value) for name, value in state.items()}
    return Row(index, generation, states, values, {"batch_datagrams": (0, 3, 1) + (0,) * 37})


def path(index: int, generation: int = 1, **counters: int) -> Row:
    """A usable path."""
    return Row(index, generation, {}, {"usable": 1, "rtt_ns": 50_000} | counters, {})


def peer(
    index: int = 0,
    paths: int = 2,
    address: str = "10.0.0.2",
    generation: int = 1,
    path_counters: dict[str, int] | None = None,
    **values: int,
) -> PeerRow:
    """A peer from which a packet has just arrived."""
    state: dict[str, int | str] = {"address": address, "first_path": 8 * index, "paths": paths}
    for name, value in {"engine": 0, "dead": 0, "waited_for": 0, "heard_ns": NOW}.items():
        state[name] = values.pop(name, value)
    rows = [path(8 * index + at, generation, **(path_counters or {})) for at in range(paths)]
    return PeerRow(index, generation, state, {"flows": 1} | values, {}, tuple(rows))


def flow(index: int = 0, generation: int = 1, **values: int) -> Row:
    """An idle flow of connection 7 to peer 0."""
    state = {
        "connection": 7,
        "engine": 0,
        "peer": 0,
        "stripe": 0,
        "stripes": 1,
        "phase": 0,
        "sends": 0,
        "unsent_bytes": 0,
        "receives": 0,
        "progress_ns": NOW,
        "active_ns": NOW,
    }
    states = {name: values.pop(name, value) for name, value in state.items()}
    return Row(index, generation, states, values, {})


def page(
    engines: tuple[Row, ...] = (engine(),),
    peers: tuple[PeerRow, ...] = (peer(),),
    flows: tuple[Row, ...] = (flow(),),
    **fields: Any,
) -> Page:
    """A page of process 4711."""
    pid = fields.get("pid", 4711)
    values: dict[str, Any] = {
        "path": Path(f"/pages/weft-0-1-{pid}-5-0.page"),
        "user": 0,
        "pid": pid,
        "process_state": "running",
        "boot_id": "",
        "read_ns": NOW,
        "created_ns": NOW - 100 * SECOND,
        "created_realtime_ns": 0,
        "process": Row(0, 1, {"engines": len(engines)}, {"rows_refused": 0}, {}),
    }
    return Page(**values | fields, engines=engines, peers=peers, flows=flows)


def reading(*pages: Page, at_ns: int = NOW, facts: Facts | None = None) -> Reading:
    """A reading of made-up pages."""
    return Reading(at_ns, pages, {one.path: facts or Facts() for one in pages}, ())


@contextmanager
def exchanging(
    where: Path, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """Two processes that exchange messages: the one that echoes, and the one that sends first."""
    with connected("partner", where, **variables) as pair:
        yield pair


@contextmanager
def connected(
    module: str, where: Path, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """An echoing process, and one of a module of tests.live that has a connection to it."""
    settings: dict[str, Any] = {"WEFT_TELEMETRY": str(where), "WEFT_PATHS": "4", **variables}
    with running(child("echo", **settings)) as echo:
        clean = clean_environment()
        partner = subprocess.Popen(
            [sys.executable, "-m", f"tests.live.{module}", line(echo)],
            cwd=ROOT,
            env=clean | {"WEFT_INTERFACES": "lo", "WEFT_ENGINES": "1", "RANK": "3"} | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with running(partner):
            assert line(partner) == "connected"
            yield echo, partner


@contextmanager
def ring(where: Path, *, ranks: int, slow: int) -> Iterator[subprocess.Popen[str]]:
    """A ring of traced processes; while the file `slow` is in the folder, one of them is late."""
    clean = clean_environment()
    settings = {"WEFT_TRACE": str(where / "traces"), "WEFT_TELEMETRY": str(where)}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.live.ring", str(where), str(ranks), str(slow)],
        cwd=ROOT,
        env=clean | {"WEFT_ENGINES": "1", "WEFT_PATHS": "4"} | settings,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with running(process):
        assert line(process) == "connected"
        yield process


def weft_command(*arguments: str) -> list[str]:
    """The command line of `weft` with these arguments."""
    return [sys.executable, "-c", "from transport.cli import main; main()", *arguments]


def weft(*arguments: str, where: Path) -> subprocess.CompletedProcess[str]:
    """Runs `weft` on the pages of a directory."""
    return subprocess.run(
        weft_command(*arguments),
        cwd=ROOT,
        env=os.environ | {"WEFT_TELEMETRY": str(where)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
