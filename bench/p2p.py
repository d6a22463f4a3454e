"""Measures the throughput of one connection over lo: weft against TCP cubic, one core per side.

The stamps of every message are checked, and the whole buffer at the end.
"""

from __future__ import annotations

import math
import resource
import socket
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from typing import Any

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
from bench.lib.page_reader import pages_read
from transport import Endpoint, Request
from transport.ground.units import rate_text

MESSAGE_BYTES = 1 << 20
BUFFER_BYTES = 64 << 20
SLOTS = BUFFER_BYTES // MESSAGE_BYTES
IN_FLIGHT = 32
BATCH = 16  # messages per wake-up of a caller, because each wake-up costs a context switch
SEGMENTS = (9_000, 65_472)
BUDGETS = {9_000: 0.9, 65_472: 1.0}
CONGESTION = b"cubic"
UNCHECKED = "unchecked"
READ = "read"  # contender: weft while another process reads the telemetry pages
COLUMNS = (
    *("contender", "round", "gbytes_per_s", "receiver_cpu_s_per_gbyte", "corrupt_messages"),
    *("lost_segments", "retransmitted_segments", "path_shares"),
)

Array = np.ndarray[Any, Any]


def buffer() -> Array:
    """The buffer of a sender: random bytes, one row per message."""
    return np.random.default_rng(1).integers(0, 256, (SLOTS, MESSAGE_BYTES), dtype=np.uint8)


def stamp(row: Array, index: int) -> None:
    """Writes the number of the message at its start and end."""
    row[:8].view(np.int64)[0] = row[-8:].view(np.int64)[0] = index


class Clock:
    """Times messages after the first pass over the buffer; counts those with wrong stamps."""

    def __init__(self, memory: Array, messages: int) -> None:
        self.memory, self.messages, self.corrupt = memory, messages, 0
        self.begin = self.cpu_begin = 0.0

    def arrived(self, index: int) -> None:
        row = self.memory[index % SLOTS]
        stamps = (row[:8].view(np.int64)[0], row[-8:].view(np.int64)[0])
        self.corrupt += stamps != (index, index)
        if index == SLOTS - 1:
            self.begin, self.cpu_begin = time.perf_counter(), cpu_s()

    def result(self) -> Config:
        seconds, cpu = time.perf_counter() - self.begin, cpu_s() - self.cpu_begin
        expected = buffer()
        for index in range(self.messages - SLOTS, self.messages):
            stamp(expected[index % SLOTS], index)
        wrong = int((self.memory != expected).any(axis=1).sum())
        moved = (self.messages - SLOTS) * MESSAGE_BYTES
        return {
            "gbytes_per_s": moved / seconds / 1e9,
            "receiver_cpu_s_per_gbyte": cpu / moved * 1e9,
            "corrupt_messages": self.corrupt + wrong,
        }


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def weft_receiver(pipe: Pipe, config: Config) -> Config:
    memory = np.zeros((SLOTS, MESSAGE_BYTES), dtype=np.uint8)
    clock = Clock(memory, config["messages"])
    with Endpoint(**config["knobs"]) as endpoint, endpoint.listen() as listener:
        pipe.send(("address", listener.handle))
        with listener.accept(timeout_s=30) as connection:
            requests = [connection.irecv_into(memory[i]) for i in range(SLOTS)]
            for index in range(config["messages"]):
                if index % BATCH == 0:
                    last = min(index + BATCH, config["messages"]) - 1
                    requests[last % SLOTS].wait(timeout_s=60)
                requests[index % SLOTS].wait(timeout_s=60)
                clock.arrived(index)
                if index + SLOTS < config["messages"]:
                    requests[index % SLOTS] = connection.irecv_into(memory[index % SLOTS])
            return clock.result()


def weft_sender(_: Pipe, config: Config) -> Config:
    memory = buffer()
    with (
        Endpoint(**config["knobs"]) as endpoint,
        endpoint.connect(config["address"]) as connection,
    ):
        requests: list[Request] = []
        for index in range(config["messages"]):
            if index >= IN_FLIGHT and index % BATCH == 0:
                requests[index - IN_FLIGHT + BATCH - 1].wait(timeout_s=60)
            stamp(memory[index % SLOTS], index)
            requests.append(connection.isend(memory[index % SLOTS]))
        for one in requests[-IN_FLIGHT:]:
            one.wait(timeout_s=60)
        counters = connection.counters()
        sent = max(sum(path.bytes_sent for path in counters.paths), 1)
        return {
            "lost_segments": counters.segments_lost,
            "retransmitted_segments": counters.segments_resent,
            "path_shares": [round(path.bytes_sent / sent, 3) for path in counters.paths],
            "summary": endpoint.summary(),
        }


def tcp_receiver(pipe: Pipe, config: Config) -> Config:
    memory = np.zeros((SLOTS, MESSAGE_BYTES), dtype=np.uint8)
    clock = Clock(memory, config["messages"])
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION)
        pipe.send(("address", server.getsockname()))
        taken, _ = server.accept()
    with taken:
        taken.setblocking(False)
        for index in range(config["messages"]):
            room = memoryview(memory[index % SLOTS])
            while room:
                # The receiver spins, because TCP is faster with a spinning receiver.
                try:
                    room = room[taken.recv_into(room) :]
                except BlockingIOError:
                    continue
            clock.arrived(index)
        return clock.result()


def tcp_sender(_: Pipe, config: Config) -> Config:
    memory = buffer()
    with socket.socket() as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION)
        stream.connect(config["address"])
        for index in range(config["messages"]):
            stamp(memory[index % SLOTS], index)
            stream.sendall(memory[index % SLOTS])
        stream.shutdown(socket.SHUT_WR)
        stream.recv(1)
    return {"lost_segments": None, "retransmitted_segments": None, "path_shares": []}


def measure(
    pairs: int, passes: int, segments: tuple[int, ...], unchecked: bool, read_hz: int
) -> Iterator[Config]:
    messages = (passes + 1) * SLOTS
    contenders = ["TCP"]
    for segment in segments:
        kinds = ["", *[f" {UNCHECKED}"] * unchecked, *[f" {READ}"] * (read_hz > 0)]
        contenders += [f"weft {segment}{kind}" for kind in kinds]
    for round_, name in rounds(pairs, contenders):
        knobs = {"interfaces": "lo", "engines": 1}
        if name == "TCP":
            received, sent = duel(tcp_receiver, tcp_sender, {"messages": messages})
        else:
            knobs["segment_bytes"] = name.split()[1]
            if name.endswith(UNCHECKED):
                knobs |= {
                    "payload_crc": "off",
                    "log_level": "error",
                }  # log_level: hides the warning that the payload check is off
            config = {"messages": messages, "knobs": knobs}
            if name.endswith(READ):
                with pages_read(read_hz) as reading:
                    knobs["telemetry"] = str(reading.where)
                    received, sent = duel(weft_receiver, weft_sender, config)
                sent["page_reads_per_s"] = round(reading.reads_per_s)
            else:
                received, sent = duel(weft_receiver, weft_sender, config)
        row = {"contender": name, "round": round_, "size_bytes": MESSAGE_BYTES}
        yield row | received | sent


@click.command("p2p")
@click.option(
    "--pairs", default=5, show_default=True, type=click.IntRange(1), help="Interleaved rounds."
)
@click.option(
    "--passes",
    default=32,
    show_default=True,
    type=click.IntRange(1),
    help="Times that 64 MB are sent and timed.",
)
@click.option(
    "--segment",
    multiple=True,
    type=click.IntRange(576, 65_472),
    default=SEGMENTS,
    show_default=True,
    help="Segment bytes.",
)
@click.option("--unchecked", is_flag=True, help="Also without payload_crc, in the same rounds.")
@click.option(
    "--read",
    "read_hz",
    default=0,
    type=click.IntRange(0, 100_000),
    help="Also while another process reads both ends' telemetry pages this many times a second.",
)
@json_option
def command(
    pairs: int,
    passes: int,
    segment: tuple[int, ...],
    unchecked: bool,
    read_hz: int,
    json_path: str | None,
) -> None:
    """Measures one connection's throughput over lo against TCP cubic with a spinning receiver.

    weft has one engine.
    """
    rows: list[Config] = []
    with interruptible() as cut:
        # If measure() is interrupted, extend() keeps the rows that it has yielded.
        rows.extend(measure(pairs, passes, segment, unchecked, read_hz))
    by_name: dict[str, list[Config]] = {}
    for row in rows:
        by_name.setdefault(row["contender"], []).append(row)
    tcp = median(by_name["TCP"], "gbytes_per_s") if by_name else math.inf
    medians, notes = {}, []
    by_budget = {f"weft {bytes_}" for bytes_ in segment}
    for name, mine in by_name.items():
        medians[name] = median(mine, "gbytes_per_s")
        note = f"{name}: median {rate_text(medians[name] * 1e9, 3)}, {medians[name] / tcp:.2f}x TCP"
        budget = BUDGETS.get(int(name.split()[1])) if name in by_budget else None
        notes.append(note + (f" (budget {budget}x)" if budget else ""))
    ratios = {name: round(value / tcp, 3) for name, value in medians.items()}
    found = document("p2p", rows, median_gbytes_per_s=medians, ratio_to_tcp=ratios)
    emit(found, json_path, COLUMNS, notes, cut)
    verdict(all(row["corrupt_messages"] == 0 for row in rows))


if __name__ == "__main__":
    command()
