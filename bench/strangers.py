"""Measures dials to an open listener while strangers use it: their time, the listener's cost.

Strangers connect, send a hello and close; or they open connections and never answer. Each contender
has its own listener, dialler and strangers, in processes of their own on the loopback interface.
"""

from __future__ import annotations

import contextlib
import inspect
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.lib import strangers
from bench.lib.common import Config, document, emit, interruptible, json_option, median, rounds
from transport import Connection, Endpoint, Listener

LOCALHOST = "127.0.0.1"
KNOBS: Config = {"interfaces": "lo", "engines": 1, "log_level": "error"}
PATIENCE_S = 120.0
IDLE_OPENS = 250
IDLE_PATHS = 32
# Contender -> the function that its strangers run, and the function's configuration.
CONTENDERS: dict[str, tuple[Any, Config]] = {
    "alone": (None, {}),
    "hellos": (strangers.knock, {}),
    "idle opens": (strangers.open_much, {"opens": IDLE_OPENS, "paths": IDLE_PATHS}),
    "memory opens": (strangers.open_much, {"opens": 0, "paths": 1}),
}
COLUMNS = (
    "contender",
    "round",
    "dials",
    "dials_failed",
    "dial_ms",
    "dial_p99_ms",
    "strangers_per_s",
    "datagrams_per_s",
    "cpu_cores",
    "rss_mbytes",
    "rss_grown_mbytes",
)


def _listen(endpoint: Endpoint) -> Listener:
    """A listener open to anyone; in old versions of weft, which lack `open`, every listener is."""
    listen: Callable[..., Listener] = endpoint.listen
    return listen(open=True) if "open" in inspect.signature(listen).parameters else listen()


def _usage(endpoint: Endpoint) -> Config:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "ns": time.perf_counter_ns(),
        "cpu_ns": time.process_time_ns(),
        "datagrams": endpoint.counters().datagrams_sent,
        "rss_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
    }


def listener(pipe: Pipe, _: Config) -> None:
    """Accepts every connection and keeps it; sends its resource usage when the pipe asks for it."""
    kept: list[Connection] = []
    with Endpoint(**KNOBS) as endpoint, _listen(endpoint) as listening:
        threading.Thread(target=kept.extend, args=[listening], daemon=True).start()
        pipe.send(listening.port)
        while pipe.recv() == "usage":
            pipe.send(_usage(endpoint))
        pipe.send("over")
        os._exit(0)  # thousands of connections need not be closed one by one


def dial(pipe: Pipe, config: Config) -> None:
    """Dials with a new endpoint each time, and pauses for `pause_s` between two dials."""
    times_ns: list[int] = []
    failed = 0
    until = time.perf_counter() + config["seconds"]
    while time.perf_counter() < until:
        with Endpoint(**KNOBS) as endpoint:
            begin_ns = time.perf_counter_ns()
            try:
                with endpoint.connect(LOCALHOST, config["port"], timeout_s=10):
                    times_ns.append(time.perf_counter_ns() - begin_ns)
            except OSError:
                failed += 1
        time.sleep(config["pause_s"])
    pipe.send({"times_ns": times_ns, "failed": failed})


def _hear(pipe: Pipe) -> Any:
    if not pipe.poll(PATIENCE_S):
        raise click.ClickException(f"no answer from a process within {PATIENCE_S:.0f} s")
    try:
        return pipe.recv()
    except EOFError:
        raise click.ClickException("a process ended early") from None


@contextlib.contextmanager
def _process(worker: Any, config: Config) -> Iterator[Pipe]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=worker, args=(theirs, config), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


def _ask(pipe: Pipe) -> Any:
    pipe.send("usage")
    return _hear(pipe)


def _row(name: str, round_: int, dialled: Config, made: Config, usage: list[Config]) -> Config:
    empty, before, after = usage
    seconds = (after["ns"] - before["ns"]) / 1e9
    times_ms = [ns / 1e6 for ns in dialled["times_ns"]]
    return {
        "contender": name,
        "round": round_,
        "dials": len(times_ms),
        "dials_failed": dialled["failed"],
        "dial_ms": statistics.median(times_ms) if times_ms else None,
        "dial_p99_ms": float(np.percentile(times_ms, 99)) if times_ms else None,
        "strangers_per_s": made["strangers"] / made["seconds"],
        "datagrams_per_s": (after["datagrams"] - before["datagrams"]) / seconds,
        "cpu_cores": (after["cpu_ns"] - before["cpu_ns"]) / 1e9 / seconds,
        "rss_mbytes": after["rss_bytes"] / 1e6,
        "rss_grown_mbytes": (after["rss_bytes"] - empty["rss_bytes"]) / 1e6,
    }


def measure(name: str, round_: int, settings: Config) -> Config:
    """One round of one contender, in new processes."""
    worker, more = CONTENDERS[name]
    made: Config = {"strangers": 0, "seconds": 1.0}
    with contextlib.ExitStack() as held:
        server = held.enter_context(_process(listener, {}))
        told = settings | more | {"port": _hear(server)}
        told["version"] = strangers.version_at(told["port"])
        empty = _ask(server)
        crew = held.enter_context(_process(worker, told)) if worker else None
        if crew is not None:
            _hear(crew)
        before = _ask(server)
        dialled = _hear(held.enter_context(_process(dial, told)))
        after = _ask(server)
        if crew is not None:
            crew.send("over")
            made = _hear(crew)
    return _row(name, round_, dialled, made, [empty, before, after])


@click.command("strangers")
@click.option("--pairs", default=3, show_default=True, help="Interleaved rounds.")
@click.option("--seconds", default=10.0, show_default=True, help="Duration of each round.")
@click.option(
    "--rate",
    default=10_000,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="Hellos of strangers a second; the result has the rate reached.",
)
@click.option(
    "--pause", "pause_s", default=0.02, show_default=True, help="Seconds between two dials."
)
@click.option(
    "--only", multiple=True, type=click.Choice(list(CONTENDERS)), help="Only these contenders."
)
@json_option
def command(
    pairs: int,
    seconds: float,
    rate: int,
    pause_s: float,
    only: tuple[str, ...],
    json_path: str | None,
) -> None:
    """Measures dials to a listener that is open to anyone, without and with strangers."""
    names = [name for name in CONTENDERS if not only or name in only]
    settings = {"seconds": seconds, "rate": rate, "pause_s": pause_s}
    rows: list[Config] = []
    with interruptible() as cut:
        for round_, name in rounds(pairs, names):
            rows.append(measure(name, round_, settings))
    by_name: dict[str, list[Config]] = {}
    for row in rows:
        if row["dials"]:
            by_name.setdefault(row["contender"], []).append(row)
    notes = [
        f"{name}: a dial takes {median(mine, 'dial_ms'):.2f} ms (median), "
        f"{median(mine, 'dial_p99_ms'):.1f} ms (99 %), beside "
        f"{median(mine, 'strangers_per_s'):.0f} strangers/s"
        for name, mine in by_name.items()
    ]
    emit(document("strangers", rows, **settings), json_path, COLUMNS, notes, cut)


if __name__ == "__main__":
    command()
