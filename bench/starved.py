"""Measures throughput between two processes that share their cores with busy threads, beside TCP.

Every round pins both processes to the same two cores. Each process has a thread that computes
without a pause, like an application that polls. The messages' stamps are checked.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
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
from bench.p2p import CONGESTION, IN_FLIGHT, MESSAGE_BYTES, SLOTS, buffer, stamp
from transport import Endpoint, Request
from transport.errors import ConnectionClosedError

TCP = "TCP"
CONTENDERS: dict[str, Config] = {
    TCP: {},
    "weft": {},
    "weft, no spinning": {"poll": {"engine": 0}},
    "weft, fixed window": {"window_policy": "fixed"},
}
BUDGET = 0.5  # least accepted throughput, as a share of TCP's
SPIN_BYTES = 1 << 20  # bytes that a busy thread processes between two readings of the clock
COLUMNS = ("contender", "round", "mbytes_per_s", "messages", "corrupt_messages", "resent")


@contextmanager
def spinning(threads: int) -> Iterator[None]:
    """Runs threads that compute, without holding Python's lock, until the context ends."""
    over = threading.Event()
    data = bytes(SPIN_BYTES)

    def spin() -> None:
        while not over.is_set():
            zlib.crc32(data)

    crew = [threading.Thread(target=spin, daemon=True) for _ in range(threads)]
    for thread in crew:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in crew:
            thread.join()


class Count:
    """Counts messages and wrong messages; measures the rate after the first second."""

    def __init__(self, seconds: float) -> None:
        self.warm_s, self.began = min(1.0, seconds / 4), time.perf_counter()
        self.messages = self.corrupt = self.timed = 0
        self.first = self.last = 0.0

    def arrived(self, row: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
        stamps = (row[:8].view(np.int64)[0], row[-8:].view(np.int64)[0])
        self.corrupt += stamps != (self.messages, self.messages)
        self.messages += 1
        now = time.perf_counter()
        if now - self.began < self.warm_s:
            return
        if self.first == 0.0:
            self.first = now
        else:
            self.timed += 1
        self.last = now

    def result(self) -> Config:
        seconds = self.last - self.first
        rate = self.timed * MESSAGE_BYTES / seconds if seconds > 0 else 0.0
        return {
            "mbytes_per_s": rate / 1e6,
            "messages": self.messages,
            "corrupt_messages": self.corrupt,
        }


def weft_receiver(pipe: Pipe, config: Config) -> Config:
    memory = np.zeros((SLOTS, MESSAGE_BYTES), dtype=np.uint8)
    with (
        spinning(config["spinners"]),
        Endpoint(**config["knobs"]) as endpoint,
        endpoint.listen() as listener,
    ):
        pipe.send(("address", listener.handle))
        with listener.accept(timeout_s=60) as connection:
            count = Count(config["seconds"])
            requests = [connection.irecv_into(memory[i]) for i in range(IN_FLIGHT)]
            while True:
                at = count.messages % IN_FLIGHT
                try:
                    requests[at].wait(timeout_s=60)
                    count.arrived(memory[at])
                    requests[at] = connection.irecv_into(memory[at])
                except ConnectionClosedError:
                    return count.result()


def weft_sender(_: Pipe, config: Config) -> Config:
    memory = buffer()
    with (
        spinning(config["spinners"]),
        Endpoint(**config["knobs"]) as endpoint,
        endpoint.connect(config["address"], timeout_s=60) as connection,
    ):
        until = time.perf_counter() + config["seconds"]
        requests: list[Request] = []
        while time.perf_counter() < until:
            index = len(requests)
            if index >= IN_FLIGHT:
                requests[index - IN_FLIGHT].wait(timeout_s=60)
            stamp(memory[index % SLOTS], index)
            requests.append(connection.isend(memory[index % SLOTS]))
        for one in requests[-IN_FLIGHT:]:
            one.wait(timeout_s=60)
        counters = connection.counters()
        return {"resent": counters.segments_resent, "needless": counters.spurious_resends}


def tcp_receiver(pipe: Pipe, config: Config) -> Config:
    row = np.zeros(MESSAGE_BYTES, dtype=np.uint8)
    with spinning(config["spinners"]), socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION)
        pipe.send(("address", server.getsockname()))
        taken, _ = server.accept()
        with taken:
            count = Count(config["seconds"])
            while True:
                room = memoryview(row.data)
                while room:
                    got = taken.recv_into(room)
                    if got == 0:
                        return count.result()
                    room = room[got:]
                count.arrived(row)


def tcp_sender(_: Pipe, config: Config) -> Config:
    memory = buffer()
    with spinning(config["spinners"]), socket.socket() as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION)
        stream.connect(config["address"])
        until = time.perf_counter() + config["seconds"]
        index = 0
        while time.perf_counter() < until:
            stamp(memory[index % SLOTS], index)
            stream.sendall(memory[index % SLOTS])
            index += 1
    return {"resent": None, "needless": None}


@contextmanager
def two_cores() -> Iterator[None]:
    """Pins this process, and the processes that it will start, to the first two of its cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[:2]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure(pairs: int, seconds: float, spinners: int, names: list[str]) -> Iterator[Config]:
    for round_, name in rounds(pairs, names):
        config: Config = {"seconds": seconds, "spinners": spinners}
        sides = (tcp_receiver, tcp_sender) if name == TCP else (weft_receiver, weft_sender)
        config["knobs"] = {"interfaces": "lo", **CONTENDERS[name]}
        with two_cores():
            received, sent = duel(*sides, config, shared=True)
        row = {"contender": name, "round": round_, "size_bytes": MESSAGE_BYTES}
        yield row | received | sent


@click.command("starved")
@click.option("--pairs", default=5, show_default=True, help="Interleaved rounds.")
@click.option("--seconds", default=4.0, show_default=True, help="Duration of each transfer.")
@click.option(
    "--spinners",
    default=1,
    show_default=True,
    type=click.IntRange(0, 64),
    help="Spinning threads of each process.",
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(CONTENDERS)),
    help="Only these contenders, and TCP.",
)
@json_option
def command(
    pairs: int, seconds: float, spinners: int, only: tuple[str, ...], json_path: str | None
) -> None:
    """Measures two processes with spinning threads on two cores: weft against TCP cubic."""
    names = [name for name in CONTENDERS if name == TCP or not only or name in only]
    rows: list[Config] = []
    with interruptible() as cut:
        rows.extend(measure(pairs, seconds, spinners, names))
    by_name: dict[str, list[Config]] = {}
    for row in rows:
        by_name.setdefault(row["contender"], []).append(row)
    medians = {name: median(mine, "mbytes_per_s") for name, mine in by_name.items()}
    tcp = medians.get(TCP, 0.0)
    ratios = {name: round(value / tcp, 3) for name, value in medians.items()} if tcp else {}
    notes = [
        f"{name}: median {value:.0f} MB/s, {ratios.get(name, 0):.2f}x TCP"
        + (f" (budget {BUDGET}x)" if name == "weft" else "")
        for name, value in medians.items()
    ]
    found = document("starved", rows, median_mbytes_per_s=medians, ratio_to_tcp=ratios)
    emit(found, json_path, COLUMNS, notes, cut)
    verdict(all(row["corrupt_messages"] == 0 for row in rows))


if __name__ == "__main__":
    command()
