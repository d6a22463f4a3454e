"""Puts an estimated step into the packet simulator, where queues and shared links show.

What groups of GPUs send to other nodes is simulated (placed.py says between which hosts).
Computation, and what GPUs of one node send each other, take the time that the estimate gives them.
So does the latency of calls and of steps, inside nodes and between them: a host spends it between
two messages that wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from transport.estimate.collectives import CHUNK_BYTES, PIPELINED, Estimate, ShapeError
from transport.estimate.placed import Placed
from transport.estimate.schedule import COMPUTE, IDLE, Graph, Task, run
from transport.estimate.step import Step

# (operation, algorithm) of an estimate -> collective of the simulator. Keys and values of context
# parallel ranks go around a ring as in an AllGather.
COLLECTIVES = {
    ("all_reduce", "ring"): "all_reduce_ring",
    ("all_reduce", "tree"): "all_reduce_double_tree",
    ("all_reduce", "nvls"): "all_reduce_double_tree",
    ("all_gather", "ring"): "all_gather",
    ("all_gather", "pat"): "all_gather_pat",
    ("reduce_scatter", "ring"): "reduce_scatter",
    ("reduce_scatter", "pat"): "reduce_scatter_pat",
    ("all_to_all", "pairs"): "all_to_all",
    ("send", "pairs"): "all_gather",
}
LINK_DELAY_NS = 500  # of a link and its switch; the latency of a step has it, too
QUEUE_BYTES_MIN = 4_000_000  # of a port: as much as a lossless fabric would hold back
SLICES_MAX = 256
PAIRS_AT_ONCE = 4  # messages of a simulated all-to-all that a host has in flight
REPEATS_MAX = 8  # equal operations that are simulated one by one; more are put together
OPERATIONS_MAX = 50_000
MESSAGES_MAX = 8_000_000  # the simulator's own limits are about these
WAITS_MAX = 30_000_000
TOO_MANY = "would be simulated: use fewer --layers, microbatches (--batch) or GPUs"
LIMIT_TIMES = 20  # a simulation that takes this many times the estimate is ended
INSIDE_MIN = 1.01  # factor by which a link inside a node is slower than that between nodes


@dataclass(frozen=True)
class Simulated:
    """tables: the scenario. hosts: nodes of all stages. segments, messages: estimated numbers.

    between: the kinds of communication that are simulated. inside: those that take estimated time.
    """

    tables: dict[str, Any]
    hosts: int
    segments: float
    messages: float
    between: tuple[str, ...]
    inside: tuple[str, ...]


def scenario_of(
    step: Step, tasks: Sequence[Task], step_ns: float, segment_bytes: int, seed: int = 1
) -> Simulated:
    """The scenario of a step and its tasks. ShapeError: why it cannot be simulated.

    step_ns: the estimate, which limits how long the simulation runs.
    """
    network, placed = step.network, Placed(step.plan, step.network.gpus_per_node)
    placed.check()
    made = _Operations(step, placed, segment_bytes)
    made.add_all(tasks)
    hosts, rate = placed.hosts, round(network.between.bytes_per_s * 8)
    leaf = min(hosts, network.sharing.nodes_per_leaf)
    tables = {
        "seed": seed,
        "limit_ns": round(LIMIT_TIMES * step_ns),
        "network": {
            "hosts": -(-hosts // leaf) * leaf,
            "hosts_per_leaf": leaf,
            "spines": leaf,
            "rate": f"{rate} b/s",
            "uplink_rate": f"{round(rate / network.sharing.oversubscription)} b/s",
            "delay_ns": LINK_DELAY_NS,
            "queue_bytes": max(QUEUE_BYTES_MIN, 20 * segment_bytes),
        },
        "hosts": {"segment_bytes": segment_bytes, "burst_bytes_max": max(segment_bytes, 65_536)},
        "workload": [
            {
                "name": step.model.name,
                "pattern": "steps",
                "hosts": list(range(hosts)),
                "operations": made.found,
            }
        ],
    }
    between = tuple(sorted(made.between))
    inside = tuple(sorted(set(step.used) - made.between))
    return Simulated(tables, hosts, made.segments, made.messages, between, inside)


def in_order(tasks: Sequence[Task]) -> Iterator[Task]:
    """The tasks in the order in which they begin, each after those that it waits for."""
    graph = Graph(tasks)
    begins_ns = run(graph).begins_ns
    missing = list(graph.missing)
    ready = [(begins_ns[number], number) for number, count in enumerate(missing) if not count]
    heapify(ready)
    while ready:
        _, number = heappop(ready)
        yield tasks[number]
        for one in graph.later[number]:
            missing[one] -= 1
            if not missing[one]:
                heappush(ready, (begins_ns[one], one))


@dataclass(frozen=True)
class _Shape:
    """A collective among `hosts`: its messages, and what of the buffer each host sends.

    hops: messages that wait for each other. part: that of the buffer in one message. sent: bytes
    that the busiest host sends / size of the buffer. messages: those of all hosts; each waits for
    `waits` others.
    """

    hops: int
    part: float
    sent: float
    messages: float
    waits: float = 1.0


def _shape(collective: str, hosts: int, slices: int) -> _Shape:
    around = (hosts - 1) / hosts
    depth = math.ceil(math.log2(hosts))
    if collective == "all_reduce_double_tree":
        return _Shape(2 * depth, 0.5 / slices, min(hosts / 2, 2.0), 4 * slices * (hosts - 1))
    if collective == "all_reduce_ring":
        return _Shape(2 * (hosts - 1), 1 / hosts, 2 * around, 2 * hosts * (hosts - 1))
    if collective.endswith("pat"):
        return _Shape(depth, 1 / hosts, around, hosts * depth, depth / 2)
    hops = -(-(hosts - 1) // PAIRS_AT_ONCE) if collective == "all_to_all" else hosts - 1
    return _Shape(hops, 1 / hosts, around, hosts * (hosts - 1))


@dataclass
class _Operations:
    """Makes the operations of a scenario.

    ends: task -> the operations after which it has ended. last: the same for the latest task of
    each stage and stream.
    """

    step: Step
    placed: Placed
    segment_bytes: int
    found: list[dict[str, Any]] = field(default_factory=list)
    ends: dict[str, list[str]] = field(default_factory=dict)
    last: dict[tuple[int, str], list[str]] = field(default_factory=dict)
    between: set[str] = field(default_factory=set)
    messages: float = 0.0
    waits: float = 0.0
    segments: float = 0.0

    def add_all(self, tasks: Sequence[Task]) -> None:
        waiting = {name: task.stage for task in tasks for name in task.after}
        for task in in_order(tasks):
            after = self.last.get((task.stage, task.stream), [])
            after = list(
                dict.fromkeys([*after, *(one for t in task.after for one in self.ends[t])])
            )
            ends = self._task(task, after, waiting)
            self.ends[task.name] = self.last[task.stage, task.stream] = ends
            if len(self.found) > OPERATIONS_MAX:
                raise ShapeError(f"more than {OPERATIONS_MAX:,} operations {TOO_MANY}")
            if self.messages > MESSAGES_MAX or self.waits > WAITS_MAX:
                raise ShapeError(f"more than {MESSAGES_MAX:,} messages {TOO_MANY}")

    def _task(self, task: Task, after: list[str], waiting: dict[str, int]) -> list[str]:
        """Adds the operations of a task; returns those after which it has ended."""
        if not task.ns:
            return after
        if task.kind == "pipeline" and task.sent is not None:
            return self._send(task, task.sent, after, waiting[task.name])
        if task.kind not in (COMPUTE, IDLE):
            message = self.step.used[task.kind][0]
            hosts, keys = self.placed.spread(task.kind, message.group)
            if hosts > 1:
                return self._exchange(task, task.sent or message.each, after, hosts, keys)
        return [self._compute(task, task.name, task.stream, task.ns, after)]

    def _add(self, stage: int, keys: dict[str, Any]) -> str:
        self.found.append(keys | self.placed.of_stage(stage))
        return str(keys["name"])

    def _compute(self, task: Task, name: str, stream: str, ns: float, after: list[str]) -> str:
        keys = {"name": name, "stream": stream, "after": after, "compute_ns": max(round(ns), 1)}
        return self._add(task.stage, keys)

    def _wire_bytes(self, one: Estimate, sent_bytes: float) -> float:
        """What a NIC sends, with a protocol's flags, at the rate of the simulated links."""
        network = self.step.network
        far = network.far(one.algorithm)
        protocol = far.protocol(one.protocol) or far.protocols[-1]
        return (
            sent_bytes
            / protocol.part(one.algorithm in PIPELINED)
            * network.between.bytes_per_s
            / far.bytes_per_s
        )

    def _hop_ns(self, latency_ns: float, message_bytes: float) -> int:
        """The latency of a message that the simulated links do not have by themselves."""
        packet_bytes = min(message_bytes, self.segment_bytes)
        packet_ns = packet_bytes / self.step.network.between.bytes_per_s * 1e9
        return max(round(latency_ns - 2 * LINK_DELAY_NS - packet_ns), 0)

    def _exchange(
        self, task: Task, one: Estimate, after: list[str], hosts: int, keys: dict[str, Any]
    ) -> list[str]:
        """Adds the collectives of a task between nodes, and the time of their links inside nodes.

        A task may be several equal operations, one after the other.
        """
        plan = self.step.plan
        if (plan.overlap and task.kind.startswith("tensor")) or (
            plan.overlap_context and task.kind == "context"
        ):
            raise ShapeError(
                f"{task.kind}: what is hidden by parts between nodes cannot be simulated: leave "
                "out --overlap-tensor and --overlap-context"
            )
        self.between.add(task.kind)
        collective = COLLECTIVES[one.operation, one.algorithm]
        times = task.ns / one.time_ns
        turns = times / (hosts - 1) if one.operation == "send" else times
        repeats = min(max(round(turns), 1), REPEATS_MAX)
        sent = self._wire_bytes(one, one.terms.between_bytes) * times / repeats
        slices = 1
        if (
            one.algorithm in PIPELINED
        ):  # each of two trees has half of the data; chunks fill it, too
            buffer = self._wire_bytes(one, one.size_bytes * hosts / one.ranks) * times / repeats
            sent = min(hosts / 2, 2.0) * buffer
            slices = min(max(round(buffer / 2 / CHUNK_BYTES), 8), SLICES_MAX)
        shape = _shape(collective, hosts, slices)
        size = max(round(sent / shape.sent), 1)
        hop_ns = self._hop_ns(one.latency_ns * times / repeats / shape.hops, size * shape.part)
        common = {"stream": task.stream, "collective": collective, "size_bytes": size, **keys}
        common |= {"hop_ns": hop_ns} | ({"slices": slices} if slices > 1 else {})
        for turn in range(repeats):
            name = f"{task.name} {turn}" if repeats > 1 else task.name
            before = [*after, *([f"{task.name} {turn - 1}"] if turn else [])]
            end = self._add(task.stage, {"name": name, "after": before, **common})
        messages = self.placed.nodes / hosts * repeats * shape.messages
        self._count(messages, size * shape.part, shape.waits)
        ends = [end]
        if self._is_inside(one):
            aside = f"{task.stream} inside"
            ends.append(self._compute(task, f"{task.name} inside", aside, task.ns, after))
        return ends

    def _is_inside(self, one: Estimate) -> bool:
        """Whether links inside a node, or to the NIC, need longer than those between nodes."""
        rate = self.step.network.between.bytes_per_s
        between_ns = self._wire_bytes(one, one.terms.between_bytes) / rate * 1e9
        is_wide = self.step.network.sharing.oversubscription <= 1
        longer = one.bytes_ns > INSIDE_MIN * between_ns
        return longer and (is_wide or one.limited_by in ("inside", "pcie"))

    def _send(self, task: Task, sent: Estimate, after: list[str], to: int) -> list[str]:
        """Adds a send to another stage, and its receive there. Inside a node, only its time."""
        if self.step.plan.is_away(task.stage, to, self.placed.gpus_per_node):
            self.between.add(task.kind)
            size = max(round(self._wire_bytes(sent, sent.terms.between_bytes)), 1)
            latency_ns = sent.latency_ns
        else:
            size, latency_ns = 1, sent.time_ns
        common = {"size_bytes": size, "hop_ns": self._hop_ns(latency_ns, size)}
        common |= {"shift": (to - task.stage) * self.placed.nodes}
        name = self._add(
            task.stage,
            {"name": task.name, "stream": task.stream, "after": after, "collective": "send"}
            | common,
        )
        keys = {"name": f"{name} received", "stream": f"{task.stream} received", "after": []}
        self._count(self.placed.nodes, size)
        return [name, self._add(to, keys | {"collective": "receive"} | common)]

    def _count(self, messages: float, message_bytes: float, waits: float = 1.0) -> None:
        self.messages += messages
        self.waits += waits * messages
        self.segments += messages * max(message_bytes / self.segment_bytes, 1)
