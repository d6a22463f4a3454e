"""The time of a collective operation: latency of its steps, and bytes over its busiest link.

The models are those of the literature: ring and recursive algorithms in Thakur, Rabenseifner and
Gropp, "Optimization of Collective Communication Operations in MPICH" (2005); double binary trees in
Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan"
(2009); the split into latency, protocols and two levels as in NCCL's tuning.cc. PAT: Jeaugey, "PAT:
a new algorithm for all-gather and reduce-scatter operations at scale" (arXiv 2506.20252).
NVLS: NVLink SHARP, whose switches add what the GPUs of a node send; latencies of NCCL's tuning.cc.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from transport.estimate.names import matched
from transport.estimate.networks import Network, Protocol
from transport.estimate.sharing import NEXT_TO_EACH_OTHER, Spread

# Operation -> algorithms that can run it.
ALGORITHMS = {
    "all_reduce": ("ring", "tree"),
    "all_gather": ("ring", "pat"),
    "reduce_scatter": ("ring", "pat"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "all_to_all": ("pairs",),
    "send": ("pairs",),
}


# Trees and chains pass data on in chunks: the last rank gets its first chunk after as many chunk
# times as there are steps. NCCL's chunks have at most 512 KiB, and less if that fills its pipeline.
CHUNK_BYTES = 128 << 10
NVLS = "nvls"  # of an AllReduce, where the switches inside a node can add
NVLS_NS = 25_000.0  # latency of its call
NVLS_LEVEL_NS = 6_900.0  # what a step of its tree between nodes takes beyond one of other trees
PIPELINED = ("tree", NVLS)
PAIRS_AT_ONCE = 8  # sends of an AllToAll; NCCL (2.22 and later) batches this many


class ShapeError(ValueError):
    """An operation that the models do not know, or a wrong number of ranks."""


@dataclass(frozen=True)
class Terms:
    """The steps and bytes of one operation, on the links inside a node and between nodes.

    inside_steps, between_steps: messages that wait for each other. inside_bytes, between_bytes:
    bytes that the busiest link of a GPU carries in one direction, plus the bytes of the chunks for
    which it waits before its first one.
    """

    inside_steps: float
    between_steps: float
    inside_bytes: float
    between_bytes: float


@dataclass(frozen=True)
class Estimate:
    """The time of an operation, and its parts. latency_ns and bytes_ns add up to time_ns.

    limited_by: inside or between (the link whose bytes take longest), pcie (between a GPU and its
    NIC), uplinks (of leaf switches), latency, or launch: the host needs longer to launch the
    operation than the network to run it, and latency_ns includes the difference. nic_ns: how long
    its bytes keep a GPU's NIC, or the uplinks, busy.
    """

    operation: str
    algorithm: str
    protocol: str
    size_bytes: float
    ranks: int
    time_ns: float
    latency_ns: float
    bytes_ns: float
    terms: Terms
    limited_by: str
    nic_ns: float = 0.0

    @property
    def nic_share(self) -> float:
        """Part of its time in which it keeps a GPU's NIC, or the uplinks, busy."""
        return min(self.nic_ns / self.time_ns, 1.0) if self.time_ns else 0.0

    def followed_by(self, outside: Estimate, ranks: int) -> Estimate:
        """The operation of more ranks that goes on outside, over another network."""
        return replace(
            self,
            ranks=ranks,
            time_ns=self.time_ns + outside.time_ns,
            latency_ns=self.latency_ns + outside.latency_ns,
            bytes_ns=self.bytes_ns + outside.bytes_ns,
            limited_by=outside.limited_by if outside.time_ns > self.time_ns else self.limited_by,
        )


def terms(operation: str, algorithm: str, ranks: int, nodes: int, size_bytes: float) -> Terms:
    """The steps and bytes of an operation of `ranks` ranks, spread evenly over `nodes` nodes.

    size_bytes: of the whole buffer, as nccl-tests count it: what a rank of an AllReduce, Broadcast
    or Reduce has; what all ranks together have of an AllGather or ReduceScatter; what one rank
    sends to all in an AllToAll; the message of a send.
    """
    is_nvls = operation == "all_reduce" and algorithm == NVLS
    if algorithm not in ALGORITHMS.get(operation, ()) and not is_nvls:
        known = ", ".join(f"{one} ({', '.join(each)})" for one, each in ALGORITHMS.items())
        raise ShapeError(f"no {operation} by {algorithm}: known are {known}")
    if not 1 <= nodes <= ranks:
        raise ShapeError(f"{ranks} ranks on {nodes} nodes: a node has at least one rank")
    if ranks == 1:
        return Terms(0, 0, 0, 0)
    if algorithm == "pairs":
        return _pairs(operation, ranks, nodes, size_bytes)
    if algorithm in PIPELINED:
        return (_tree if algorithm == "tree" else _nvls)(ranks, nodes, size_bytes)
    return _ring(operation, algorithm, ranks, nodes, size_bytes)


def _ring(operation: str, algorithm: str, ranks: int, nodes: int, size_bytes: float) -> Terms:
    """Rings, and PAT, which moves the same bytes in fewer steps.

    A ring enters and leaves each node once for each of its channels. The channels are spread over
    the NICs of a node's GPUs, so each NIC carries an equal part of what enters the node.
    """
    around = 2 if operation == "all_reduce" else 1
    rooted = operation in ("broadcast", "reduce")
    moved = around * size_bytes * (ranks - 1) / ranks
    if rooted:
        moved = size_bytes + (ranks - 2) * min(CHUNK_BYTES, size_bytes)
    steps = around * (ranks - 1)
    between = around * (nodes - 1) if rooted else around * nodes * (ranks - 1) / ranks
    between = 0 if nodes == 1 else between
    if algorithm == "pat":
        between = math.ceil(math.log2(nodes)) if nodes > 1 else 0
        steps = between + (ranks // nodes - 1)
    per_node = ranks / nodes
    return Terms(
        inside_steps=max(steps - between, 0),
        between_steps=between,
        inside_bytes=moved if per_node > 1 else 0.0,
        between_bytes=moved / per_node if nodes > 1 else 0.0,
    )


def _tree(ranks: int, nodes: int, size_bytes: float) -> Terms:
    """Two binary trees over the nodes, each for half of the data, and a chain inside each node."""
    per_node = ranks / nodes
    steps, between = _between_trees(nodes, per_node, size_bytes)
    return Terms(
        inside_steps=2 * (math.ceil(per_node) - 1),
        between_steps=steps,
        inside_bytes=2 * size_bytes * (per_node - 1) / per_node if per_node > 1 else 0.0,
        between_bytes=between,
    )


def _nvls(ranks: int, nodes: int, size_bytes: float) -> Terms:
    """Trees between nodes, inside of which each GPU adds and spreads its part of the data.

    The switch reads the data of all GPUs for it, and copies the sum to all of them: each GPU sends
    its data once, and the sum of its part.
    """
    per_node = ranks / nodes
    steps, between = _between_trees(nodes, per_node, size_bytes)
    return Terms(0, steps, size_bytes * (1 + 1 / per_node), between)


def _between_trees(nodes: int, per_node: float, size_bytes: float) -> tuple[float, float]:
    """Steps of two binary trees over the nodes, and bytes that each GPU of a node sends.

    In one tree a node is inner: it sends half of the data up, and to each of two children; in the
    other it is a leaf and sends half of the data up. Two nodes have one child, three mostly one.
    """
    if nodes == 1:
        return 0, 0.0
    depth = math.ceil(math.log2(nodes))
    fill = max(2 * depth - 1, 0) * min(CHUNK_BYTES, size_bytes / per_node / 2)
    return 2 * depth, min(2.0, nodes / 2) * size_bytes / per_node + fill


def _pairs(operation: str, ranks: int, nodes: int, size_bytes: float) -> Terms:
    """Every rank sends to every other one, PAIRS_AT_ONCE at a time; a send is one message."""
    per_node = ranks / nodes
    if operation == "send":
        away = nodes > 1
        return Terms(
            0 if away else 1,
            1 if away else 0,
            0.0 if away else size_bytes,
            size_bytes if away else 0.0,
        )
    part = size_bytes / ranks
    turns = math.ceil((ranks - 1) / PAIRS_AT_ONCE)
    return Terms(
        inside_steps=turns if nodes == 1 else 0,
        between_steps=turns if nodes > 1 else 0,
        inside_bytes=part * (per_node - 1),
        between_bytes=part * (ranks - per_node),
    )


def estimate(
    network: Network,
    operation: str,
    size_bytes: float,
    ranks: int,
    *,
    algorithm: str | None = None,
    nodes: int | None = None,
    spread: Spread = NEXT_TO_EACH_OTHER,
) -> Estimate:
    """The time of an operation on a network, by its best protocol and algorithm, or a given one.

    nodes: over how many nodes the ranks are spread; None: over as few as they fit into. spread:
    where these nodes are.
    """
    operation = matched(operation, ALGORITHMS)
    nodes = network.nodes(ranks) if nodes is None else nodes
    known = (*ALGORITHMS.get(operation, ()), *_more(network, operation, ranks, nodes))
    algorithms = known if algorithm is None else (matched(algorithm, known),)
    if NVLS in algorithms and NVLS not in known:
        raise ShapeError(
            f"no {operation} by {NVLS}: it needs nodes of several GPUs whose switches add, as "
            "those of nvlink4 and nvlink5 do"
        )
    if algorithm is None and nodes != ranks:  # NCCL takes PAT only with one GPU a node
        algorithms = tuple(one for one in algorithms if one != "pat")
    if not algorithms:
        raise ShapeError(f"no operation {operation}: known are {', '.join(ALGORITHMS)}")
    made = [
        _timed(network, operation, one, size_bytes, ranks, nodes, protocol, spread)
        for one in algorithms
        for protocol in network.decides(nodes, one).protocols
        if one != NVLS or protocol.name == "Simple"
    ]
    return min(made, key=lambda one: one.time_ns)


def _more(network: Network, operation: str, ranks: int, nodes: int) -> tuple[str, ...]:
    """Algorithms that only some networks have."""
    adds = network.inside is not None and network.inside.adds
    return (NVLS,) if adds and operation == "all_reduce" and ranks > nodes else ()


def _timed(
    network: Network,
    operation: str,
    algorithm: str,
    size_bytes: float,
    ranks: int,
    nodes: int,
    protocol: Protocol,
    spread: Spread,
) -> Estimate:
    need = terms(operation, algorithm, ranks, nodes, size_bytes)
    far = network.far(algorithm)
    inside = network.inside or far
    within = inside.protocol(protocol.name) or inside.protocols[-1]
    between = far.protocol(protocol.name) or far.protocols[-1]
    is_tree, is_nvls = algorithm in PIPELINED, algorithm == NVLS
    latency_ns = NVLS_NS if is_nvls else protocol.base_ns
    latency_ns += need.inside_steps * within.step(is_tree)
    latency_ns += need.between_steps * (between.step(is_tree) + NVLS_LEVEL_NS * is_nvls)
    sharing = network.sharing
    inside_bytes = sharing.inside_bytes(
        operation, algorithm, need.inside_bytes, need.between_bytes, ranks / nodes
    )
    leaf_bytes = sharing.leaf_bytes(operation, algorithm, need.between_bytes, nodes, spread)
    near_part = within.part(is_tree) * (inside.adds if is_nvls else 1.0)
    far_part = between.part(is_tree)
    times_ns = {
        "between": _bytes_ns(far.bytes_per_s * far_part, need.between_bytes),
        "inside": _bytes_ns(inside.bytes_per_s * near_part, inside_bytes),
        "pcie": _bytes_ns(sharing.pcie_bytes_per_s * far_part, need.between_bytes),
        "uplinks": _bytes_ns(far.bytes_per_s * far_part, leaf_bytes),
    }
    bytes_ns = max(times_ns.values())
    if is_tree:
        latency_ns += protocol.filling * math.sqrt(latency_ns * bytes_ns)
    slowest = next(name for name, ns in times_ns.items() if ns == bytes_ns)
    slowest = "latency" if latency_ns > bytes_ns else slowest
    launch_ns = network.decides(nodes, algorithm).launch_ns
    if ranks > 1 and launch_ns > latency_ns + bytes_ns:
        latency_ns, slowest = launch_ns - bytes_ns, "launch"
    return Estimate(
        *(operation, algorithm, protocol.name, size_bytes, ranks),
        time_ns=latency_ns + bytes_ns,
        latency_ns=latency_ns,
        bytes_ns=bytes_ns,
        terms=need,
        limited_by=slowest,
        nic_ns=max(times_ns["between"], times_ns["uplinks"]),
    )


def _bytes_ns(bytes_per_s: float, count: float) -> float:
    """The time that a link needs; 0 if its rate is 0: not known."""
    return count / bytes_per_s * 1e9 if bytes_per_s else 0.0


def algorithm_bytes_per_s(one: Estimate) -> float:
    return one.size_bytes / one.time_ns * 1e9 if one.time_ns > 0 else 0.0
