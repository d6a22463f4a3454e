"""Reads Chakra execution traces, one file for each rank, and turns them into a schedule.

Chakra (Sridharan et al., arXiv 2305.14516; MLCommons) describes a training step as a graph of
nodes: computations, messages and collectives, with their dependencies. A file holds protobuf
messages, each after its length: GlobalMetadata, then one Node each; the numbers of their fields are
those of et_def.proto. Needs the package protobuf.

A computation, and a transfer between memories, takes its duration. Collectives become messages:
all-reduce, all-gather and reduce-scatter those of a ring, all-to-all, broadcast, reduce, gather and
scatter direct ones, a barrier an all-reduce of 1 byte. The n-th collective of a process group
(`pg_name`; without one: of all ranks) is the same one on all its ranks. comm_size is in bytes: the
whole buffer of a rank, for an all-gather and a reduce-scatter the larger one.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transport.ground.extras import install
from transport.sim.goal import RANKS_MAX, GoalError, Operation, Schedule, job_of
from transport.sim.key import BYTES_MAX, NS_MAX
from transport.sim.work import Job

COMPUTATION, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7  # enum NodeType
KINDS = (
    *("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all"),
    *("reduce_scatter", "reduce_scatter", "barrier"),
)  # by enum CollectiveCommType; the one of blocks has the same messages
NODES_MAX = 1 << 22
OPERATIONS_MAX = 1 << 22
NODE_BYTES_MAX = 64 << 20
TAG_OF_GROUPS = 1 << 20  # tags of messages of collectives; those of sends are smaller
_SCALARS = {
    "double_val": (3, "DOUBLE"),
    "float_val": (5, "FLOAT"),
    "int32_val": (7, "INT32"),
    "int64_val": (9, "INT64"),
    "uint32_val": (11, "UINT32"),
    "uint64_val": (13, "UINT64"),
    "sint32_val": (15, "SINT32"),
    "sint64_val": (17, "SINT64"),
    "fixed32_val": (19, "FIXED32"),
    "fixed64_val": (21, "FIXED64"),
    "sfixed32_val": (23, "SFIXED32"),
    "sfixed64_val": (25, "SFIXED64"),
    "bool_val": (27, "BOOL"),
    "string_val": (29, "STRING"),
}


class ChakraError(GoalError):
    """A trace is wrong; the message names the file and the node."""


@functools.cache
def messages() -> tuple[Any, Any]:
    """The classes of the messages GlobalMetadata and Node."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        text = f"Chakra traces need protobuf: {install('chakra')} ({error})"
        raise ChakraError(text) from None
    file = descriptor_pb2.FileDescriptorProto(name="weft_chakra.proto", syntax="proto3")
    file.package = "weft.chakra"
    kinds = descriptor_pb2.FieldDescriptorProto

    def add(
        message: Any, name: str, number: int, kind: str, repeated: bool = False, of: str = ""
    ) -> Any:
        label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        made = message.field.add(name=name, number=number, label=label)
        made.type = getattr(kinds, f"TYPE_{kind}")
        if of:
            made.type_name = f".weft.chakra.{of}"
        return made

    attribute = file.message_type.add(name="Attribute")
    attribute.oneof_decl.add(name="value")
    add(attribute, "name", 1, "STRING")
    for name, (number, kind) in _SCALARS.items():
        add(attribute, name, number, kind).oneof_index = 0
    head = file.message_type.add(name="GlobalMetadata")
    add(head, "version", 1, "STRING")
    node = file.message_type.add(name="Node")
    for name, number, kind in (("id", 1, "UINT64"), ("name", 2, "STRING"), ("type", 3, "INT32")):
        add(node, name, number, kind)
    add(node, "ctrl_deps", 4, "UINT64", repeated=True)
    add(node, "data_deps", 5, "UINT64", repeated=True)
    add(node, "duration_micros", 7, "UINT64")
    add(node, "attr", 10, "MESSAGE", repeated=True, of="Attribute")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = [pool.FindMessageTypeByName(f"weft.chakra.{one.name}") for one in (head, node)]
    head_class, node_class = (message_factory.GetMessageClass(one) for one in found)
    return head_class, node_class


@dataclass
class Node:
    """One node of a rank's graph."""

    number: int
    kind: int
    name: str
    needs: tuple[int, ...]  # numbers of nodes that end before it begins
    duration_ns: int
    attributes: dict[str, Any]

    def whole(self, name: str, most: int = BYTES_MAX, default: int | None = None) -> int:
        """An attribute that is a whole number from 0 to `most`; ChakraError if it is not."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            said = "missing" if value is None else f"{value!r:.40}: give from 0 to {most:,}"
            raise ChakraError(f"node {self.number} ({self.name:.40}): {name}: {said}")
        return value


def _sizes(image: bytes) -> Iterator[tuple[int, int]]:
    """Where each message of a file begins and ends; ChakraError if the file is cut."""
    at = 0
    while at < len(image):
        size = shift = 0
        while True:
            if at == len(image) or shift > 28:
                raise ChakraError("the file ends within a message, or is no Chakra trace")
            byte = image[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if size > NODE_BYTES_MAX or at + size > len(image):
            raise ChakraError("the file ends within a message, or is no Chakra trace")
        yield at, at + size
        at += size


def read(image: bytes) -> list[Node]:
    """The nodes of one file. ChakraError if it is no trace."""
    head_class, node_class = messages()
    from google.protobuf.message import DecodeError

    nodes: list[Node] = []
    for index, (begin, end) in enumerate(_sizes(image)):
        made = (head_class if index == 0 else node_class)()
        try:
            made.ParseFromString(image[begin:end])
        except DecodeError as error:
            raise ChakraError(f"message {index} is damaged, or this is no Chakra trace") from error
        if index == 0:
            continue
        if len(nodes) == NODES_MAX:
            raise ChakraError(f"more than {NODES_MAX:,} nodes: cut the trace")
        attributes = {
            one.name: getattr(one, kind) for one in made.attr if (kind := one.WhichOneof("value"))
        }
        needs = tuple(dict.fromkeys((*made.ctrl_deps, *made.data_deps)))
        spent_ns = made.duration_micros * 1_000
        nodes.append(Node(made.id, made.type, made.name, needs, spent_ns, attributes))
    if not nodes:
        raise ChakraError("it has no nodes")
    return nodes


@dataclass
class _Rank:
    """The operations of a rank as they are made, with those that begin and end each node."""

    operations: list[Operation] = field(default_factory=list)
    begins: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, list[int]] = field(default_factory=dict)

    def add(self, node: Node, kind: str, size: int, peer: int = -1, tag: int = 0) -> int:
        self.operations.append(Operation(kind, node.number, size, peer, tag))
        return len(self.operations) - 1

    def alone(self, node: Node, kind: str, size: int, peer: int = -1, tag: int = 0) -> None:
        index = self.add(node, kind, size, peer, tag)
        self.begins[node.number] = self.ends[node.number] = [index]

    def ring(self, node: Node, place: int, group: list[int], steps: int, tag: int) -> None:
        """Each step sends one part of the buffer to the next rank, and waits for one."""
        count, size = len(group), node.whole("comm_size")
        after, before = group[(place + 1) % count], group[place - 1]
        parts = [size // count + (part < size % count) for part in range(count)]
        first: list[int] = []
        last: list[int] = []
        for step in range(steps):
            sent = self.add(node, "send", parts[(place - step) % count], after, tag)
            got = self.add(node, "recv", parts[(place - step - 1) % count], before, tag)
            self.operations[sent].needs += last[-1:]  # a part is sent on once it is here
            first = first or [sent, got]
            last = [sent, got]
        self.begins[node.number], self.ends[node.number] = first, last

    def direct(
        self, node: Node, sends: list[tuple[int, int]], receives: list[tuple[int, int]], tag: int
    ) -> None:
        """Messages of (rank, bytes) that all begin at once."""
        made = [self.add(node, "send", size, peer, tag) for peer, size in sends]
        made += [self.add(node, "recv", size, peer, tag) for peer, size in receives]
        made = made or [self.add(node, "calc", 0)]
        self.begins[node.number] = self.ends[node.number] = made


def _collective(rank: _Rank, node: Node, place: int, group: list[int], tag: int) -> None:
    kind, count = KINDS[node.whole("comm_type")], len(group)
    if kind == "barrier":
        node.attributes["comm_size"] = 1
    size = node.whole("comm_size")
    others = [one for one in group if one != group[place]]
    part = max(size // count, 1)
    if count == 1:
        rank.alone(node, "calc", 0)
    elif kind in ("all_reduce", "barrier"):
        rank.ring(node, place, group, 2 * (count - 1), tag)
    elif kind in ("all_gather", "reduce_scatter"):
        rank.ring(node, place, group, count - 1, tag)
    elif kind == "all_to_all":
        each = [(one, part) for one in others]
        rank.direct(node, each, each, tag)
    else:
        root = node.whole("root_rank", default=group[0])
        if root not in group:
            raise ChakraError(f"node {node.number}: root_rank {root} is not in its group")
        moved = size if kind in ("broadcast", "reduce") else part
        all_others, only_root = [(one, moved) for one in others], [(root, moved)]
        at_root, out = group[place] == root, kind in ("broadcast", "scatter")
        sends = all_others if at_root and out else only_root if not at_root and not out else []
        receives = all_others if at_root and not out else only_root if not at_root and out else []
        rank.direct(node, sends, receives, tag)


def _groups(traces: list[list[Node]]) -> dict[str, list[int]]:
    """The ranks of each process group; ChakraError if their collectives differ."""
    calls: dict[str, dict[int, list[Node]]] = defaultdict(dict)
    for rank, nodes in enumerate(traces):
        for node in nodes:
            if node.kind == COLLECTIVE:
                name = str(node.attributes.get("pg_name", ""))
                if not 0 <= node.whole("comm_type") < len(KINDS):
                    raise ChakraError(f"rank {rank}, node {node.number}: comm_type is unknown")
                calls[name].setdefault(rank, []).append(node)
    for name, by_rank in calls.items():
        said = f"process group {name!r}" if name else "the group of all ranks"
        if not name and len(by_rank) < len(traces):
            lacks = next(rank for rank in range(len(traces)) if rank not in by_rank)
            raise ChakraError(f"{said}: rank {lacks} has no collective in it")
        (first, theirs), *more = by_rank.items()
        for rank, mine in more:
            if len(mine) != len(theirs):
                text = f"rank {first} has {len(theirs)} collectives in it, rank {rank} {len(mine)}"
                raise ChakraError(f"{said}: {text}")
            for one, other in zip(theirs, mine, strict=True):
                if one.attributes.get("comm_type") != other.attributes.get("comm_type"):
                    text = f"node {one.number} of rank {first} and node {other.number} of rank"
                    raise ChakraError(f"{said}: {text} {rank} are of different kinds")
    return {name: sorted(by_rank) for name, by_rank in calls.items()}


def schedule_of(traces: list[list[Node]], ops_per_s: float = 0.0) -> Schedule:
    """The schedule of all ranks' graphs. ops_per_s: for computations that give no duration."""
    groups = _groups(traces)
    tags = {name: TAG_OF_GROUPS + number for number, name in enumerate(groups)}
    ranks: list[list[Operation]] = []
    made = 0
    for number, nodes in enumerate(traces):
        rank = _Rank()
        for node in nodes:
            if node.number in rank.begins:
                raise ChakraError(f"rank {number}: two nodes have the number {node.number}")
            if node.kind == COLLECTIVE:
                name = str(node.attributes.get("pg_name", ""))
                place = groups[name].index(number)
                _collective(rank, node, place, groups[name], tags[name])
            elif node.kind in (SEND, RECEIVE):
                _message(rank, node, number, len(traces))
            else:
                rank.alone(node, "calc", _spent_ns(node, ops_per_s))
            if made + len(rank.operations) > OPERATIONS_MAX:
                text = f"more than {OPERATIONS_MAX:,} messages and computations"
                raise ChakraError(f"{text}: use fewer ranks, or cut the traces")
        made += len(rank.operations)
        _link(rank, nodes, number)
        ranks.append(rank.operations)
    return Schedule(ranks)


def _message(rank: _Rank, node: Node, number: int, ranks: int) -> None:
    sends = node.kind == SEND
    peer = node.whole("comm_dst" if sends else "comm_src")
    tag = node.whole("comm_tag", most=TAG_OF_GROUPS - 1, default=0)
    if peer >= ranks or peer == number:
        text = f"rank {peer}: give another rank, below {ranks}"
        raise ChakraError(f"rank {number}, node {node.number}: {text}")
    rank.alone(node, "send" if sends else "recv", node.whole("comm_size"), peer, tag)


def _spent_ns(node: Node, ops_per_s: float) -> int:
    operations = node.whole("num_ops", most=1 << 63, default=0)
    if node.duration_ns or node.kind != COMPUTATION or not operations:
        return node.duration_ns
    if not ops_per_s:
        text = f"node {node.number} ({node.name}): has num_ops and no duration: give ops_per_s"
        raise ChakraError(text)
    return round(min(operations * 1e9 / ops_per_s, 2.0 * NS_MAX))


def _link(rank: _Rank, nodes: list[Node], number: int) -> None:
    """Lets the operations that begin a node wait for those that end the nodes before it."""
    for node in nodes:
        for before in node.needs:
            if before not in rank.ends:
                text = f"depends on node {before}, which the file lacks"
                raise ChakraError(f"rank {number}, node {node.number}: {text}")
            for index in rank.begins[node.number]:
                rank.operations[index].needs += rank.ends[before]


def files(folder: Path, pattern: str) -> list[Path]:
    """The files of the ranks from 0 on. pattern: a name with {rank}, as "trace.{rank}.et"."""
    if "{rank}" not in pattern:
        raise ChakraError(f"{pattern}: write {{rank}} where the number of the rank stands")
    found: list[Path] = []
    while (file := folder / pattern.replace("{rank}", str(len(found)))).is_file():
        found.append(file)
        if len(found) > RANKS_MAX:
            raise ChakraError(f"{pattern}: more than {RANKS_MAX:,} ranks")
    if len(found) < 2:
        raise ChakraError(f"{file}: no such file: a trace has at least two ranks, from 0 on")
    return found


def load(folder: Path, pattern: str, ops_per_s: float = 0.0) -> tuple[Schedule, Job]:
    """Reads the files of all ranks; returns their schedule and its transfers."""
    traces: list[list[Node]] = []
    for file in files(folder, pattern):
        try:
            traces.append(read(file.read_bytes()))
        except OSError as error:
            raise ChakraError(f"{file}: {error.strerror}") from None
        except ChakraError as error:
            raise ChakraError(f"{file}: {error}") from None
    schedule = schedule_of(traces, ops_per_s)
    try:
        return schedule, job_of(schedule)
    except GoalError as error:  # which speaks of lines of one file
        raise ChakraError(f"{pattern}: {str(error).replace('line ', 'node ', 1)}") from None
