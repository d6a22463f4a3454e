"""The common code of benchmarks: pinned processes, interleaved rounds, tables, JSON.

Results contain neither the name of the host nor that of its kernel.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from bench.lib.record import sealed
from transport.cli.output import json_option, print_table, write_json
from transport.ground import build_info
from transport.ground.machine import machine

__all__ = ["document", "duel", "emit", "json_option", "median", "print_table", "rounds", "verdict"]

ROOT = Path(__file__).resolve().parents[2]
DUEL_S_MAX = 120.0
INTERRUPTED = 130  # exit status after Ctrl-C, as in a shell
INTERRUPTED_NOTE = "interrupted: these are the results until then"
FILES = (
    "--json",
    "--csv",
    "--plot",
    "--html",
    "--place",
)  # options left out of recorded arguments; --lab stays, as it is part of the experiment

Config = dict[str, Any]
Worker = Callable[[Pipe, Config], Any]


def commit() -> str:
    """The commit of this source tree, with + if files are modified.

    The variable BENCH_COMMIT overrides it, for a copy of the tree with another history.
    """
    if named := os.environ.get("BENCH_COMMIT"):
        return named
    return build_info.commit() or "unknown"


def _arguments() -> list[str]:
    """The arguments of the command, without the files that results are written to."""
    words = sys.argv[1:]
    for option in FILES:
        if option in words:
            at = words.index(option)
            del words[at : at + 2]
        words = [word for word in words if not word.startswith(f"{option}=")]
    return words


def document(bench: str, rows: Sequence[Config], **more: Any) -> Config:
    """The result of a benchmark, with everything needed to repeat it.

    `local`: WEFT_LOCAL, which bench/__main__.py sets for benchmarks of the network.
    """
    knobs = {k: v for k, v in sorted(os.environ.items()) if k.startswith("WEFT_")}
    local = {"local": knobs.pop("WEFT_LOCAL")} if "WEFT_LOCAL" in knobs else {}
    return {
        "bench": bench,
        "environment": {
            **machine(),
            "weft": build_info.version(),
            "commit": commit(),
            "knobs": knobs,
            "command": ["python", "-m", "bench", *_arguments()],
            "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
        **local,
        **more,
        "rows": list(rows),
    }


def local_notes(found: Config) -> list[str]:
    """What a table says of WEFT_LOCAL; nothing if a result does not record it."""
    local = found.get("local")
    if not local:
        return []
    way = "over the network" if local == "off" else "through shared memory where they can"
    return [f"local {local}: messages between processes of one host go {way}"]


@dataclass
class Cut:
    """Whether a loop was interrupted."""

    short: bool = False


@contextlib.contextmanager
def interruptible() -> Iterator[Cut]:
    """Makes Ctrl-C end only the loop in the `with`, so that its results are written."""
    cut = Cut()
    try:
        yield cut
    except KeyboardInterrupt:
        cut.short = True


def emit(
    found: Config,
    json_path: str | None,
    columns: Sequence[str],
    notes: Iterable[str],
    cut: Cut | None = None,
) -> None:
    """Writes JSON if requested, else a table and notes on stdout.

    An interrupted result is marked `partial`, and the exit status is 130.
    """
    if cut is not None and cut.short:
        emit(found | {"partial": True}, json_path, columns, [*notes, INTERRUPTED_NOTE])
        click.get_current_context().exit(INTERRUPTED)
    if json_path is not None:
        write_json(sealed(found), json_path)
    if json_path == "-":
        return
    if columns:
        cells = [[_cell(row.get(column)) for column in columns] for row in found["rows"]]
        print_table(columns, cells)
    for note in [*notes, *local_notes(found)]:
        click.echo(note)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    if isinstance(value, list):
        return " ".join(_cell(one) for one in value)
    return "" if value is None else str(value)


def median(rows: Iterable[Config], column: str) -> float:
    """The median of a column."""
    return float(statistics.median(row[column] for row in rows))


def rounds(count: int, contenders: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yields every contender once per round, so that other load affects all contenders alike."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=count * len(contenders))
        for round_ in range(count):
            for name in contenders:
                progress.update(task, description=f"{name}, {round_ + 1} of {count}")
                yield round_, name
                progress.advance(task)


def cores_of_sides() -> tuple[set[int], set[int]]:
    """Two disjoint halves of the cores that this process may use, or its only core twice."""
    cores = sorted(os.sched_getaffinity(0))
    half = max(len(cores) // 2, 1)
    return set(cores[:half]), set(cores[half:]) or set(cores)


def _side(worker: Worker, cores: set[int], pipe: Pipe, config: Config) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    try:
        os.sched_setaffinity(0, cores)
        pipe.send(("result", worker(pipe, config)))
    except Exception as error:  # every error is reported to the parent
        pipe.send(("failed", f"{type(error).__name__}: {error}"))


def duel(
    receiver: Worker, sender: Worker, config: Config, *, one_core: bool = True, shared: bool = False
) -> tuple[Any, Any]:
    """Runs two workers in their own processes; the receiver's address is passed to the sender.

    With `shared` both may use every core; else each has half of them, or one core. A receiver calls
    pipe.send(("address", ...)) once; the sender gets the address in config["address"].
    """
    context = multiprocessing.get_context("spawn")
    halves = cores_of_sides()
    if shared:
        halves = (os.sched_getaffinity(0), os.sched_getaffinity(0))
    elif one_core:
        halves = ({min(halves[0])}, {min(halves[1])})
    until = time.monotonic() + DUEL_S_MAX
    processes = []

    def start(worker: Worker, cores: set[int], settings: Config) -> Pipe:
        ours, theirs = context.Pipe()
        process = context.Process(target=_side, args=(worker, cores, theirs, settings), daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
        return ours

    try:
        receiving = start(receiver, halves[0], config)
        address = _expect(receiving, "address", until)
        sending = start(sender, halves[1], config | {"address": address})
        sent = _expect(sending, "result", until)
        return _expect(receiving, "result", until), sent
    except BaseException:
        for process in processes:
            process.kill()
        raise
    finally:
        for process in processes:
            process.join(2)
            if process.is_alive():
                process.kill()


def _expect(pipe: Pipe, kind: str, until: float) -> Any:
    if not pipe.poll(max(until - time.monotonic(), 0)):
        raise click.ClickException(f"no answer from a worker process within {DUEL_S_MAX:.0f} s")
    try:
        said, value = pipe.recv()
    except EOFError:
        raise click.ClickException("a worker process ended early") from None
    if said != kind:
        raise click.ClickException(f"in a worker process: {value}")
    return value


def verdict(ok: bool) -> None:
    """Fails the benchmark if received contents were wrong."""
    if not ok:
        raise click.ClickException("message contents were wrong: the results are not valid")
