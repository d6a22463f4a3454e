"""Runs transfers in a lab: all messages start together, and are timed to their last byte.

It also measures the delay of a message in an idle network.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

import numpy as np

from bench.lib.channels import Mesh, WeftChannel, WeftStation, knobs_of
from bench.lib.launch import Config, Mailbox, gang
from bench.lib.placement import Placement
from bench.lib.traffic import content, cpu_ns, machine_ns
from transport import Endpoint, KnobValue
from transport.endpoint.knobs import merged

LEAD_NS = 200_000_000  # time between connecting and the start, so that queues drain
WAIT_S = 120.0
PING_BYTES = 8
PING_EVERY_S = 0.004
NAME_BYTES = 8  # length of a channel's first message, which identifies the channel
# Engines do not spin, because with more hosts than cores they would delay each other. Window limit
# and RTO suit a slow network: at 50 Mb/s, 256 KiB take 42 ms.
KNOBS: dict[str, KnobValue] = {
    "poll": {"engine": 0},
    "engines": 1,
    "window_bytes_max": 1 << 18,
    "rto": {"min": "100ms"},
}

Pairs = Sequence[tuple[int, int]]


def interrupts_ns() -> int:
    """The whole machine's processor time in interrupts, in which the kernel forwards packets."""
    with open("/proc/stat") as stat:
        hard, soft = map(int, stat.readline().split()[6:8])
    return (hard + soft) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def libraries() -> dict[str, str]:
    """The policy libraries that this process has mapped, with the SHA-256 of each file."""
    mapped = re.compile(r"(/\S*/(?:window|path|loss|credit)_[^/\s]*\.so)$")
    lines = Path("/proc/self/maps").read_text().splitlines()
    files = sorted({match[1] for line in lines if (match := mapped.search(line))})
    return {Path(one).name: hashlib.sha256(Path(one).read_bytes()).hexdigest() for one in files}


class Station(WeftStation):
    """A weft station that also reports the endpoint's parameters for the simulator."""

    def __init__(self, place: Placement, kind: str) -> None:
        self._words = merged(KNOBS, knobs_of(kind.split("/")[1:]))
        super().__init__(place, **self._words)

    def facts(self) -> Config:
        endpoint: Endpoint = self._endpoint
        device = endpoint.devices[0]
        return {
            "link_bytes_per_s": device.speed_mbps * 125_000,
            "mtu_bytes": device.mtu_bytes,
            "sources": {family: one.source_sha256 for family, one in endpoint.policies.items()},
            "libraries": libraries(),
        }


def node(mailbox: Mailbox, place: Placement, config: Config) -> None:
    """The main function of a host: connects, waits for the start, transfers, reports."""
    me, pairs, size = config["me"], config["pairs"], config["size_bytes"]
    mine = [(number, *pair) for number, pair in enumerate(pairs) if me in pair]
    station = Station(place, config["kind"])
    mesh = Mesh()
    try:
        mesh.expect(station, sum(target == me for _, _, target in mine))
        mailbox.tell("address", {"address": station.address, "facts": station.facts()})
        addresses = mailbox.hear("addresses")
        for number, source, target in mine:
            if source == me:
                mesh.dial(station, addresses[target], number)
        mesh.ready()
        work = _ping if "ping" in config else _drive
        mailbox.tell("measured", work(mailbox, mesh, mine, me, size))
        mailbox.hear("close")
    finally:
        mesh.close()
        station.close()


def _drive(
    mailbox: Mailbox, mesh: Mesh, mine: list[tuple[int, int, int]], me: int, size: int
) -> Config:
    """Sends and receives this host's messages, from one thread that sleeps until the start."""
    out = [(number, content(number, size)) for number, source, _ in mine if source == me]
    into = {number: np.zeros(size, np.uint8) for number, _, target in mine if target == me}
    takes = {number: mesh.incoming[number].irecv_into(row) for number, row in into.items()}
    mailbox.tell("prepared")
    begin_ns = mailbox.hear("start")
    time.sleep(max(begin_ns - time.perf_counter_ns(), 0) / 1e9)
    before = (time.perf_counter_ns(), cpu_ns(), machine_ns(), interrupts_ns())
    sends = [mesh.outgoing[number].isend(row) for number, row in out]
    for handle in takes.values():
        handle.wait(WAIT_S)
    placed_ns = time.perf_counter_ns()
    for handle in sends:
        handle.wait(WAIT_S)
    after = (time.perf_counter_ns(), cpu_ns(), machine_ns(), interrupts_ns())
    wrong = sum(not np.array_equal(row, content(number, size)) for number, row in into.items())
    facts: dict[str, int] = {}
    for channel in mesh.outgoing.values():
        for name, value in channel.facts().items():
            facts[name] = facts.get(name, 0) + value
    spent = [late - early for early, late in zip(before, after, strict=True)]
    return {
        "begin_ns": before[0] if out else None,
        "placed_ns": placed_ns if takes else None,
        "spent_ns": spent,
        "wrong": wrong,
        "facts": facts,
    }


def _ping(
    mailbox: Mailbox, mesh: Mesh, mine: list[tuple[int, int, int]], me: int, rounds: int
) -> Config:
    """Sends small messages back and forth with pauses; returns half round trips and RTT samples."""
    mailbox.tell("prepared")
    mailbox.hear("start")
    word = np.zeros(PING_BYTES, np.uint8)
    ((number, source, _),) = mine
    channel = mesh.outgoing[number] if source == me else mesh.incoming[number]
    assert isinstance(channel, WeftChannel)
    half_ns, rtts_ns = [], []
    for _ in range(rounds):
        if source == me:
            time.sleep(PING_EVERY_S)
            back = channel.irecv_into(word)
            begin_ns = time.perf_counter_ns()
            channel.isend(word)
            back.wait(WAIT_S)
            half_ns.append((time.perf_counter_ns() - begin_ns) // 2)
            if len(half_ns) > rounds // 3:
                rtts_ns += channel.path_rtts_ns()
        else:
            channel.irecv_into(word).wait(WAIT_S)
            channel.isend(word).wait(WAIT_S)
    return {"half_ns": half_ns, "rtts_ns": rtts_ns}


def _gather(places: Sequence[Placement], configs: list[Config]) -> tuple[list[Config], Config]:
    with gang(node, places, configs) as members:
        said = members.gather("address")
        members.tell("addresses", [one["address"] for one in said])
        members.gather("prepared")
        members.tell("start", time.perf_counter_ns() + LEAD_NS)
        found = members.gather("measured", WAIT_S)
        members.tell("close")
    return found, said[0]["facts"]


def run(places: Sequence[Placement], kind: str, pairs: Pairs, size: int) -> Config:
    """Sends one message per pair, all at once; times it until the last byte is in memory."""
    configs = [
        {"me": me, "pairs": list(pairs), "size_bytes": size, "kind": kind}
        for me in range(len(places))
    ]
    said, facts = _gather(places, configs)
    begin_ns = min(one["begin_ns"] for one in said if one["begin_ns"] is not None)
    end_ns = max(one["placed_ns"] for one in said if one["placed_ns"] is not None)
    longest = max(said, key=lambda one: int(one["spent_ns"][0]))
    elapsed_ns, _, machine, interrupts = longest["spent_ns"]
    available_ns = elapsed_ns * (os.cpu_count() or 1)
    # The kernel forwards packets in interrupts, or in the time of the process that sent them.
    ours_ns = sum(one["spent_ns"][1] for one in said) + interrupts
    lost: dict[str, int] = {}
    for one in said:
        for name, value in one["facts"].items():
            lost[name] = lost.get(name, 0) + value
    return {
        "fct_ns": end_ns - begin_ns,
        "cpu_share": ours_ns / available_ns,
        "others_share": max(machine - ours_ns, 0) / available_ns,
        "wrong": sum(one["wrong"] for one in said),
        "endpoint": facts,
        **lost,
    }


def idle(places: Sequence[Placement], kind: str, rounds: int) -> Config:
    """Half a round trip of a small message, as measured by a caller and by the core."""
    configs = [
        {"me": me, "pairs": [(0, 1)], "size_bytes": rounds, "kind": kind, "ping": True}
        for me in range(2)
    ]
    said, facts = _gather(places, configs)
    half_ns: list[int] = said[0]["half_ns"]
    rtts_ns: list[int] = [one // 2 for one in said[0]["rtts_ns"]]
    tenths = quantiles(rtts_ns, n=10)
    return {
        "caller_ns": round(median(half_ns)),
        "packet_ns": round(median(rtts_ns)),
        "packet_ns_p10": round(tenths[0]),
        "packet_ns_p90": round(tenths[-1]),
        "rounds": rounds,
        "endpoint": facts,
    }


def knobs(kind: str, in_force: dict[str, str]) -> dict[str, str]:
    """The knobs of an endpoint of contender `kind`, as text; `in_force`: from the environment."""
    return merged(in_force, KNOBS, knobs_of(kind.split("/")[1:]))
