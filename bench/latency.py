"""Decides the half round trip of small messages over lo: weft against TCP_NODELAY.

Never reports a trip whose answer was not what was sent.
"""

from __future__ import annotations

import socket
import time
from multiprocessing.connection import Connection as Pipe

import click
import numpy as np

from bench.common import Config, document, duel, emit, json_option, median, rounds, verdict
from transport import Endpoint

SIZES = (8, 64, 512, 1_024, 4_096, 8_192, 16_384, 65_536)
WARM_UP = 100
PERCENTILES = (50.0, 99.0, 99.9)
COLUMNS = ("contender", "size_bytes", "p50_us", "p99_us", "p99.9_us", "corrupt_messages")


def trips(config: Config, size: int, there_and_back: object) -> Config:
    """Times one size; `there_and_back(data)` returns what came back."""
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
    return row | {f"p{p:g}_us": float(v) for p, v in zip(PERCENTILES, values, strict=True)}


def weft_echo(pipe: Pipe, config: Config) -> None:
    memory = bytearray(max(SIZES))
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
    memory = bytearray(max(SIZES))
    rows = []
    with (
        Endpoint(**config["knobs"]) as endpoint,
        endpoint.connect(config["address"]) as connection,
    ):
        for size in config["sizes"]:
            view = memoryview(memory)[:size]

            def go(data: bytes, view: memoryview = view) -> memoryview:
                handle = connection.irecv_into(view)
                connection.isend(data)
                handle.wait(30)
                return view

            rows.append(trips(config, size, go))
        connection.send(b"", timeout_s=30)
    return rows


def take(stream: socket.socket, view: memoryview) -> None:
    while view:
        count = stream.recv_into(view)
        if count == 0:
            raise ConnectionError("the peer closed")
        view = view[count:]


def tcp_echo(pipe: Pipe, config: Config) -> None:
    memory = bytearray(max(SIZES))
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
    memory = bytearray(max(SIZES))
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
@click.option("--repeats", default=5, show_default=True, help="Interleaved rounds.")
@click.option("--iterations", default=2_000, show_default=True, help="Trips a size and round.")
@json_option
def command(repeats: int, iterations: int, json_path: str | None) -> None:
    """Half round trips over lo, 8 B to 64 KB, against TCP_NODELAY with blocking calls."""
    rows: list[Config] = []
    knobs = {"interfaces": "lo", "engines": 1}
    config = {"iterations": iterations, "sizes": SIZES, "knobs": knobs}
    for round_, name in rounds(repeats, ("TCP", "weft")):
        ends = (tcp_echo, tcp_trips) if name == "TCP" else (weft_echo, weft_trips)
        _, found = duel(*ends, config, one_core=False)
        rows += [{"contender": name, "round": round_, **row} for row in found]
    summary = []
    for size in SIZES:
        for name in ("TCP", "weft"):
            mine = [r for r in rows if (r["contender"], r["size_bytes"]) == (name, size)]
            line: Config = {"contender": name, "size_bytes": size}
            line |= {column: median(mine, column) for column in COLUMNS[2:5]}
            summary.append(line | {"corrupt_messages": sum(r["corrupt_messages"] for r in mine)})
    at_8 = {row["contender"]: row["p50_us"] for row in summary if row["size_bytes"] == 8}
    ratio = at_8["weft"] / at_8["TCP"]
    note = f"8 B: {at_8['weft']:.1f} us, {ratio:.2f}x TCP's (budget 1.0x); medians of {repeats}"
    emit(document("latency", summary, ratio_at_8=ratio, rounds=rows), json_path, COLUMNS, [note])
    verdict(all(row["corrupt_messages"] == 0 for row in rows))


if __name__ == "__main__":
    command()
