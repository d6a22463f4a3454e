"""Puts an estimated step into the packet simulator, where queues and shared links show.

The scenario has what data parallelism sends between nodes, on one rail: each node is a host of the
simulator with the NIC of one GPU. All other tasks take the time that the estimate gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transport.estimate.collectives import CHUNK_BYTES, PIPELINED, ShapeError
from transport.estimate.schedule import Task
from transport.estimate.step import Step

# (operation, algorithm) of an estimate -> collective of the simulator.
COLLECTIVES = {
    ("all_reduce", "ring"): "all_reduce_ring",
    ("all_reduce", "tree"): "all_reduce_double_tree",
    ("all_reduce", "nvls"): "all_reduce_double_tree",
    ("all_gather", "ring"): "all_gather",
    ("all_gather", "pat"): "all_gather_pat",
    ("reduce_scatter", "ring"): "reduce_scatter",
    ("reduce_scatter", "pat"): "reduce_scatter_pat",
}
SIMULATED = ("gradients", "parameters", "embeddings")  # kinds of communication of data parallelism
HOSTS_PER_LEAF = 16
STEPS = 2
QUEUE_BYTES_MIN = 1_000_000  # smallest queue of a port
SLICES_MAX = 256
LIMIT_TIMES = 20  # a simulation that takes this many times the estimate is ended


@dataclass(frozen=True)
class Simulated:
    """tables: the scenario. hosts: nodes of the job. segments: estimated number that hosts send."""

    tables: dict[str, Any]
    hosts: int
    segments: float


def scenario_of(
    step: Step, tasks: Sequence[Task], step_ns: float, segment_bytes: int, seed: int = 1
) -> Simulated:
    """The scenario of a step and its tasks. ShapeError: there is no data parallelism to simulate.

    step_ns: the estimate, which limits how long the simulation runs.
    """
    plan, network = step.plan, step.network
    for name in ("pipeline", "expert", "context"):
        if getattr(plan, name) > 1:
            raise ShapeError(f"{name}: only data and tensor parallelism can be simulated")
    if plan.shard and plan.group("replicas").ranks > 1:
        raise ShapeError("shard: replicas of shards (HSDP) cannot be simulated")
    hosts = plan.group("data").nodes(network.gpus_per_node)
    if hosts < 2:
        raise ShapeError(
            "all data parallel ranks are on one node: nothing to simulate; raise --data"
        )
    operations = [_operation(task, hosts) for task in tasks]
    rate = round(network.between.bytes_per_s * 8)
    sent = sum(float(one.get("size_bytes", 0)) for one in operations)
    tables = {
        "seed": seed,
        "limit_ns": round(LIMIT_TIMES * STEPS * step_ns),
        "network": {
            "hosts": -(-hosts // HOSTS_PER_LEAF) * HOSTS_PER_LEAF
            if hosts > HOSTS_PER_LEAF
            else hosts,
            "hosts_per_leaf": min(hosts, HOSTS_PER_LEAF),
            "spines": min(hosts, HOSTS_PER_LEAF),
            "rate": f"{rate} b/s",
            "uplink_rate": f"{round(rate / network.sharing.oversubscription)} b/s",
            "queue_bytes": max(QUEUE_BYTES_MIN, 20 * segment_bytes),
        },
        "hosts": {"segment_bytes": segment_bytes, "burst_bytes_max": max(segment_bytes, 65_536)},
        "workload": [
            {
                "name": step.model.name,
                "pattern": "steps",
                "hosts": list(range(hosts)),
                "repeats": STEPS,
                "operations": operations,
            }
        ],
    }
    return Simulated(tables, hosts, STEPS * hosts * 2 * sent / segment_bytes)


def _operation(task: Task, nodes: int) -> dict[str, Any]:
    made: dict[str, Any] = {"name": task.name, "stream": task.stream, "after": list(task.after)}
    one = task.sent
    if one is None or task.kind not in SIMULATED:
        return made | {"compute_ns": max(round(task.ns), 1)}
    # The simulated rank of a node sends what the NIC of one GPU sends. A ring of all ranks sends a
    # little more between nodes than a ring of nodes does.
    is_tree = one.algorithm in PIPELINED
    around = 1.0 if is_tree else (one.ranks - 1) / one.ranks * nodes / (nodes - 1)
    size = max(round(one.size_bytes * around * nodes / one.ranks), 1)
    made |= {"collective": COLLECTIVES[one.operation, one.algorithm], "size_bytes": size}
    if is_tree:  # each tree has half of the data
        made["slices"] = min(max(size // 2 // CHUNK_BYTES, 8), SLICES_MAX)
    return made
