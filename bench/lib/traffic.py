"""Drives, times and checks flows between processes, over any kind of channel.

The benchmark defines the flows, and interprets the rates and costs that are measured.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bench.lib.channels import Channel, Mesh, Station, station
from bench.lib.launch import Config, Mailbox, gang
from bench.lib.placement import Placement

NODE_BYTES = 32 << 20  # bytes of buffers in a process, divided among its flows
IN_FLIGHT_MIN = 2
STAMPED_BYTES_MIN = 16
OTHERS_NS_MIN = 100_000_000  # least time to measure load, which the kernel counts in 10 ms ticks
LEAD_NS = 100_000_000  # time from when all processes are connected to the start of the flows
WAIT_S = 60.0

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Flow:
    """A flow from one place to another for the whole run, over `streams` connections."""

    source: int
    target: int
    kind: str = "weft"
    streams: int = 1
    label: str = ""


@dataclass(frozen=True)
class Load:
    """The messages of each flow: their size, the timed seconds, and the warm-up before them."""

    size_bytes: int
    duration_s: float
    warmup_s: float
    intervals: int = 10  # number of intervals of the timed window, for peak rate and timeline
    in_flight_max: int = 64  # maximum number of messages in flight per stream
    batch_max: int = 32  # messages per wake-up of a caller; with 1, each arrival is timed


@dataclass(frozen=True)
class Times:
    """The times of one run, on the clock of time.perf_counter_ns."""

    begin_ns: int
    window_ns: int
    end_ns: int


@dataclass(frozen=True)
class _Stream:
    number: int
    flow: int
    source: int
    target: int
    kind: str
    size_bytes: int
    in_flight: int
    batch: int
    intervals: int


class _Gate:
    """Lets threads wait, after they made their buffers, until all processes are ready."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._times: Times | None = None
        self.waiting = threading.Semaphore(0)

    def open(self, times: Times) -> None:
        self._times = times
        self._opened.set()

    def times(self) -> Times:
        """Blocks until the experiment has announced the start."""
        self.waiting.release()
        if not self._opened.wait(WAIT_S) or self._times is None:
            raise TimeoutError(f"the experiment announced no start within {WAIT_S:.0f} s")
        return self._times


def jain(rates: Sequence[float]) -> float:
    """Jain's index: 1 if all rates are equal, 1/n if one flow has everything."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0


def content(number: int, size_bytes: int) -> Array:
    """The content of every message of a stream, apart from the message number at both ends."""
    return np.random.default_rng(number + 1).integers(0, 256, size_bytes, dtype=np.uint8)


def stamp(row: Array, index: int) -> None:
    if row.size >= STAMPED_BYTES_MIN:
        number = np.int64(index).tobytes()
        row[:8] = row[-8:] = np.frombuffer(number, dtype=np.uint8)


def wrong(row: Array, index: int, expected: Array) -> bool:
    """Whether a message arrived wrong: compares the numbers at both ends, or all bytes if short."""
    if row.size < STAMPED_BYTES_MIN:
        return not np.array_equal(row, expected)
    number = np.int64(index).tobytes()
    return row[:8].tobytes() != number or row[-8:].tobytes() != number


def wholly_wrong(memory: Array, messages: int, expected: Array) -> int:
    """The number of the last messages, which are still in memory, that have any wrong byte."""
    broken = 0
    expected = expected.copy()
    for index in range(max(messages - len(memory), 0), messages):
        stamp(expected, index)
        broken += not np.array_equal(memory[index % len(memory)], expected)
    return broken


def _send(channel: Channel, stream: _Stream, gate: _Gate) -> int:
    """Keeps `in_flight` messages in flight until the end; returns the number sent."""
    expected = content(stream.number, stream.size_bytes)
    memory = np.tile(expected, (stream.in_flight, 1))
    requests: list[Any] = [None] * stream.in_flight
    batch = stream.batch  # waking a caller once per batch costs the engine less
    times = gate.times()
    _until(times.begin_ns)
    index = 0
    while index == 0 or time.perf_counter_ns() < times.end_ns:
        if index >= stream.in_flight:
            for slot in reversed(range(batch)):
                requests[(index + slot) % stream.in_flight].wait(WAIT_S)
        for _ in range(batch):
            row = memory[index % stream.in_flight]
            stamp(row, index)
            requests[index % stream.in_flight] = channel.isend(row)
            index += 1
    for request in requests:
        if request is not None:
            request.wait(WAIT_S)
    channel.finish(stream.in_flight)
    return index


def _receive(channel: Channel, stream: _Stream, gate: _Gate) -> Config:
    """Receives messages until an empty one; returns how many arrived in each interval."""
    expected = content(stream.number, stream.size_bytes)
    slots = 2 * stream.in_flight
    memory = np.zeros((slots, stream.size_bytes), dtype=np.uint8)
    requests = [channel.irecv_into(row) for row in memory]
    batch = stream.batch
    counts = [0] * stream.intervals
    times = gate.times()
    interval_ns = (times.end_ns - times.window_ns) // stream.intervals
    index = broken = 0
    ended = False
    while not ended:
        requests[(index + batch - 1) % slots].wait(WAIT_S)
        arrived = 0
        for _ in range(batch):
            slot = index % slots
            if requests[slot].wait(WAIT_S) == 0:
                ended = True
                break
            broken += wrong(memory[slot], index, expected)
            index += 1
            arrived += 1
        now_ns = time.perf_counter_ns()
        if times.window_ns <= now_ns < times.end_ns:
            counts[min((now_ns - times.window_ns) // interval_ns, stream.intervals - 1)] += arrived
        if not ended:
            # Post receives only after a whole batch, so that the last messages stay in memory for
            # the check.
            for done in range(index - batch, index):
                requests[done % slots] = channel.irecv_into(memory[done % slots])
    broken += wholly_wrong(memory, index, expected)
    return {"stream": stream.number, "messages": index, "wrong": broken, "counts": counts}


def _until(moment_ns: int) -> None:
    left_ns = moment_ns - time.perf_counter_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)


def cpu_ns() -> int:
    """Processor time of this process, its engines included."""
    return time.process_time_ns()


def machine_ns() -> int:
    """Busy time of all processors of the machine, without idle and I/O wait."""
    with open("/proc/stat") as stat:
        user, nice, system, _, _, interrupts, soft, stolen = map(int, stat.readline().split()[1:9])
    ticks = user + nice + system + interrupts + soft + stolen
    return ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


class _Threads:
    """Runs a thread for each end of each stream; collects results and the first error."""

    def __init__(self) -> None:
        self.gate = _Gate()
        self.results: list[Config] = []
        self._errors: list[Exception] = []
        self._threads: list[threading.Thread] = []
        self._failed = threading.Event()

    def start(self, work: Any, channel: Channel, stream: _Stream) -> None:
        def body() -> None:
            try:
                found = work(channel, stream, self.gate)
                if isinstance(found, dict):
                    self.results.append(found)
            except Exception as error:  # raised again by join()
                self._errors.append(error)
                self._failed.set()

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        self._threads.append(thread)

    def prepared(self) -> None:
        """Waits until every thread has made its buffers."""
        until = time.monotonic() + WAIT_S
        for _ in self._threads:
            while not self.gate.waiting.acquire(timeout=0.1):
                if self._errors:
                    raise self._errors[0]
                if time.monotonic() > until:
                    raise TimeoutError(f"buffers were not made within {WAIT_S:.0f} s")

    def until(self, moment_ns: int) -> None:
        """Sleeps until the given time, or until a thread has an error."""
        left_ns = moment_ns - time.perf_counter_ns()
        if left_ns > 0 and self._failed.wait(left_ns / 1e9):
            raise self._errors[0]

    def join(self, patience_s: float) -> None:
        until = time.monotonic() + patience_s
        for thread in self._threads:
            while thread.is_alive() and not self._errors:
                thread.join(0.2)
                if time.monotonic() > until:
                    raise TimeoutError(f"a flow did not end within {patience_s:.0f} s")
        if self._errors:
            raise self._errors[0]


def node(mailbox: Mailbox, place: Placement, config: Config) -> None:
    """The main function of a process: connects, runs its ends of flows, and reports."""
    me: int = config["me"]
    streams = [_Stream(**one) for one in config["streams"]]
    mine = [one for one in streams if me in (one.source, one.target)]
    stations: dict[str, Station] = {
        kind: station(kind, place) for kind in sorted({one.kind for one in mine})
    }
    mesh = Mesh()
    try:
        for kind, where in stations.items():
            count = sum(one.kind == kind and one.target == me for one in mine)
            mesh.expect(where, count)
        mailbox.tell("address", {kind: where.address for kind, where in stations.items()})
        addresses = mailbox.hear("addresses")
        for one in mine:
            if one.source == me:
                mesh.dial(stations[one.kind], addresses[one.target][one.kind], one.number)
        mesh.ready()
        threads = _Threads()
        for one in mine:
            if one.target == me:
                threads.start(_receive, mesh.incoming[one.number], one)
            if one.source == me:
                threads.start(_send, mesh.outgoing[one.number], one)
        threads.prepared()
        mailbox.tell("prepared")
        mailbox.tell("measured", _drive(mesh, threads, Times(**mailbox.hear("start"))))
        mailbox.hear("close")
    finally:
        mesh.close()
        for where in stations.values():
            where.close()


def _drive(mesh: Mesh, threads: _Threads, times: Times) -> Config:
    threads.gate.open(times)
    threads.until(times.window_ns)
    before_ns, busy_before_ns, since_ns = cpu_ns(), machine_ns(), time.perf_counter_ns()
    threads.until(times.end_ns)
    spent_ns, busy_ns = cpu_ns() - before_ns, machine_ns() - busy_before_ns
    elapsed_ns = time.perf_counter_ns() - since_ns  # longer than planned if cores are overloaded
    threads.join(WAIT_S)
    facts: dict[str, int] = {}
    for channel in mesh.outgoing.values():
        for name, value in channel.facts().items():
            facts[name] = facts.get(name, 0) + value
    return {
        "cpu_ns": spent_ns,
        "machine_ns": busy_ns,
        "elapsed_ns": elapsed_ns,
        "received": threads.results,
        "facts": facts,
    }


def busiest(places: Sequence[Placement], cpu_ns_each: Sequence[int], elapsed_ns: int) -> float:
    """The load of the busiest core, if each process uses its cores equally."""
    load: dict[int, float] = {}
    for place, spent_ns in zip(places, cpu_ns_each, strict=True):
        for core in place.cores:
            load[core] = load.get(core, 0.0) + spent_ns / len(place.cores) / elapsed_ns
    return max(load.values(), default=0.0)


def others_share(said: Sequence[Config]) -> float | None:
    """The share of the machine that other processes used; None if the run was too short to tell."""
    elapsed_ns: int = max(each["elapsed_ns"] for each in said)
    if elapsed_ns < OTHERS_NS_MIN:
        return None
    busy_ns = max(each["machine_ns"] for each in said) - sum(each["cpu_ns"] for each in said)
    return float(max(busy_ns, 0)) / (elapsed_ns * (os.cpu_count() or 1))


def machine_share(said: Sequence[Config]) -> float:
    """The busy share of all processors of the machine."""
    longest = max(said, key=lambda each: int(each["elapsed_ns"]))
    available_ns: int = longest["elapsed_ns"] * (os.cpu_count() or 1)
    return float(longest["machine_ns"] / available_ns)


def _streams(flows: Sequence[Flow], load: Load, nodes: int) -> list[_Stream]:
    ends = [0] * nodes
    for flow in flows:
        ends[flow.source] += flow.streams
        ends[flow.target] += flow.streams
    made: list[_Stream] = []
    for number, flow in enumerate(flows):
        share = NODE_BYTES // max(ends[flow.source], ends[flow.target])
        fits = min(max(share // load.size_bytes, IN_FLIGHT_MIN), load.in_flight_max)
        for _ in range(flow.streams):
            made.append(
                _Stream(
                    number=len(made),
                    flow=number,
                    source=flow.source,
                    target=flow.target,
                    kind=flow.kind,
                    size_bytes=load.size_bytes,
                    in_flight=fits - fits % 2,
                    # A batch has at most half of the buffers, as buffers are reused by batches.
                    batch=fits // 2
                    if fits // 2 <= load.batch_max
                    else math.gcd(fits // 2, load.batch_max),
                    intervals=load.intervals,
                )
            )
    return made


def run(
    flows: Sequence[Flow],
    places: Sequence[Placement],
    load: Load,
    during: Callable[[Times], None] = lambda _: None,
) -> Config:
    """Runs all flows at once over one timed window; returns their rates, costs and errors.

    `during` is called at the start and may change the network while the flows run.
    """
    streams = _streams(flows, load, len(places))
    configs = [{"me": me, "streams": [asdict(one) for one in streams]} for me in range(len(places))]
    with gang(node, places, configs) as members:
        members.tell("addresses", members.gather("address"))
        members.gather("prepared")
        begin_ns = time.perf_counter_ns() + LEAD_NS
        window_ns = begin_ns + int(load.warmup_s * 1e9)
        end_ns = window_ns + int(load.duration_s * 1e9)
        times = Times(begin_ns, window_ns, end_ns)
        members.tell("start", asdict(times))
        during(times)
        said = members.gather("measured", load.warmup_s + load.duration_s + WAIT_S)
        members.tell("close")
    return _result(flows, streams, places, load, said)


def _result(
    flows: Sequence[Flow],
    streams: Sequence[_Stream],
    places: Sequence[Placement],
    load: Load,
    said: Sequence[Config],
) -> Config:
    counts = np.zeros((len(flows), load.intervals), dtype=np.int64)
    broken = 0
    for received in (one for each in said for one in each["received"]):
        counts[streams[received["stream"]].flow] += received["counts"]
        broken += received["wrong"]
    rates = counts.sum(axis=1) * load.size_bytes / load.duration_s
    peak = counts.sum(axis=0).max() * load.size_bytes * load.intervals / load.duration_s
    total = float(rates.sum())
    spent = [one["cpu_ns"] for one in said]
    sources = {flow.source for flow in flows}
    targets = {flow.target for flow in flows}
    gbytes = total * load.duration_s / 1e9
    found: Config = {
        "size_bytes": load.size_bytes,
        "iterations": int(counts.sum()),
        "counted_messages": int(counts.sum()),
        "peak_bytes_per_s": float(peak),
        "rate_bytes_per_s": total,
        "messages_per_s": float(counts.sum()) / load.duration_s,
        "flow_rates_bytes_per_s": [float(rate) for rate in rates],
        "jain": jain(rates.tolist()),
        "cpu_share": busiest(places, spent, max(one["elapsed_ns"] for one in said)),
        "others_share": others_share(said),
        "machine_share": machine_share(said),
        "timeline_messages": counts.tolist(),
        "checked_messages": sum(one["messages"] for each in said for one in each["received"]),
        "wrong": broken,
    }
    for side, members in (("sender", sources), ("receiver", targets)):
        cpu_s = sum(spent[index] for index in members) / 1e9
        found[f"{side}_cpu_s_per_gbyte"] = cpu_s / gbytes if gbytes else None
    for each in said:
        for name, value in each["facts"].items():
            found[name] = found.get(name, 0) + value
    return found
