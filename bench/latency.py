"""Measures half round trips of small messages over lo: weft against TCP_NODELAY.

Each answer is compared with the message that was sent; a wrong one fails the benchmark.
"""

from __future__ import annotations

import socket
import time
from multiprocessing.connection import Connection as Pipe

import click
import numpy as np

from bench.lib.common import (
    Config,
    document,
    duel,
    emit,
    interruptible,
    json_option,
    median,
    rounds,
    verdict,
)
from bench.lib.options import LATENCY, Columns, Size, show, table
from transport import Endpoint

SIZES = (8, 64, 512, 1_024, 4_096, 8_192, 16_384, 65_536)
WARM_UP = 100
PERCENTILES = (50.0, 99.0, 99.9)
COLUMNS = ("contender", "size_bytes", "p50_us", "p99_us", "p99.9_us", "corrupt_messages")

PERFTEST: Columns = (("contender", "contender"), *LATENCY)
TIMES = ("t_min_ns", "t_max_ns", "t_typical_ns", "t_avg_ns", "t_99_ns")


def trips(config: Config, size: int, there_and_back: object) -> Config:
    """Times messages of one size; `there_and_back(data)` sends one and returns the answer."""
    assert callable(there_and_back)
    data = np.random.default_rng(size).bytes(size)
    half_ns = []
    corrupt = 0
    for i in range(WARM_UP + config["iterations"]):
        begin = time.perf_counter_ns()
        answer = there_and_back(data)
        half_ns.append((time.perf_counter_ns() - begin) / 2)
        corrupt += answer != data
        if i == WARM_UP - 1:
            half_ns.clear()
    values = np.percentile(half_ns, PERCENTILES) / 1e3
    row: Config = {"size_bytes": size, "corrupt_messages": int(corrupt)}
    row |= {
        "t_min_ns": int(min(half_ns)),
        "t_max_ns": int(max(half_ns)),
        "t_typical_ns": int(values[0] * 1e3),
        "t_avg_ns": int(sum(half_ns) / len(half_ns)),
        "t_99_ns": int(values[1] * 1e3),
    }
    return row | {f"p{p:g}_us": float(v) for p, v in zip(PERCENTILES, values, strict=True)}


def weft_echo(pipe: Pipe, config: Config) -> None:
    memory = bytearray(max(config["sizes"]))
    with Endpoint(**config["knobs"]) as endpoint, endpoint.listen() as listener:
        pipe.send(("address", listener.handle))
        with listener.accept(timeout_s=30) as connection:
            for size in config["sizes"]:
                view = memoryview(memory)[:size]
                for _ in range(WARM_UP + config["iterations"]):
                    connection.recv_into(view, timeout_s=30)
                    connection.isend(view)
            connection.recv(0, timeout_s=30)


def weft_trips(_: Pipe, config: Config) -> list[Config]:
    memory = bytearray(max(config["sizes"]))
    rows = []
    with (
        Endpoint(**config["knobs"]) as endpoint,
        endpoint.connect(config["address"]) as connection,
    ):
        for size in config["sizes"]:
            view = memoryview(memory)[:size]

            def go(data: bytes, view: memoryview = view) -> memoryview:
                request = connection.irecv_into(view)
                connection.isend(data)
                request.wait(30)
                return view

            rows.append(trips(config, size, go))
        connection.send(b"", timeout_s=30)
    return rows


def take(stream: socket.socket, view: memoryview) -> None:
    while view:
        count = stream.recv_into(view)
        if count == 0:
            raise ConnectionError("the peer closed the connection")
        view = view[count:]


def tcp_echo(pipe: Pipe, config: Config) -> None:
    memory = bytearray(max(config["sizes"]))
    with socket.create_server(("127.0.0.1", 0)) as server:
        pipe.send(("address", server.getsockname()))
        taken, _ = server.accept()
    with taken:
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for size in config["sizes"]:
            view = memoryview(memory)[:size]
            for _ in range(WARM_UP + config["iterations"]):
                take(taken, view)
                taken.sendall(view)


def tcp_trips(_: Pipe, config: Config) -> list[Config]:
    memory = bytearray(max(config["sizes"]))
    rows = []
    with socket.create_connection(config["address"]) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for size in config["sizes"]:
            view = memoryview(memory)[:size]

            def go(data: bytes, view: memoryview = view) -> memoryview:
                stream.sendall(data)
                take(stream, view)
                return view

            rows.append(trips(config, size, go))
    return rows


@click.command("latency")
@click.option(
    "--repeats", default=5, show_default=True, type=click.IntRange(1), help="Interleaved rounds."
)
@click.option(
    "--iterations",
    default=2_000,
    show_default=True,
    type=click.IntRange(1),
    help="Round trips per size and round.",
)
@click.option("-s", "--size", type=Size(), multiple=True, help="Bytes; 8 to 64K by default.")
@click.option(
    "--style",
    type=click.Choice(("own", "perftest")),
    default="own",
    show_default=True,
    help="Columns of the table; perftest: t_min, t_max, t_typical, t_avg, 99%.",
)
@json_option
def command(
    repeats: int, iterations: int, size: tuple[int, ...], style: str, json_path: str | None
) -> None:
    """Measures half round trips over lo, 8 B to 64 KiB, against TCP_NODELAY with blocking calls.

    weft has one engine.
    """
    rows: list[Config] = []
    knobs = {"interfaces": "lo", "engines": 1}
    sizes = size or SIZES
    config = {"iterations": iterations, "sizes": sizes, "knobs": knobs}
    with interruptible() as cut:
        for round_, name in rounds(repeats, ("TCP", "weft")):
            ends = (tcp_echo, tcp_trips) if name == "TCP" else (weft_echo, weft_trips)
            _, found = duel(*ends, config, one_core=False)
            rows += [{"contender": name, "round": round_, **row} for row in found]
    summary = []
    for one in sizes:
        for name in ("TCP", "weft"):
            mine = [r for r in rows if (r["contender"], r["size_bytes"]) == (name, one)]
            if not mine:
                continue  # the run was interrupted before this contender's first round
            line: Config = {"contender": name, "size_bytes": one, "iterations": iterations}
            line |= {column: median(mine, column) for column in (*COLUMNS[2:5], *TIMES)}
            summary.append(line | {"corrupt_messages": sum(r["corrupt_messages"] for r in mine)})
    at_8 = {row["contender"]: row["p50_us"] for row in summary if row["size_bytes"] == 8}
    ratio, notes = None, []
    if len(at_8) == 2:
        ratio = at_8["weft"] / at_8["TCP"]
        budget = f"{ratio:.2f}x TCP's (budget 1.0x); medians of {repeats}"
        notes = [f"8 B: {at_8['weft']:.1f} us, {budget}"]
    found = document("latency", summary, ratio_at_8=ratio, rounds=rows)
    if style == "perftest" and json_path != "-":
        table(PERFTEST, [[show(key, row[key]) for key, _ in PERFTEST] for row in summary])
    emit(found, json_path, () if style == "perftest" else COLUMNS, notes, cut)
    verdict(all(row["corrupt_messages"] == 0 for row in rows))


if __name__ == "__main__":
    command()
