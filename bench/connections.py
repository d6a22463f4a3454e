"""Measures many connections to one process: time to open, memory, speed of the first and the last.

Each connection sends a message when it is opened, so that it is in use. The kernel's memory is not
counted.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
import numpy as np

from bench.lib.channels import Channel, Station, raise_descriptor_limit, rss_bytes, station
from bench.lib.common import Config
from bench.lib.launch import PATIENCE_S, Mailbox, gang
from bench.lib.options import Columns, common, study_options
from bench.lib.placement import Placement, placed
from bench.lib.study import Study, chosen, conduct
from bench.lib.traffic import Array, busiest, cpu_ns, machine_ns, others_share
from bench.peers import ONE_STREAM, peer_of
from transport.ground.units import rate_text

USUAL = ("weft", "tcp-cubic")
CONNECTIONS_MAX = 65_536
DESCRIPTORS_SPARE = 256
MESSAGE_BYTES = 64 << 10
IN_FLIGHT = 8
EDGE_MAX = 32  # at most this many of the first-opened connections are timed against the last
OPEN_S_MAX = 0.2  # time limit for opening one connection
PATTERN = np.random.default_rng(7).integers(0, 256, MESSAGE_BYTES, dtype=np.uint8)
COLUMNS: Columns = (
    ("connections", "connections"),
    ("open_ns", "open time(us)"),
    ("open_first_ns", "open first"),
    ("open_last_ns", "open last"),
    ("client_bytes_per_connection", "client B each"),
    ("server_bytes_per_connection", "server B each"),
    ("first_bytes_per_s", "first"),
    ("last_bytes_per_s", "last"),
    ("last_over_first", "last/first"),
)
STUDY = Study(
    "connections",
    keys=("contender", "connections"),
    measures={
        "open_ns": "lower",
        "open_first_ns": "lower",
        "open_last_ns": "lower",
        "client_bytes_per_connection": "lower",
        "server_bytes_per_connection": "lower",
        "first_bytes_per_s": "higher",
        "last_bytes_per_s": "higher",
    },
    columns=COLUMNS,
    x="connections",
)


def checkpoints(maximum: int, factor: int) -> list[int]:
    """Numbers of connections at which to measure: 1, factor, factor^2, ... and `maximum`."""
    found = [1]
    while found[-1] * factor < maximum:
        found.append(found[-1] * factor)
    return found if found[-1] == maximum else [*found, maximum]


def edge(number: int) -> int:
    """How many of the connections opened first are timed against as many of those opened last."""
    return min(EDGE_MAX, max(number // 2, 1))


def turns(held: Sequence[Channel]) -> Iterator[tuple[int, Channel]]:
    """Yields (0, channel opened first), (1, channel opened last) in the order 0 1, 1 0, 0 1, ..."""
    count = edge(len(held))
    for index, pair in enumerate(zip(held[:count], held[-count:], strict=True)):
        both = list(enumerate(pair))
        yield from both if index % 2 == 0 else reversed(both)


def _send(channel: Channel, messages: int) -> None:
    requests = [channel.isend(PATTERN) for _ in range(min(messages, IN_FLIGHT))]
    for index in range(messages):
        requests[index % IN_FLIGHT].wait(PATIENCE_S)
        if index + IN_FLIGHT < messages:
            requests[index % IN_FLIGHT] = channel.isend(PATTERN)
    answer = bytearray(1)
    channel.irecv_into(answer).wait(PATIENCE_S)


def _receive(channel: Channel, memory: Array, messages: int) -> int:
    count = min(messages, IN_FLIGHT)
    memory.fill(0)
    requests = [channel.irecv_into(memory[index]) for index in range(count)]
    wrong = 0
    for index in range(messages):
        row = memory[index % IN_FLIGHT]
        requests[index % IN_FLIGHT].wait(PATIENCE_S)
        wrong += not np.array_equal(row, PATTERN)
        if index + IN_FLIGHT < messages:
            row.fill(0)  # so that an old message does not pass as a new one
            requests[index % IN_FLIGHT] = channel.irecv_into(row)
    channel.isend(b"\1").wait(PATIENCE_S)
    return wrong


class _Meter:
    """Measures processor time of this process and of the whole machine since its creation."""

    def __init__(self) -> None:
        self._begin = (cpu_ns(), machine_ns(), time.perf_counter_ns())

    def read(self) -> Config:
        now = (cpu_ns(), machine_ns(), time.perf_counter_ns())
        spent = [end - begin for begin, end in zip(self._begin, now, strict=True)]
        return dict(zip(("cpu_ns", "machine_ns", "elapsed_ns"), spent, strict=True))


def _resident() -> int:
    gc.collect()
    return rss_bytes()


def _serve(where: Station, mailbox: Mailbox, memory: Array, config: Config) -> None:
    held: list[Channel] = []
    name = bytearray(8)
    for number in config["checkpoints"]:
        meter = _Meter()
        while len(held) < number:
            channel = where.accept()
            channel.irecv_into(name).wait(PATIENCE_S)
            held.append(channel)
        cost = meter.read()
        mailbox.tell("held", _resident())
        mailbox.hear("go")
        wrong = 0
        for _, channel in turns(held):
            # Twice, because the first run on an unused connection only grows its window.
            wrong += sum(_receive(channel, memory, config["messages"]) for _ in range(2))
        mailbox.tell("served", {**cost, "wrong": wrong})
    mailbox.hear("close")


def _dial(where: Station, mailbox: Mailbox, config: Config) -> None:
    address = mailbox.hear("address")
    held: list[Channel] = []
    opens_ns: list[int] = []
    for number in config["checkpoints"]:
        meter = _Meter()
        opened = number - len(held)
        while len(held) < number:
            open_begin_ns = time.perf_counter_ns()
            channel = where.connect(address)
            channel.isend(len(held).to_bytes(8, "little")).wait(PATIENCE_S)
            opens_ns.append(time.perf_counter_ns() - open_begin_ns)
            held.append(channel)
        cost = meter.read()
        mailbox.tell("held", _resident())
        mailbox.hear("go")
        times: tuple[list[int], list[int]] = ([], [])
        for last, channel in turns(held):
            _send(channel, config["messages"])
            begin_ns = time.perf_counter_ns()
            _send(channel, config["messages"])
            times[last].append(time.perf_counter_ns() - begin_ns)
        count = edge(number)
        found = {
            "open_ns": cost["elapsed_ns"] // opened,
            "open_first_ns": round(statistics.median(opens_ns[:count])),
            "open_last_ns": round(statistics.median(opens_ns[-count:])),
            "times_ns": [statistics.median(each) for each in times],
        }
        mailbox.tell("served", {**cost, **found})
    mailbox.hear("close")


def side(mailbox: Mailbox, place: Placement, config: Config) -> None:
    """The main function of the server or the client process."""
    needed = config["checkpoints"][-1] + DESCRIPTORS_SPARE
    limit = raise_descriptor_limit()
    if config["kind"] != "weft" and limit < needed:
        raise OSError(f"needs {needed} descriptors, the limit is {limit}: raise ulimit -Hn")
    where = station(config["kind"], place)
    try:
        # Allocate the buffers before memory is measured.
        memory = np.ones((IN_FLIGHT, MESSAGE_BYTES), dtype=np.uint8)
        mailbox.tell("empty", _resident())
        if config["server"]:
            mailbox.tell("address", where.address)
            _serve(where, mailbox, memory, config)
        else:
            _dial(where, mailbox, config)
    finally:
        where.close()


def _row(number: int, config: Config, places: list[Placement], said: Config) -> Config:
    server, client = said["served"]
    moved = config["messages"] * MESSAGE_BYTES
    first, last = (moved / taken * 1e9 for taken in client["times_ns"])
    grown = [now - empty for now, empty in zip(said["held"], said["empty"], strict=True)]
    return {
        "connections": number,
        **{key: client[key] for key in ("open_ns", "open_first_ns", "open_last_ns")},
        "client_bytes_per_connection": grown[1] / number,
        "server_bytes_per_connection": grown[0] / number,
        "first_bytes_per_s": first,
        "last_bytes_per_s": last,
        "last_over_first": last / first,
        "cpu_share": busiest(places, [server["cpu_ns"], client["cpu_ns"]], client["elapsed_ns"]),
        "others_share": others_share([server, client]),
        "wrong": server["wrong"],
    }


def run(kind: str, places: list[Placement], numbers: list[int], messages: int) -> Iterator[Config]:
    """Runs a process that connects and one that accepts; both report measurements."""
    config = {"kind": kind, "checkpoints": numbers, "messages": messages}
    configs = [config | {"server": True}, config | {"server": False}]
    with gang(side, places, configs) as both:
        empty = both.gather("empty")
        both.introduce()
        for number in numbers:
            held = both.gather("held", PATIENCE_S + OPEN_S_MAX * number)
            both.tell("go")
            served = both.gather("served")
            yield _row(number, config, places, {"empty": empty, "held": held, "served": served})
        both.tell("close")


def _notes(rows: Any) -> list[str]:
    last: dict[str, Config] = {row["contender"]: row for row in rows}
    return [
        f"{name}: of {row['connections']} connections, the last {edge(row['connections'])} carry "
        f"{rate_text(row['last_bytes_per_s'], 3)}, {row['last_over_first']:.2f}x the rate of the "
        f"first; opening one takes {row['open_last_ns'] / row['open_first_ns']:.2f}x as long"
        for name, row in last.items()
    ]


@click.command("connections")
@click.option(
    *("-N", "--connections"),
    type=click.IntRange(1, CONNECTIONS_MAX),
    default=4_096,
    show_default=True,
    help="Number of connections between two processes.",
)
@click.option(
    *("-f", "--stepfactor"),
    type=click.IntRange(2, CONNECTIONS_MAX),
    default=4,
    show_default=True,
    help="Measures at 1 connection, then at this many times as many, and so on.",
)
@click.option(
    *("-n", "--iters"),
    type=click.IntRange(1, 1_000_000),
    default=64,
    show_default=True,
    help="Messages of 64K over each of the first and the last 32 connections.",
)
@study_options(connections=32, iters=16)
def command(connections: int, stepfactor: int, iters: int, **options: Any) -> None:
    """Measures N connections of a process: open time, memory, speed of the first and the last."""
    given = common(options)
    names = chosen(given, USUAL, ONE_STREAM)
    places = placed(2, given.places)
    numbers = checkpoints(connections, stepfactor)

    def measure(name: str) -> Iterator[Config]:
        yield from run(peer_of(name).kind, places, numbers, iters)

    settings = {"message_bytes": MESSAGE_BYTES, "iterations": iters}
    conduct(STUDY, given, names, measure, settings, _notes)
