"""Measures what weft costs in processors: in a stream, in a part-time stream, and idle.

Both ends are processes of this host, over lo. TCP and plain UDP are measured in the same rounds.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection as Pipe

import click
import numpy as np

from bench.lib.common import Config, document, duel, emit, interruptible, json_option, rounds
from bench.lib.lines import Line, accepted, connected
from bench.lib.threads import asleep_after_ns, metered

CONTENDERS = ("weft", "TCP", "UDP")
MESSAGE_BYTES, WARM = 1 << 20, 64
PING_BYTES, HOT, RESTED, REST_S, IDLE_NS = 8, 200, 20, 0.05, 1_000_000_000
BUSY_S, QUIET_S = 0.01, 0.02  # communicates a third of the time, as a training loop may do
COLUMNS = (
    *("contender", "round", "gbytes_per_s", "cores", "cpu_ns_per_byte", "instructions_per_byte"),
    *("cache_misses_per_kbyte", "third_of_cores", "third_of_bytes"),
    *("idle_cores", "asleep_after_ms", "half_us", "rested_half_us"),
)


def receiver(pipe: Pipe, config: Config) -> Config:
    """Answers small messages, then receives two streams of messages."""
    small = bytearray(PING_BYTES)
    with ExitStack() as stack:
        line = accepted(
            config["kind"], config["knobs"], lambda at: pipe.send(("address", at)), stack
        )
        for _ in range(HOT + RESTED):
            line.receive(small)
            line.send(small)
        line.open_stream(MESSAGE_BYTES)
        stream = taken(line, WARM * MESSAGE_BYTES)
        line.open_stream(MESSAGE_BYTES)
        return {"stream": stream, "third": taken(line, 0)}


def taken(line: Line, warm_bytes: int) -> Config:
    """Receives messages until an empty one; returns what this process used after `warm_bytes`."""
    moved = 0
    while moved < warm_bytes:
        moved += line.take()
    moved = 0
    with metered() as used:
        # Plain UDP ends a stream with several empty messages: ignore those of the stream before.
        while (got := line.take()) or not moved:
            moved += got
    return used | {"bytes": moved}


def sender(_pipe: Pipe, config: Config) -> Config:
    """Times small messages, also after a rest, and sends two streams."""
    data = np.random.default_rng(1).integers(0, 256, MESSAGE_BYTES, dtype=np.uint8)
    with ExitStack() as stack:
        line = connected(config["kind"], config["knobs"], config["address"], stack)
        found: Config = pings(line)
        line.open_stream(MESSAGE_BYTES)
        for _ in range(WARM):
            line.put(data)
        with metered() as used:
            until = time.monotonic() + config["duration_s"]
            line.put(data)  # at least one message, even if this process gets no core meanwhile
            while time.monotonic() < until:
                line.put(data)
            line.end()
        found["stream"] = used
        time.sleep(0.2)  # the receiver begins to measure meanwhile
        with metered() as used:
            for _ in range(max(int(config["duration_s"] / (BUSY_S + QUIET_S)), 1)):
                until = time.monotonic() + BUSY_S
                line.put(data)
                while time.monotonic() < until:
                    line.put(data)
                time.sleep(QUIET_S)
            line.end()
        return found | {"third": used}


def pings(line: Line) -> Config:
    """Half round trips in us, back to back and after a rest; cores that the idle process uses."""
    small = bytearray(PING_BYTES)

    def half_us() -> float:
        begin = time.perf_counter_ns()
        line.send(small)
        line.receive(small)
        return (time.perf_counter_ns() - begin) / 2e3

    hot = [half_us() for _ in range(HOT)]
    asleep_ns, cores = asleep_after_ns(IDLE_NS)
    rested = []
    for _ in range(RESTED):
        time.sleep(REST_S)
        rested.append(half_us())
    return {
        "half_us": statistics.median(hot),
        "rested_half_us": statistics.median(rested),
        "asleep_after_ms": asleep_ns / 1e6,
        "idle_cores": cores,
    }


def row_of(received: Config, sent: Config) -> Config:
    """One row of the table; its processor time is that of sender and receiver together."""
    ends = (received["stream"], sent["stream"])
    moved = received["stream"]["bytes"]
    threads: dict[str, float] = {}
    for end in ends:
        for name, cores in end["cores"].items():
            threads[name] = round(threads.get(name, 0.0) + cores, 3)
    cpu_s = sum(sum(end["cores"].values()) * end["seconds"] for end in ends)
    row = {
        "gbytes_per_s": moved / received["stream"]["seconds"] / 1e9,
        "cores": sum(threads.values()),
        "cpu_ns_per_byte": cpu_s * 1e9 / moved,
        "third_of_cores": _cores(received, sent, "third") / max(sum(threads.values()), 1e-9),
        "third_of_bytes": _rate(received, "third") / max(_rate(received, "stream"), 1e-9),
        "threads": ", ".join(f"{name} {cores:g}" for name, cores in threads.items() if cores),
    }
    for name, column, per in (
        ("instructions", "instructions_per_byte", 1),
        ("cache_misses", "cache_misses_per_kbyte", 1_000),
    ):
        counted = [None if end["events"] is None else end["events"][name] for end in ends]
        known = [one for one in counted if one is not None]
        row[column] = sum(known) * per / moved if len(known) == len(ends) else None
    return row | {name: sent[name] for name in COLUMNS if name in sent}


def _cores(received: Config, sent: Config, part: str) -> float:
    return float(sum(sum(end[part]["cores"].values()) for end in (received, sent)))


def _rate(received: Config, part: str) -> float:
    return float(received[part]["bytes"] / received[part]["seconds"])


@click.command("cost")
@click.option(
    "--repeats", default=3, show_default=True, type=click.IntRange(1), help="Interleaved rounds."
)
@click.option(
    "--duration",
    "duration_s",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0.1, 30),
    help="Seconds of a stream.",
)
@click.option("--only", multiple=True, type=click.Choice(CONTENDERS), help="Contenders to run.")
@json_option
def command(repeats: int, duration_s: float, only: tuple[str, ...], json_path: str | None) -> None:
    """Measures cores by thread, CPU time, instructions and cache misses a byte, and idle cost.

    Messages have 1 MiB; both ends may use all cores. `third_of_cores`, `third_of_bytes`: cores used
    and bytes moved by a stream whose sender is quiet two thirds of the time, relative to a stream
    without pauses. `idle_cores`: cores that threads other than the caller's use without traffic,
    once they use less than 0.01 together, which is so after `asleep_after_ms`. Plain UDP loses what
    the receiver cannot take.
    """
    rows: list[Config] = []
    with interruptible() as cut:
        for round_, name in rounds(repeats, only or CONTENDERS):
            config: Config = {"kind": name, "knobs": {"interfaces": "lo"}, "duration_s": duration_s}
            received, sent = duel(receiver, sender, config, shared=True)
            rows.append({"contender": name, "round": round_} | row_of(received, sent))
    notes = [f"{row['contender']}, round {row['round']}: {row['threads']}" for row in rows]
    if rows and rows[0]["instructions_per_byte"] is None:
        notes.append("This machine counts no instructions and cache misses for programs.")
    emit(document("cost", rows), json_path, COLUMNS, notes, cut)
