"""Simulates transfers that ran in a lab, with the same lab file, knobs and messages.

The delays measured in the idle lab are inputs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from bench.lib.fidelity_lab import libraries
from bench.lib.launch import Config
from transport.endpoint.knobs import keys_of
from transport.ground.units import bytes_of, ns_of
from transport.sim import Simulation, parse

# Ethernet, IPv4 and UDP headers, which the lab's token bucket counts in every packet.
WIRE_OVERHEAD_BYTES = 14 + 20 + 8
IP_UDP_BYTES = 20 + 8
SEGMENT_BYTES_MAX = 9_000
# Time before a connection's first message, in which a probe measures the RTT, as in the lab.
# Without an RTT, a policy would estimate the network's rate from the first 8 bytes.
OPEN_NS = 50_000_000
SETTLE_NS = 200_000_000  # time from a connection's first message to the timed message
NAME_BYTES = 8
# Constants of core::StackConfig, which no knob changes.
ACK_BYTES, ACK_DELAY_NS = 256 * 1024, 30_000
LIMIT_NS = 120_000_000_000
FAMILIES = ("window", "path", "loss", "credit")


def schedule(hosts: int, pairs: Sequence[tuple[int, int]], size: int) -> str:
    """A GOAL schedule: each pair sends a short message, like the first of a lab channel, then the
    timed one.
    """
    ranks: list[list[str]] = [[] for _ in range(hosts)]
    for number, (source, target) in enumerate(pairs):
        ranks[source] += [
            f"o{number}: calc {OPEN_NS}",
            f"n{number}: send {NAME_BYTES}b to {target} tag {number}",
            f"n{number} requires o{number}",
            f"w{number}: calc {SETTLE_NS}",
            f"w{number} requires n{number}",
            f"m{number}: send {size}b to {target} tag {number}",
            f"m{number} requires w{number}",
        ]
        for each in (NAME_BYTES, size):
            ranks[target].append(f"recv {each}b from {source} tag {number}")
    lines = [f"num_ranks {hosts}"]
    for rank, operations in enumerate(ranks):
        lines += [f"rank {rank} {{", *operations, "}"]
    return "\n".join(lines) + "\n"


def segment_bytes(knobs: Mapping[str, str], endpoint: Config) -> int:
    """The segment length that the engine would choose."""
    asked = bytes_of(knobs["segment_bytes"])
    return asked or min(endpoint["mtu_bytes"] - IP_UDP_BYTES, SEGMENT_BYTES_MAX)


def hosts_keys(knobs: Mapping[str, str], endpoint: Config, host: Config) -> Config:
    """The table [hosts], from the knobs of the endpoints and delays measured in the idle lab."""
    link = endpoint["link_bytes_per_s"]  # 0: the kernel reports no speed, as for veth devices
    known = {"link_rate": link} if link else {}
    rto, timeout = keys_of(knobs["rto"]), keys_of(knobs["peer_timeout"])
    return known | {
        "delay_ns": host["delay_ns"],
        "jitter_ns": host["jitter_ns"],
        "paths": int(knobs["paths"]) or 32,
        "segment_bytes": segment_bytes(knobs, endpoint),
        "wire_overhead_bytes": WIRE_OVERHEAD_BYTES,
        "receives_ready": False,
        "ack_bytes": ACK_BYTES,
        "ack_delay_ns": ACK_DELAY_NS,
        "window_bytes_max": bytes_of(knobs["window_bytes_max"]),
        "rto_ns_min": ns_of(rto["min"]),
        "rto_ns_max": ns_of(rto["max"]),
        "peer_silence_ns": ns_of(timeout["silence"]),
    }


def text(lab: Path, hosts: Config, policies: Mapping[str, str]) -> str:
    """The scenario's text; without priority queues, because the lab's routers have none."""
    lines = [f"limit_ns = {LIMIT_NS}", "[network]", 'topology = "lab"']
    lines += [f"lab = {json.dumps(str(lab))}", "priority = false", "host_queues = true"]
    lines.append("[hosts]")
    lines += [f"{key} = {json.dumps(value)}" for key, value in hosts.items()]
    lines += ["[policies]", *(f"{key} = {json.dumps(value)}" for key, value in policies.items())]
    lines += ["[[workload]]", 'pattern = "goal"', 'file = "work.goal"']
    return "\n".join(lines) + "\n"


def policies_of(knobs: Mapping[str, str]) -> dict[str, str]:
    return {family: knobs[f"{family}_policy"] for family in FAMILIES}


def run(
    lab: Path,
    hosts: Config,
    policies: Mapping[str, str],
    pairs: Sequence[tuple[int, int]],
    size: int,
    seeds: int,
) -> Config:
    """Simulates the transfers with `seeds` seeds; median time from the start to the last byte."""
    found: list[int | None] = []
    sources: dict[str, str] = {}
    loaded: dict[str, str] = {}
    count = 1 + max(max(pair) for pair in pairs)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "work.goal").write_text(schedule(count, pairs, size))
        scenario = parse(text(lab.resolve(), hosts, policies), folder=Path(folder))
        for seed in range(1, seeds + 1):
            simulation = Simulation(scenario.changed({"seed": seed}))
            while simulation.step():
                pass
            result = simulation.result()
            timed = scenario.work.transfers["bytes"] == size
            if size == NAME_BYTES:
                timed[:] = result.transfers["ready_ns"] >= SETTLE_NS
            mine = result.transfers[timed]
            done = result.finished and result.good and bool((mine["received_ns"] >= 0).all())
            found.append(int(mine["received_ns"].max() - mine["ready_ns"].min()) if done else None)
            sources, loaded = simulation.sources, libraries()
    times = [one for one in found if one is not None]
    return {
        "simulated_ns": round(median(times)) if times else None,
        "simulated_least_ns": min(times, default=None),
        "simulated_most_ns": max(times, default=None),
        "simulated_seeds": seeds,
        "simulated_unfinished": seeds - len(times),
        "sources": sources,
        "libraries": loaded,
    }
