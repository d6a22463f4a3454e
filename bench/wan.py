"""Measures weft and TCP over long and impaired paths of an emulated network.

There are four paths of equal rate, of which one or all are impaired. Results are shares of the
capacity of the healthy paths. Rates are low, because a process forwards the packets.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from bench.lib.common import (
    Config,
    document,
    emit,
    interruptible,
    json_option,
    median,
    rounds,
    verdict,
)
from bench.lib.labs import end_as_with_ctrl_c
from bench.lib.wire import ADDRESSES, DEVICE, Road, Wire
from bench.p2p import CONGESTION, stamp
from transport import Endpoint, Request
from transport.cli.lab import told
from transport.errors import WeftError
from transport.lab import features

ROOT = Path(__file__).resolve().parents[1]
PORT = 7000
QUIET_S = 10  # a TCP stream that delivers nothing for this time counts as ended
MESSAGE_BYTES = 256 << 10
IN_FLIGHT = 64
STREAMS = 16  # number of TCP streams over four paths
MS = 1_000_000
RATE = 5_000_000  # bytes/s per path
MTU_BYTES = 9_000
HEALTHY = Road(rate_bytes_per_s=RATE, queue_bytes=512 << 10, delay_ns=MS)
CONTENDERS = ("weft", "tcp")
COLUMNS = ("case", "contender", "round", "mbytes_per_s", "share", "resent", "needless", "wrong")


@dataclass(frozen=True)
class Case:
    """The paths in both directions, and the number of healthy paths."""

    there: tuple[Road, ...]
    back: tuple[Road, ...]
    well: int


def one_sick(*, there: bool = True, back: bool = True, **fields: int) -> Case:
    """Three healthy paths, and one that is impaired in one direction or both."""
    sick = replace(HEALTHY, **fields)
    ways = [(sick if one else HEALTHY, *[HEALTHY] * 3) for one in (there, back)]
    return Case(ways[0], ways[1], 3)


def all_alike(count: int = 4, **fields: float) -> Case:
    roads = tuple([replace(HEALTHY, **fields)] * count)  # type: ignore[arg-type]
    return Case(roads, roads, count)


def long(delay_ms: int, count: int) -> Case:
    """Long paths; each queue holds half a bandwidth-delay product, and at least 256 KiB."""
    rate = 4 * RATE // count
    queue = max(rate * delay_ms // 1_000, 256 << 10)
    return all_alike(count, rate_bytes_per_s=rate, delay_ns=delay_ms * MS, queue_bytes=queue)


CASES = {
    "healthy": all_alike(),
    "1 in 50 passes, both ways": one_sick(pass_every=50),
    "1 in 50 passes, forward only": one_sick(pass_every=50, back=False),
    "1 in 50 passes, return only": one_sick(pass_every=50, there=False),
    "1/100 of the rate, both ways": one_sick(rate_bytes_per_s=RATE // 100),
    "1/100 of the rate, forward only": one_sick(rate_bytes_per_s=RATE // 100, back=False),
    "1/100 of the rate, return only": one_sick(rate_bytes_per_s=RATE // 100, there=False),
    "flaps every 0.3 s": one_sick(flap_ns=300 * MS),
    "bursts of losses": all_alike(burst_enter=0.002, burst_leave=0.1),
    "20 % loss": all_alike(loss=0.2),
    "25 % overtaken": all_alike(reorder=0.25),
    "jitter of 50 ms": all_alike(jitter_ns=50 * MS),
    "20 ms": long(10, 1),
    "200 ms": long(100, 1),
    "20 ms, 4 paths": long(10, 4),
    "200 ms, 4 paths": long(100, 4),
}


class Count:
    """Counts wrong messages, and the messages that arrive after the warm-up."""

    def __init__(self, warm_s: float) -> None:
        self.begin = time.perf_counter() + warm_s
        self.timed = self.wrong = 0
        self.last = self.begin
        self._lock = threading.Lock()

    def arrived(self, row: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], index: int) -> None:
        stamps = (row[:8].view(np.int64)[0], row[-8:].view(np.int64)[0])
        now = time.perf_counter()
        with self._lock:
            self.wrong += stamps != (index, index)
            if now >= self.begin:
                self.timed, self.last = self.timed + 1, now

    def result(self) -> Config:
        seconds = self.last - self.begin
        rate = self.timed * MESSAGE_BYTES / seconds if seconds > 0 else 0.0
        return {"mbytes_per_s": rate / 1e6, "wrong": self.wrong}


def rows_of_memory() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.zeros((IN_FLIGHT, MESSAGE_BYTES), dtype=np.uint8)


def endpoint() -> Endpoint:
    return Endpoint(interfaces=DEVICE, engines=1, log_level="error")


def receive_weft(warm_s: float) -> Config:
    memory = rows_of_memory()
    with endpoint() as here, here.listen(port=PORT, open=True) as listener:
        print("ready", flush=True)
        with listener.accept(timeout_s=60) as connection:
            count = Count(warm_s)
            requests = [connection.irecv_into(row) for row in memory]
            index = 0
            try:
                while True:
                    at = index % IN_FLIGHT
                    requests[at].wait(timeout_s=120)
                    count.arrived(memory[at], index)
                    requests[at] = connection.irecv_into(memory[at])
                    index += 1
            except WeftError:
                return count.result()


def send_weft(seconds: float) -> Config:
    memory = rows_of_memory()
    with endpoint() as here, here.connect(ADDRESSES[1], PORT, timeout_s=60) as connection:
        until, index = time.perf_counter() + seconds, 0
        requests: list[Request | None] = [None] * IN_FLIGHT
        while time.perf_counter() < until:
            at = index % IN_FLIGHT
            if (before := requests[at]) is not None:
                before.wait(timeout_s=120)
            stamp(memory[at], index)
            requests[at] = connection.isend(memory[at])
            index += 1
        seen = connection.counters()
        return {
            "resent": seen.segments_resent / max(seen.segments_sent, 1),
            "needless": seen.spurious_resends / max(seen.segments_sent, 1),
        }


def receive_tcp(warm_s: float, streams: int) -> Config:
    with socket.create_server((ADDRESSES[1], PORT), backlog=64) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION)
        print("ready", flush=True)
        count: Count | None = None

        def drain(taken: socket.socket) -> None:
            row, index = rows_of_memory()[0], 0
            assert count is not None
            with taken:
                while True:
                    room = memoryview(row.data)
                    while room:
                        try:
                            got = taken.recv_into(room)
                        except OSError:
                            got = 0
                        if got == 0:
                            return
                        room = room[got:]
                    count.arrived(row, index)
                    index += 1

        threads = []
        for _ in range(streams):
            taken, _ = server.accept()
            taken.settimeout(QUIET_S)  # needed because the peer's reset may be lost
            count = count or Count(warm_s)
            threads.append(threading.Thread(target=drain, args=[taken]))
            threads[-1].start()
        for thread in threads:
            thread.join()
        assert count is not None
        return count.result()


def send_tcp(seconds: float, streams: int) -> Config:
    until = time.perf_counter() + seconds

    def fill(stream: socket.socket) -> None:
        row, index = rows_of_memory()[0], 0
        stream.settimeout(5)
        try:
            while time.perf_counter() < until:
                stamp(row, index)
                stream.sendall(row.data)
                index += 1
        except OSError:
            pass  # a stalled stream counts with the bytes that it carried

    opened = []
    for _ in range(streams):
        stream = socket.socket()
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION)
        stream.connect((ADDRESSES[1], PORT))
        opened.append(stream)
    threads = [threading.Thread(target=fill, args=[stream]) for stream in opened]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stream in opened:  # close without waiting for queued data
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        stream.close()
    return {"resent": None, "needless": None}


def run(case: Case, contender: str, seconds: float) -> Config:
    """Runs one transfer; returns what the receiver counted and what the sender reports."""
    warm_s = min(seconds / 3, 5.0)
    streams = str(1 if len(case.there) == 1 else STREAMS)
    with Wire(f"wan-{os.getpid()}", case.there, back=case.back, mtu_bytes=MTU_BYTES) as wire:
        command = [sys.executable, "-m", "bench.wan", contender, streams]
        given = {"cwd": ROOT, "stdout": subprocess.PIPE, "text": True}
        there = wire.popen(1, [*command, "receive", str(warm_s)], **given)
        assert there.stdout is not None
        if there.stdout.readline().strip() != "ready":
            raise click.ClickException("the receiver did not start")
        here = wire.popen(0, [*command, "send", str(seconds)], **given)
        sent, _ = here.communicate(timeout=seconds + 180)
        received, _ = there.communicate(timeout=180)
    if here.returncode or there.returncode:
        raise click.ClickException(
            f"{contender}: a process failed (exit status of the sender: {here.returncode}, "
            f"of the receiver: {there.returncode}): see its error above"
        )
    found: Config = json.loads(received) | json.loads(sent)
    well = case.well * case.there[-1].rate_bytes_per_s / 1e6
    return found | {"share": found["mbytes_per_s"] / well}


def measure(pairs: int, seconds: float, cases: list[str], only: list[str]) -> Iterator[Config]:
    names = [f"{case}/{contender}" for case in cases for contender in only]
    for round_, name in rounds(pairs, names):
        case, contender = name.rsplit("/", 1)
        row = {"case": case, "contender": contender, "round": round_}
        yield row | run(CASES[case], contender, seconds)


@click.command("wan")
@click.option(
    "--pairs",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Rounds; within each, the contenders take turns.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(3.0),
    default=12.0,
    show_default=True,
    help="How long each contender sends; the first third is not counted.",
)
@click.option(
    "--case",
    "cases",
    multiple=True,
    type=click.Choice(list(CASES)),
    metavar="NAME",
    help="Only this case; repeat for several: " + "; ".join(CASES) + ".",
)
@click.option("--only", multiple=True, type=click.Choice(CONTENDERS), help="Only this contender.")
@json_option
def command(
    pairs: int, seconds: float, cases: tuple[str, ...], only: tuple[str, ...], json_path: str | None
) -> None:
    """Measures weft and TCP cubic over long and impaired paths between namespaces; needs root.

    TCP has 16 streams over four paths, and one over one path. All cases take half an hour.
    """
    with told():
        features.require_rights()
    end_as_with_ctrl_c()
    rows: list[Config] = []
    with interruptible() as cut:
        rows.extend(measure(pairs, seconds, list(cases or CASES), list(only or CONTENDERS)))
    by_name: dict[str, list[Config]] = {}
    for row in rows:
        by_name.setdefault(f"{row['case']}, {row['contender']}", []).append(row)
    shares = {name: round(median(mine, "share"), 3) for name, mine in by_name.items()}
    notes = [f"{name}: {share:.2f} of what healthy paths carry" for name, share in shares.items()]
    emit(document("wan", rows, median_share=shares), json_path, COLUMNS, notes, cut)
    verdict(all(row["wrong"] == 0 for row in rows))


def main() -> None:
    """One end of a transfer. The parent handles Ctrl-C and removes the namespaces."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = argparse.ArgumentParser()
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("streams", type=int)
    parser.add_argument("role", choices=("receive", "send"))
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    if given.contender == "weft":
        found = (receive_weft if given.role == "receive" else send_weft)(given.seconds)
    else:
        work = receive_tcp if given.role == "receive" else send_tcp
        found = work(given.seconds, given.streams)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
