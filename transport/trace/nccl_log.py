"""Reads operations and communicators from logs of NCCL (NCCL_DEBUG=INFO, subsystems INIT, COLL)."""

from __future__ import annotations

import calendar
import gzip
import re
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transport.ground.collectives import whole_bytes
from transport.trace.imported import Import, Source, hashed, size_of
from transport.trace.layout import TraceError
from transport.trace.torch_names import function_of

LINE_MAX = 16_384  # maximum number of characters of a line that are read
WAITING_MAX = 4096  # operations of a process that may wait for their algorithm's log line
HELD_MAX = 50_000  # operations of all processes that may wait for their algorithm's log line
MARK = " NCCL "
ZIPPED = b"\x1f\x8b"
DATATYPES = (
    *("ncclInt8", "ncclUint8", "ncclInt32", "ncclUint32", "ncclInt64", "ncclUint64"),
    *("ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16"),
    *("ncclFloat8e4m3", "ncclFloat8e5m2"),
)
# Names of algorithms and protocols, for which older versions of NCCL print the index.
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
PEER_TO_PEER = ("Send", "Recv")
# Launchers put their own mark in front, such as "[default0]:"; NCCL puts a place in its source
# behind, in lines of warnings.
PROCESS = re.compile(
    r"(?:^|\s|\]:)([^\s:\[\]]{1,255}):(\d{1,10}):(\d{1,10}) \[(-?\d{1,9})\](?: \S{1,200}:\d{1,9})?$"
)
FAILED = re.compile(
    r"NET/IB : Got completion from peer ([^\s<]{1,80})<\d{1,5}> with "
    r"(?:status=|error |status )(\d{1,9})"
)
WATCHDOG = re.compile(
    r"\[Rank (\d{1,9})\] Watchdog caught collective operation timeout: WorkNCCL\("
    r"SeqNum=(\d{1,19}), OpType=(\w{1,40}).{0,200}?\) ran for (\d{1,15}) milliseconds"
)
STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\d*\]")
CALL = re.compile(
    r"(\w{1,40}): opCount ([0-9a-fA-F]{1,16}) sendbuff \S{1,40} recvbuff \S{1,40} "
    r"count (\d{1,20}) datatype (\d{1,9}) op (-?\d{1,20}) root (-?\d{1,10}) "
    r"comm (\S{1,40}) \[nranks=(\d{1,9})\]"
)
MEMBER = re.compile(r"comm (0x[0-9a-fA-F]{1,16}) rank (\d{1,9}) n[rR]anks (\d{1,9})\b")
NODES = re.compile(r" nNodes (\d{1,9}) localRanks \d{1,9} localRank (\d{1,9})\b")
DEVICE = re.compile(r" cudaDev (\d{1,9})\b")
COMM_ID = re.compile(r" commId (0x[0-9a-fA-F]{1,16})\b")
SPLIT = re.compile(
    r" parent (0x[0-9a-fA-F]{1,16}) (?:split|child)Count (\d{1,9}) color (-?\d{1,10})\b"
)
TUNING = re.compile(r"(?:(\w{1,40}): )?(\d{1,20}) Bytes -> Algo (\w{1,20}) proto (\w{1,20})\b")
BOOTSTRAP = re.compile(r"Bootstrap ?: Using \S")
AGE_S_MAX = 65_535
VERSION = re.compile(r"NCCL version (\S{1,40})")
# Copies the algorithm from rank 0, which alone logs it, to the other ranks, which use the same.
_SHARE_ALGORITHMS = """
UPDATE operations SET algorithm = k.algorithm, protocol = k.protocol
FROM (
  SELECT c.process, c.id, o.sequence, o.function, o.bytes, any_value(o.algorithm) AS algorithm,
    any_value(o.protocol) AS protocol
  FROM operations o JOIN comms m ON m.process = o.process AND m.id = o.comm
  JOIN comms c ON c.comm_id = m.comm_id WHERE o.algorithm <> '' GROUP BY ALL) k
WHERE operations.algorithm = '' AND operations.kind = 'collective'
  AND k.process = operations.process AND k.id = operations.comm
  AND k.sequence = operations.sequence AND k.function = operations.function
  AND k.bytes = operations.bytes
"""
# Collectives whose algorithm was not logged; sends and receives have no algorithm.
_VAGUE_ONES = """
algorithm = '' AND function IN ('AllReduce', 'AllGather', 'ReduceScatter', 'Broadcast', 'Reduce')
"""
_VAGUE = f"SELECT count(*) FROM operations WHERE {_VAGUE_ONES}"
_ASSUME_RING = f"UPDATE operations SET algorithm = 'RING' WHERE {_VAGUE_ONES}"
Where = tuple[str, int, int, int]  # host, process id, thread, device


@dataclass(slots=True)
class Comm:
    """A communicator of one process, from the lines that name it. id: the id of its row.

    age_s: for how long its log had not been written when it was read.
    """

    source: Source
    id: int
    ranks: int | None = None
    rank: int | None = None
    nodes: int | None = None
    comm_id: int | None = None
    begin_ns: int | None = None
    end_ns: int | None = None
    started: bool = False
    complete: bool = False
    used: bool = False
    age_s: int = 0
    collectives: int = 0


@dataclass(slots=True)
class _Process:
    """A process by its host and process id.

    comms: address of a communicator -> the communicator.
    waiting: bytes of an operation -> operations whose algorithm is not known yet.
    count: number of operations added to `waiting`.
    """

    comms: dict[str, Comm] = field(default_factory=dict)
    waiting: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    count: int = 0
    made: int = 0  # communicators, those that were destroyed as well


class NcclLogs:
    """Reads logs one after the other. A log may have several processes, a process several logs."""

    def __init__(self, assume_ring: bool = False) -> None:
        self.found = Import("nccl-log")
        self.versions: set[str] = set()
        self._assume_ring = assume_ring
        self._processes: dict[tuple[str, int], _Process] = {}
        self._comms: list[Comm] = []
        self._held: deque[tuple[Source, dict[str, Any]]] = deque()
        # Of the watchdog: rank, sequence number, operation and milliseconds. Of failed transfers:
        # the process's place, the peer and the status.
        self._late: list[tuple[int, int, str, int]] = []
        self._failed: list[tuple[Where, str, int]] = []
        self._bootstrapped: dict[tuple[str, int], tuple[Where, Path]] = {}
        self._age_s = 0
        self._stamp = ("", 0)
        self._file = Path()

    def read(self, file: Path) -> None:
        """Reads one log. TraceError if the file is not a log of NCCL."""
        self._file = file
        self._age_s = _age_s(file)
        before = self._known()
        lines = 0
        for line in read_lines(file):
            at = line.find(MARK)
            self.found.read["lines"] += 1
            where = PROCESS.search(line[:at][-400:]) if at > 0 else None
            if where is None:
                late = WATCHDOG.search(line) if at < 0 else None
                if late is not None:
                    self._late.append((int(late[1]), int(late[2]), late[3], int(late[4])))
                else:
                    self.found.read["lines that are not of NCCL"] += 1
                continue
            lines += 1
            level, _, message = line[at + len(MARK) :].partition(" ")
            if level in ("INFO", "TRACE", "WARN", "VERSION"):
                host, pid, thread, device = where.groups()
                spot = (host, int(pid), int(thread), int(device))
                self._message(message.strip(), spot, self._time(line[:at]))
        if lines == 0 and not self._late:
            raise TraceError(
                f"{file} is no log of NCCL: no line has 'NCCL INFO'; record it with NCCL_DEBUG=INFO"
            )
        if self._known() == before and not self._late and not self._failed:
            raise TraceError(
                f"{file} names no operation and no communicator: "
                "set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING"
            )

    def _known(self) -> tuple[int, int, int]:
        return self.found.read["operations"], len(self._comms), len(self._bootstrapped)

    def finish(self) -> Import:
        """Everything that was read from all logs."""
        while self._held:
            self._let_go()
        self._name_comms()
        self._name_ranks()
        self._add_events()
        for comm in self._comms:
            # A communicator without an id cannot be joined with that of another process.
            name = hashed(comm.source.number, comm.id) if comm.comm_id is None else comm.comm_id
            self.found.add(
                "comms",
                comm.source,
                id=comm.id,
                comm_id=name,
                name="",
                ranks=comm.ranks,
                nodes=comm.nodes,
                rank=comm.rank,
                begin_ns=comm.begin_ns,
                end_ns=comm.end_ns,
            )
        ((vague,),) = self.found.run(_SHARE_ALGORITHMS, _VAGUE)
        if vague and self._assume_ring:
            self.found.run(_ASSUME_RING)
            self.found.notes.append(f"{vague} collectives count as rings (--assume-ring)")
        elif vague:
            self.found.notes.append(
                f"the logs do not tell the algorithm of {vague} collectives, so matrices lack "
                "them: record NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING, or import with --assume-ring"
            )
        unnamed = sum(comm.comm_id is None for comm in self._comms)
        if unnamed:
            self.found.notes.append(
                f"the logs do not tell the ids of {unnamed} communicators, so their ranks cannot "
                "be joined: record NCCL_DEBUG_SUBSYS=INIT,COLL from the start"
            )
        if self.found.read["operations"] == 0:
            self.found.notes.append("there are no operations: NCCL_DEBUG_SUBSYS must name COLL")
        return self.found

    def _name_comms(self) -> None:
        """Joins communicators that no line gives an id: the n-th ones of a size of all processes
        are one, if their ranks are all different."""
        groups: dict[tuple[int, int], list[Comm]] = {}
        turn: Counter[tuple[int, int]] = Counter()
        for comm in self._comms:
            if comm.comm_id is None and comm.ranks is not None and comm.rank is not None:
                at = turn[comm.source.number, comm.ranks]
                turn[comm.source.number, comm.ranks] += 1
                groups.setdefault((comm.ranks, at), []).append(comm)
        joined = 0
        for (ranks, at), comms in groups.items():
            if len({comm.rank for comm in comms}) == len(comms) == ranks:
                joined += len(comms)
                for comm in comms:
                    comm.comm_id = hashed("no id", ranks, at)
        if joined:
            self.found.notes.append(
                f"the logs do not tell the ids of {joined} communicators: they were joined by "
                "size, rank and order"
            )

    def _name_ranks(self) -> None:
        """A process's rank in the largest communicator is its rank in the job."""
        world = max((comm.ranks or 0 for comm in self._comms), default=0)
        for comm in self._comms:
            if comm.ranks == world and comm.rank is not None:
                comm.source.facts |= {"rank": comm.rank, "world_size": world}

    def _add_events(self) -> None:
        """Adds what NCCL and PyTorch report: failed transfers, operations that timed out, and
        initialisations that have not ended."""
        self._add_initialisations()
        of_rank = {comm.rank: comm.source for comm in self._comms if comm.ranks}
        for rank, sequence, operation, ms in self._late:
            source = of_rank.get(rank) or self.found.source(("rank", rank), self._file, rank=rank)
            what = f"{function_of(operation) or operation} {sequence}"
            self.found.add(
                "events", source, time_ns=None, what="collective_timeout", peer=what, value=ms
            )
        for (host, pid, _, device), peer, status in self._failed:
            # A log may name a host in two ways; a process number is one process's in a job's log.
            near = [
                one
                for key, one in self.found.sources.items()
                if isinstance(key, tuple) and key[1:2] == (pid,) and key[0] != "rank"
            ]
            source = near[0] if len(near) == 1 else self._source((host, pid, 0, device), device)
            self.found.add(
                "events", source, time_ns=None, what="transport_error", peer=peer, status=status
            )

    def _add_initialisations(self) -> None:
        """An event for each communicator whose initialisation has not ended, and then for each
        process that came to the bootstrap and made none. Before NCCL 2.23, a communicator is first
        named when all ranks have passed the bootstrap."""
        waiting = [one for one in self._comms if one.started and not (one.complete or one.used)]
        for comm in waiting:
            self.found.add(
                "events",
                comm.source,
                time_ns=comm.begin_ns,
                what="init_started",
                value=comm.id,
                status=comm.age_s,
            )
        for key, (where, file) in self._bootstrapped.items():
            if self._comms and not waiting:
                break
            process = self._processes.get(key)
            if process is None or not process.made:
                host, pid, _, device = where
                source = self.found.source((host, pid, device), file, host=host, pid=pid)
                self.found.add("events", source, time_ns=None, what="bootstrap")

    def _let_go(self) -> None:
        source, row = self._held.popleft()
        self.found.add("operations", source, **row)

    def _time(self, head: str) -> int | None:
        """The time of a line, as if its zone were UTC."""
        stamp = STAMP.search(head)
        if stamp is None:
            return None
        text, digits = stamp.groups()
        if text != self._stamp[0]:
            try:
                seconds = calendar.timegm(time.strptime(text, "%Y-%m-%d %H:%M:%S"))
            except (ValueError, OverflowError):
                return None
            self._stamp = (text, seconds * 10**9)
        return self._stamp[1] + int((digits or "0").ljust(9, "0"))

    def _message(self, message: str, where: Where, at_ns: int | None) -> None:
        process = self._processes.setdefault(where[:2], _Process())
        call = CALL.match(message)
        if call is not None:
            self._call(process, call, where, at_ns)
            return
        if BOOTSTRAP.match(message):
            self._bootstrapped.setdefault(where[:2], (where, self._file))
        failed = FAILED.search(message)
        if failed is not None:
            self._failed.append((where, failed[1], int(failed[2])))
            return
        if ": opCount " in message:
            self.found.unknown["calls that cannot be parsed"] += 1
            return
        member = MEMBER.search(message)
        tuned = TUNING.match(message)
        if member is not None:
            self._member(process, member, message, where, at_ns)
        elif tuned is not None:
            self._tuned(process, tuned)
        else:
            version = VERSION.match(message)
            self.versions |= {version[1]} if version else set()
            self.found.read["other lines of NCCL"] += 1

    def _source(self, where: Where, device: int) -> Source:
        """The process of a device: a process with several devices counts as one for each device."""
        host, pid, _, _ = where
        return self.found.source((host, pid, device), self._file, host=host, pid=pid)

    def _new_comm(self, process: _Process, address: str, where: Where, device: int) -> Comm:
        source = self._source(where, device)
        comm = Comm(source, source.next_id(), age_s=self._age_s)
        self._comms.append(comm)
        process.made += 1
        process.comms[address] = comm
        return comm

    def _member(
        self,
        process: _Process,
        member: re.Match[str],
        message: str,
        where: Where,
        at_ns: int | None,
    ) -> None:
        """Handles a line with a communicator's rank: about its start, its end, or its shape."""
        address, rank, ranks = member[1], int(member[2]), int(member[3])
        if rank >= ranks:
            self.found.unknown["ranks that are not below nranks"] += 1
            return
        comm = process.comms.get(address)
        if message.endswith(("Destroy COMPLETE", "Abort COMPLETE")):
            if comm is not None:
                comm.end_ns = at_ns
                del process.comms[address]
            return
        device = DEVICE.search(message)
        begins = message.endswith("Init START")
        if comm is None or (begins and comm.complete) or (comm.rank, comm.ranks) != (rank, ranks):
            comm = self._new_comm(process, address, where, int(device[1]) if device else where[3])
            comm.rank, comm.ranks = rank, ranks
            self.found.read["communicators"] += 1
        comm.started |= begins
        comm.complete |= message.endswith("Init COMPLETE")
        comm.begin_ns = comm.begin_ns if comm.begin_ns is not None else at_ns
        named, split, nodes = (one.search(message) for one in (COMM_ID, SPLIT, NODES))
        if named is not None:
            comm.comm_id = int(named[1], 16)
        elif split is not None:
            parent = process.comms.get(split[1])
            if parent is not None and parent.comm_id is not None and parent is not comm:
                comm.comm_id = hashed(parent.comm_id, split[2], split[3])
        if nodes is not None:
            comm.nodes = int(nodes[1])
            comm.source.facts["local_rank"] = int(nodes[2])

    def _call(
        self, process: _Process, call: re.Match[str], where: Where, at_ns: int | None
    ) -> None:
        function, _, count_text, type_text, _, root_text, address, ranks_text = call.groups()
        comm = process.comms.get(address)
        if comm is None:
            comm = self._new_comm(process, address, where, where[3])
            comm.ranks = int(ranks_text)
        comm.used = True
        at = int(type_text)
        datatype = DATATYPES[at] if at < len(DATATYPES) else f"type {at}"
        count, root = int(count_text), int(root_text)
        p2p = function in PEER_TO_PEER
        rooted = p2p or function in ("Broadcast", "Reduce", "Gather", "Scatter")
        size = size_of(datatype, count)
        row = {
            "id": comm.source.next_id(),
            "comm": comm.id,
            "function": function,
            "sequence": None if p2p else comm.collectives,
            "kind": "p2p" if p2p else "collective",
            "count": count,
            "datatype": datatype,
            "bytes": size,
            "algorithm": "",
            "protocol": "",
            "root": root if rooted else None,
            "tag": 0,
            "captured": False,
            "called_ns": None,
            "begin_ns": at_ns,
            "end_ns": at_ns,
        }
        comm.collectives += not p2p
        self.found.read["operations"] += 1
        self._held.append((comm.source, row))
        if len(self._held) > HELD_MAX:
            self._let_go()
        if not p2p and size is not None:
            if process.count >= WAITING_MAX:
                process.waiting.clear()
                process.count = 0
            # Some versions of NCCL print the bytes of one rank's call, others those of all ranks.
            for bytes_ in {size, whole_bytes(function, size, comm.ranks or 1)}:
                process.waiting.setdefault(bytes_, []).append(row)
            process.count += 1

    def _tuned(self, process: _Process, tuned: re.Match[str]) -> None:
        """Handles a line with the algorithm of an operation that was called before."""
        function, size, algorithm, protocol = tuned.groups()
        rows = process.waiting.get(int(size), [])
        rows[:] = [row for row in rows if not row["algorithm"]]
        fit = [at for at, row in enumerate(rows) if function in (None, row["function"])]
        self.found.read["algorithms"] += 1
        if not fit:
            self.found.unknown["algorithms of no known call"] += 1
            return
        row = rows.pop(fit[-1])
        row["algorithm"] = _named(algorithm, ALGORITHMS)
        row["protocol"] = _named(protocol, PROTOCOLS)


def _named(word: str, names: Sequence[str]) -> str:
    """The name that a number stands for, or the word in upper case."""
    if word.isdecimal():
        return names[int(word)] if int(word) < len(names) else f"number {int(word)}"
    return word.upper()


def _age_s(file: Path) -> int:
    """For how many seconds a file has not been written; 0 if that is not known."""
    try:
        return max(min(int(time.time() - file.stat().st_mtime), AGE_S_MAX), 0)
    except OSError:
        return 0


def read_lines(file: Path, most: int = LINE_MAX) -> Iterator[str]:
    """The lines of a file, plain or gzip; one of more than `most` bytes is several."""
    try:
        with file.open("rb") as raw:
            zipped = raw.read(2) == ZIPPED
            raw.seek(0)
            source = gzip.GzipFile(fileobj=raw) if zipped else raw
            while line := source.readline(most):
                yield line.decode("utf-8", "replace").rstrip("\r\n")
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise TraceError(f"{file} is damaged: it cannot be decompressed") from None
    except OSError as error:
        raise TraceError(f"cannot read {file}: {error.strerror}") from None
