"""Helpers of the simulator tests: they make scenarios from a few lines, and enumerate routes."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.waiting import until
from transport import native
from transport.sim import Scenario, parse
from transport.sim.network import Network


def fabric_is_built() -> bool:
    try:
        return hasattr(native.load(), "Fabric")
    except native.NativeMissingError:
        return False


needs_fabric = pytest.mark.skipif(
    not fabric_is_built(), reason="the extension is not built, or has no fabric: make build"
)


def scenario(network: str, rest: str = "", folder: Path | None = None) -> Scenario:
    """A scenario with the given lines for its network and, by default, a permutation of 10 kB."""
    work = "" if "[[workload]]" in rest else "\n[[workload]]\nsize_bytes = 10_000\n"
    return parse(f"[network]\n{network}\n{rest}{work}", file="test.toml", folder=folder)


def network(text: str, rest: str = "", folder: Path | None = None) -> Network:
    return scenario(text, rest, folder).network


def ways(net: Network, one: int, other: int) -> Counter[tuple[int, ...]]:
    """Every route between two hosts, as its ports; fails if a route does not reach the host."""
    done: Counter[tuple[int, ...]] = Counter()
    group = int(net.group_of[other])
    waiting: list[tuple[int, ...]] = [
        (int(port),) for port in range(net.first_port[one], net.first_port[one + 1])
    ]
    while waiting:
        way = waiting.pop()
        assert len(way) < 10, "a route that does not end"
        node = int(net.ports["to"][way[-1]])
        if node == other:
            done[way] += 1
            continue
        assert node >= net.hosts, "a route through a host"
        own = np.arange(net.first_port[node], net.first_port[node + 1])
        direct = own[net.ports["to"][own] == other]
        if direct.size:
            waiting += [(*way, int(port)) for port in direct]
            continue
        chosen = int(net.route[node - net.hosts, group])
        assert chosen >= 0, f"{net.node_names[node]} has no route to {net.node_names[other]}"
        ports = net.set_of(chosen)
        assert (net.ports["from"][ports] == node).all(), "a set with another node's port"
        waiting += [(*way, int(port)) for port in ports]
    return done


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    found = [int(c) for task in tasks.iterdir() for c in (task / "children").read_text().split()]
    # Leave out the resource tracker of multiprocessing, which is not a worker.
    return [c for c in found if b"resource_tracker" not in Path(f"/proc/{c}/cmdline").read_bytes()]


def wait_for_a_worker(pid: int) -> list[int]:
    workers = min(2, len(os.sched_getaffinity(0)))
    until(lambda: len(children(pid)) >= workers, "no worker started")
    return children(pid)


def wait_until_rows_are_done(pid: int) -> None:
    """Waits until the workers have used so much CPU time that a long run must have begun."""
    until(
        lambda: sum(cpu_seconds(child) for child in children(pid)) > 6.0,
        "the workers did not use 6 s of CPU time",
        patience_s=120,
    )


def wait_until_it_computes(pid: int) -> None:
    """Waits until it has used more CPU time, with its workers, than its start takes."""
    until(
        lambda: cpu_seconds(pid) + sum(cpu_seconds(child) for child in children(pid)) > 4.0,
        "it did not use 4 s of CPU time",
        patience_s=120,
    )


def cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# A policy that keeps its window, and fails if `condition` holds of an event.
_JUDGE = """
from congestion.api import window_policy


def start(flow, params, event, result):
    result.window_bytes = 64.0 * event.segment_bytes


def judge(flow, params, event, result):
    result.window_bytes = 64.0 * event.segment_bytes
    if {condition}:
        raise ValueError("found")


POLICY = window_policy("judge", on_start=start, on_ack=judge, on_loss=judge, on_timeout=judge)
"""


def judge(folder: Path, condition: str) -> Path:
    """A policy's file: see _JUDGE."""
    file = folder / "judge.py"
    file.write_text(_JUDGE.format(condition=condition))
    return file
