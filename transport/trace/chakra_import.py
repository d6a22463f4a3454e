"""Makes operations of the communication nodes of Chakra's execution traces."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from transport.ground.collectives import ELEMENT_BYTES, PER_RANK
from transport.trace.chakra import COLLECTIVE_NODE, RECV_NODE, SEND_NODE
from transport.trace.chakra_nodes import Node, Value, nodes_of
from transport.trace.file_names import NamedError, rank_of
from transport.trace.imported import Import, Source, hashed
from transport.trace.kernel_names import kernel_name
from transport.trace.layout import TraceError

# CollectiveCommType -> NCCL's function
FUNCTIONS = (
    *("AllReduce", "Reduce", "AllGather", "Gather", "Scatter", "Broadcast", "AlltoAll"),
    *("ReduceScatter", "ReduceScatter", "Barrier"),
)
# Names of the attribute with the process group.
GROUPS = ("pg_name", "comm_group")
US_MAX = 1 << 53
OPERATIONS_MAX = 4_000_000  # of all files, because they are held until the last file is read


class ChakraTraces:
    """Reads traces one after the other; each is of one rank.

    assume_complete: the files are those of all ranks, so the ranks of a process group are those
    whose files name it.
    """

    def __init__(self, assume_complete: bool = False) -> None:
        self.found = Import("chakra")
        self._assume_complete = assume_complete
        self._files: dict[int, _File] = {}

    def read(self, file: Path) -> None:
        """Reads one trace. TraceError if the file is none, or its name does not tell its rank."""
        try:
            rank = rank_of(file.name, last_number=True)
        except NamedError as error:
            raise TraceError(f"{file}: {error}") from None
        if rank is None:
            raise TraceError(f"{file} does not tell its rank: name it NAME.RANK.et")
        if rank in self._files:
            raise TraceError(f"{file} is another file of rank {rank}: import one job at a time")
        source = self.found.source(rank, file, host="", pid=None, rank=rank)
        one = self._files[rank] = _File(self.found, source, rank)
        for node in nodes_of(file):
            self.found.read["nodes"] += 1
            one.add(node)

    def finish(self) -> Import:
        """Everything that was read from all traces."""
        members: dict[str, list[int]] = {}
        for rank, one in sorted(self._files.items()):
            for name in one.groups:
                members.setdefault(name, []).append(rank)
        known = members if self._assume_complete else {}
        for one in self._files.values():
            one.write(known)
        notes = self.found.notes
        if not self.found.read["operations"]:
            notes.append(
                "there are no operations: no node has a comm_type, or a comm_src or comm_dst"
            )
        elif members and not self._assume_complete:
            notes.append(
                "the files do not tell the ranks of process groups, so who sent what in "
                "collectives is not known: if they are those of all ranks, import with "
                "--assume-complete"
            )
        return self.found


class _File:
    """The operations of one rank; they are written when the ranks of groups are known."""

    def __init__(self, found: Import, source: Source, rank: int) -> None:
        self.groups: dict[str, int] = {}
        self._found = found
        self._source = source
        self._rank = rank
        self._peers = 0  # id of the communicator of sends and receives, whose ranks are the job's
        self._rows: list[tuple[str, dict[str, object], int | None]] = []
        self._counts: Counter[str] = Counter()

    def add(self, node: Node) -> None:
        """Adds a node if it communicates."""
        if node.kind == COLLECTIVE_NODE:
            self._collective(node)
        elif node.kind in (SEND_NODE, RECV_NODE):
            self._send(node)

    def _collective(self, node: Node) -> None:
        kind = node.attributes.get("comm_type")
        kernel = kernel_name(node.name)
        function = kernel.function if kernel is not None else None
        if isinstance(kind, int) and 0 <= kind < len(FUNCTIONS):
            function = FUNCTIONS[kind]
        if function is None:
            # Of PyTorch's operators on the CPU, the kernels that they launch have their own nodes.
            if kind is None:
                self._found.read["operators"] += 1
            else:
                self._found.unknown[f"comm_type {kind}"[:40]] += 1
            return
        name = next((str(node.attributes[one]) for one in GROUPS if one in node.attributes), "")
        if name not in self.groups:
            self.groups[name] = self._source.next_id()
        self._counts[name] += 1
        row = {"comm": self.groups[name], "kind": "collective", "root": None, "tag": 0}
        self._row(name, node, function, row | {"sequence": self._counts[name] - 1})

    def _send(self, node: Node) -> None:
        sends = node.kind == SEND_NODE
        peer = _whole(node.attributes.get("comm_dst" if sends else "comm_src"))
        if not self._peers:
            self._peers = self._source.next_id()
        row = {"comm": self._peers, "kind": "p2p", "root": peer, "sequence": None}
        row["tag"] = _whole(node.attributes.get("comm_tag"))
        self._row("", node, "Send" if sends else "Recv", row)

    def _row(self, group: str, node: Node, function: str, row: dict[str, object]) -> None:
        begin_ns, took_ns = (_ns(one) for one in (node.start_us, node.took_us))
        end_ns = None if begin_ns is None else begin_ns + (took_ns or 0)
        kernel = kernel_name(node.name)
        row |= {
            "id": self._source.next_id(),
            "function": function,
            "datatype": kernel.datatype if kernel is not None else None,
            "algorithm": kernel.algorithm if kernel is not None and row["kind"] != "p2p" else "",
            "protocol": "",
            "bytes": _whole(node.attributes.get("comm_size")),
            "begin_ns": begin_ns,
            "end_ns": end_ns,
        }
        if self._found.read["operations"] >= OPERATIONS_MAX:
            self._source.facts["damage"] = f"only the first {OPERATIONS_MAX} operations were read"
            return
        self._found.read["operations"] += 1
        self._rows.append((group, row, took_ns))

    def write(self, members: dict[str, list[int]]) -> None:
        """Adds the rows. members: process group -> its ranks, as far as they are known."""
        for name, id_ in self.groups.items():
            ranks = members.get(name)
            own = () if ranks else (self._rank,)
            self._found.read["communicators"] += 1
            self._found.add(
                "comms",
                self._source,
                id=id_,
                comm_id=hashed("chakra", name, tuple(ranks or ()), *own),
                name=name[:200],
                ranks=len(ranks) if ranks else None,
                rank=ranks.index(self._rank) if ranks else None,
            )
        if self._peers:
            job = {"comm_id": hashed("chakra", "job"), "name": "", "ranks": None}
            self._found.add("comms", self._source, id=self._peers, rank=self._rank, **job)
        for group, row, took_ns in self._rows:
            ranks = members.get(group) if row["kind"] == "collective" else None
            row["bytes"] = _part(str(row["function"]), row["bytes"], len(ranks) if ranks else None)
            element = ELEMENT_BYTES.get(str(row["datatype"]))
            size = row["bytes"]
            row["count"] = size // element if isinstance(size, int) and element else None
            self._found.add("operations", self._source, **row)
            self._kernel(row, took_ns)
        self._rows.clear()

    def _kernel(self, row: dict[str, object], took_ns: int | None) -> None:
        """The time of a node as that of a kernel; where its start is not told, it begins at 0."""
        if not took_ns:
            return
        begin_ns = row["begin_ns"] if isinstance(row["begin_ns"], int) else None
        self._found.add(
            "kernels",
            self._source,
            id=self._source.next_id(),
            operation=row["id"],
            gpu_start_ns=begin_ns or 0,
            gpu_stop_ns=(begin_ns or 0) + took_ns,
            time_ns=None if begin_ns is None else begin_ns + took_ns,
        )


def _part(function: str, size: object, ranks: int | None) -> int | None:
    """The bytes of one rank's part, from those of the rank's input."""
    if not isinstance(size, int):
        return None
    if function in PER_RANK and function not in ("AllGather", "Gather"):
        return size // ranks if ranks else None
    return size


def _whole(value: Value | None) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else None


def _ns(us: int | None) -> int | None:
    return us * 1000 if us is not None and 0 < us < US_MAX else None
