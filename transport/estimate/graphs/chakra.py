"""Makes a program, as HLO has them, of an execution trace of Chakra.

Nodes run in the order of their ids, as far as dependencies let them: Chakra's own feeder issues
them so (github.com/mlcommons/chakra, src/feeder). Attributes are those that ASTRA-sim reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path

from transport.estimate.graphs.members import Members
from transport.estimate.hlo.costs import GIVEN
from transport.estimate.hlo.groups import DEVICES_MAX
from transport.estimate.hlo.shapes import Array
from transport.estimate.hlo.text import Computation, HloError, Instruction, Module
from transport.trace.chakra import COLLECTIVE_NODE, RECV_NODE, SEND_NODE
from transport.trace.chakra_import import FUNCTIONS, GROUPS
from transport.trace.chakra_nodes import Node, nodes_of
from transport.trace.file_names import NamedError, rank_of
from transport.trace.layout import TraceError

NODES_MAX = 1 << 20
NUMBER_MAX = 1 << 62
US_MAX = 1 << 53
COMPUTE_NODES = (2, 3, 4)  # memory loads and stores, computation
KINDS = {
    "AllReduce": "all-reduce",
    "AllGather": "all-gather",
    "ReduceScatter": "reduce-scatter",
    "AlltoAll": "all-to-all",
    "Broadcast": "collective-broadcast",
}
TOKEN = Array("token", ())


@dataclass(frozen=True)
class _Sent:
    """What a node communicates. groups: as HLO text; pairs: of source and target."""

    kind: str
    size_bytes: int
    groups: str = ""
    pairs: str = ""


def module_of(file: Path, members: Members) -> tuple[Module, list[str]]:
    """The program of an execution trace, and notes on it. HloError names the node."""
    try:
        nodes, rank = _read(nodes_of(file)), rank_of(file.name, last_number=True)
    except (NamedError, TraceError) as error:
        raise HloError(str(error)) from None
    if not nodes:
        raise HloError(f"{file} has no nodes")
    return _Builder(nodes, members, rank).module(file.stem)


def _read(found: Iterable[Node]) -> dict[int, Node]:
    nodes: dict[int, Node] = {}
    for node in found:
        if node.id is None:
            node.id = 0  # Protocol Buffers leave out zeros
        if node.id in nodes:
            raise HloError(f"a second node {node.id}")
        if len(nodes) == NODES_MAX:
            raise HloError(f"more than {NODES_MAX:,} nodes")
        nodes[node.id] = node
    return nodes


class _Builder:
    """rank: of the trace; None: not known."""

    def __init__(self, nodes: dict[int, Node], members: Members, rank: int | None) -> None:
        self._nodes, self._members, self._rank = nodes, members, rank
        self._entry = Computation("nodes", 1)
        self._sent: dict[int, _Sent] = {}
        self._results: dict[int, str] = {}  # the instruction behind which a node is done
        self._left_out: Counter[str] = Counter()
        self._measured = self._unknown = self._lost = 0

    def module(self, name: str) -> tuple[Module, list[str]]:
        order = self._order()
        for number in order:
            sent = self._communication(self._nodes[number])
            if sent is not None:
                self._sent[number] = sent
        begun: list[int] = []
        for line, number in enumerate(order, 1):
            needs = [
                self._end(one, line) for one in self._nodes[number].needs if one in self._nodes
            ]
            if number in self._sent:
                self._start(self._nodes[number], line, needs)
                begun.append(number)
            else:
                self._results[number] = self._compute(self._nodes[number], line, needs)
        for number in begun:
            self._end(number, len(order))
        self._entry.root = self._entry.instructions[-1]
        devices = max([self._members.devices, *self._ends()])
        module = Module(name, devices, 1, True, {"nodes": self._entry}, self._entry)
        return module, self._notes()

    def _order(self) -> list[int]:
        """The nodes, each behind those that it needs; the smallest id first. HloError: a cycle."""
        waiting: dict[int, int] = {}
        users: dict[int, list[int]] = {}
        for number, node in self._nodes.items():
            needs = {one for one in node.needs if one in self._nodes}
            self._lost += len(set(node.needs)) - len(needs)
            waiting[number] = len(needs)
            for one in needs:
                users.setdefault(one, []).append(number)
        ready = [number for number, count in waiting.items() if not count]
        heapify(ready)
        order = []
        while ready:
            number = heappop(ready)
            order.append(number)
            for one in users.get(number, ()):
                waiting[one] -= 1
                if not waiting[one]:
                    heappush(ready, one)
        if len(order) < len(self._nodes):
            left = sorted(number for number, count in waiting.items() if count)
            shown = ", ".join(map(str, left[:6])) + ", ..." * (len(left) > 6)
            raise HloError(f"nodes wait for each other in a cycle: {shown}")
        return order

    def _add(
        self,
        name: str,
        opcode: str,
        line: int,
        operands: list[str],
        shape: Array = TOKEN,
        attributes: dict[str, str] | None = None,
    ) -> str:
        made = Instruction(name, opcode, shape, tuple(operands), attributes or {}, "", line)
        self._entry.instructions.append(made)
        self._entry.named[name] = made
        return name

    def _start(self, node: Node, line: int, needs: list[str]) -> None:
        """Begins a collective; it sends data of its own, so that no two are taken for equal."""
        sent, name = self._sent[_id(node)], _name(node)
        data = self._add(f"{name}.data", "parameter", line, [], Array("u8", (sent.size_bytes,)))
        attributes = {"use_global_device_ids": "true", "replica_groups": sent.groups}
        if sent.pairs:
            attributes = attributes | {"source_target_pairs": sent.pairs}
        self._add(name, f"{sent.kind}-start", line, [data, *needs], TOKEN, attributes)

    def _end(self, number: int, line: int) -> str:
        """The instruction behind which a node is done; the first that needs a collective waits."""
        if number not in self._results:
            sent, name = self._sent[number], _name(self._nodes[number])
            shape = Array("u8", (sent.size_bytes,))
            done = self._add(f"{name}.done", f"{sent.kind}-done", line, [name], shape)
            # Tokens, as what depends on a collective does not send its data on.
            self._results[number] = self._add(f"{name}.end", "after-all", line, [done])
        return self._results[number]

    def _compute(self, node: Node, line: int, needs: list[str]) -> str:
        attributes = {}
        if node.kind in COMPUTE_NODES and not node.attributes.get("is_cpu_op"):
            flops, moved = (_number(node, key) for key in ("num_ops", "tensor_size"))
            if node.took_us:
                if not 0 < node.took_us <= US_MAX:
                    raise HloError(f"node {node.id} takes {node.took_us} us: at most 2^53")
                self._measured += 1
                attributes = {"ns": str(1_000 * node.took_us)}
            elif flops is None and moved is None:
                self._unknown += 1
            else:
                attributes = {"flops": str(flops or 0), "bytes": str(moved or 0)}
        return self._add(_name(node), GIVEN, line, needs, TOKEN, attributes or {"ns": "0"})

    def _communication(self, node: Node) -> _Sent | None:
        """What a node communicates; None: nothing, or what is left out."""
        if node.kind in (SEND_NODE, RECV_NODE):
            return self._message(node)
        kind = node.attributes.get("comm_type")
        if node.kind != COLLECTIVE_NODE or kind is None:
            return None
        function = FUNCTIONS[kind] if isinstance(kind, int) and 0 <= kind < len(FUNCTIONS) else ""
        if function not in KINDS:
            self._left_out[function or f"comm_type {str(kind)[:20]}"] += 1
            return None
        name = next((str(node.attributes[one]) for one in GROUPS if one in node.attributes), "0")
        groups = self._members.text(name, f"node {node.id}")
        return _Sent(KINDS[function], _size(node), groups)

    def _message(self, node: Node) -> _Sent | None:
        """A message; its own end is the rank of the trace, unless the node states it."""
        source, target = (_number(node, key) for key in ("comm_src", "comm_dst"))
        if node.kind == SEND_NODE:
            source = self._rank if source is None else source
        else:
            target = self._rank if target is None else target
        if source is None or target is None or source == target:
            self._left_out["messages whose two ranks are not known (name the file x.RANK.et)"] += 1
            return None
        if max(source, target) >= DEVICES_MAX:
            raise HloError(f"node {node.id}: a rank of {DEVICES_MAX} or more")
        return _Sent("collective-permute", _size(node), "", f"{{{{{source},{target}}}}}")

    def _ends(self) -> list[int]:
        """One more than each rank that sends or receives."""
        pairs = [one.pairs.strip("{}").split(",") for one in self._sent.values() if one.pairs]
        return [1 + int(rank) for pair in pairs for rank in pair]

    def _notes(self) -> list[str]:
        notes = self._members.all_notes()
        if self._measured:
            notes.append(
                f"computation of {self._measured:,} nodes takes as long as in the trace, whatever "
                "--gpu is"
            )
        if self._unknown:
            notes.append(
                f"computation of {self._unknown:,} nodes is not known (no duration, num_ops or "
                "tensor_size): it counts as none"
            )
        if self._lost:
            notes.append(f"{self._lost:,} dependencies are on nodes that the file does not have")
        if self._left_out:
            kinds = [f"{count} {kind}" for kind, count in self._left_out.most_common(8)]
            notes.append(f"communication that is not judged: {', '.join(kinds)}")
        if self._sent:
            notes.append("collectives that nothing waits for end with the last node")
        return notes


def _id(node: Node) -> int:
    assert node.id is not None
    return node.id


def _name(node: Node) -> str:
    return f"{node.name or 'node'}.{node.id}"


def _size(node: Node) -> int:
    found = _number(node, "comm_size")
    if found is None:
        raise HloError(f"node {node.id} has no comm_size")
    return found


def _number(node: Node, key: str) -> int | None:
    found = node.attributes.get(key)
    if found is None:
        return None
    if not isinstance(found, int) or not 0 <= found <= NUMBER_MAX:
        shown = str(found)[:20] if isinstance(found, str) else "a number out of range"
        raise HloError(f"node {node.id}: {key} is {shown}: expected a whole number up to 2^62")
    return found
