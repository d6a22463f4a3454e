"""Reads the status of a job as NCCL's RAS service tells it: who answers, and who launched what.

NCCL (since 2.24) answers at port 28028 of each host of a job, as JSON since 2.28. The fields are
those of NCCL 2.28.9 (src/ras/client_support.cc; the user guide, "RAS").
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transport.trace.imported import Import
from transport.trace.layout import TraceError

KIND = "nccl-ras"
FILE_BYTES_MAX = 256 << 20
SIZE_MAX = 1 << 20  # ranks of a communicator
TEXT_MAX = 255
COUNT_MAX = 1 << 63
FUNCTIONS_MAX = 64
STATUSES_MAX = 1000
DROPPED_NAMED_MAX = 3
RECORD = "ncclras -f json -v > ras.json"
GREETING = "SERVER PROTOCOL"
# NCCL 2.28.9 leaves out the comma between these two fields of a missing rank.
NO_COMMA = re.compile(r'("nvml_dev": -?\d{1,10})(\s{1,100}"status":)')
TEXT_FORM = re.compile(rb"^(?:Job summary\r?\n=|Communicators\.\.\.)", re.MULTILINE)
JSON_FORM = (b'"nccl_version"', b'"communicators"')
HASH = re.compile(r"0x[0-9a-f]{1,16}")
# Before a status: answers of the service, and what ncclras says on standard error.
WORDS = re.compile(r"\s*(?:(?:SERVER PROTOCOL \d{1,9}|OK|Connect(?:ing to|ion) [^\n]{1,300})\s+)*")
Process = tuple[str, int, int]  # host, process id, CUDA device


@dataclass(frozen=True, slots=True)
class RasRank:
    """A rank that answered. rank: in its communicator. counts: function -> operations launched.

    init_state, error: NCCL's codes (ncclResult_t), 0: nothing. ending: the communicator is being
    finalized or destroyed.
    """

    rank: int
    process: Process
    init_state: int
    error: int
    ending: bool
    counts: Mapping[str, int]

    @property
    def launched(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class RasMissing:
    """A rank that RAS has no data of. answers: its process does. dead: RAS gave its process up."""

    rank: int
    process: Process
    answers: bool
    dead: bool


@dataclass(frozen=True)
class RasComm:
    """A communicator. key: the same in all statuses. comm_id: NCCL's hash, as its logs show it."""

    key: str
    comm_id: int
    size: int
    ranks: tuple[RasRank, ...]
    missing: tuple[RasMissing, ...]

    @property
    def every(self) -> list[RasRank | RasMissing]:
        return [*self.ranks, *self.missing]

    @cached_property
    def members(self) -> dict[Process, int]:
        """Process -> its rank, of all processes that are known."""
        return {one.process: one.rank for one in self.every if is_known(one.process)}

    @property
    def ending(self) -> bool:
        return any(one.ending for one in self.ranks)


@dataclass(frozen=True)
class RasStatus:
    """A status. time_ns: since 1970, as if its zone were that of this host; -1: not told."""

    version: str
    time_ns: int
    comms: tuple[RasComm, ...]

    @cached_property
    def processes(self) -> frozenset[Process]:
        return frozenset(process for comm in self.comms for process in comm.members)

    @cached_property
    def world(self) -> dict[Process, int]:
        """Process -> its rank in the job, by the largest communicator; empty: none has all."""
        whole = [one for one in self.comms if one.members.keys() == self.processes]
        largest = [one.members for one in whole if one.size == max(each.size for each in whole)]
        return largest[0] if largest and all(one == largest[0] for one in largest) else {}

    @cached_property
    def world_size(self) -> int | None:
        sizes = [one.size for one in self.comms if one.members == self.world]
        return max(sizes) if sizes and self.world else None


def is_known(process: Process) -> bool:
    """Whether RAS knows the process of a rank."""
    return process[1] > 0 and process[0] not in ("", "unknown")


class RasStatuses:
    """Reads statuses one after the other; a file may have several of one job."""

    def __init__(self) -> None:
        self.found = Import(KIND)
        self.statuses: list[RasStatus] = []
        self._file: Path | None = None

    def read(self, file: Path) -> None:
        """Reads the statuses in a file. TraceError if it has none."""
        self._file = file
        try:
            if file.stat().st_size > FILE_BYTES_MAX:
                most = f"{FILE_BYTES_MAX >> 20} MiB"
                raise TraceError(f"{file} is larger than {most}: it is no status of RAS")
            text = file.read_bytes().decode("utf-8", "replace")
        except OSError as error:
            raise TraceError(f"cannot read {file}: {error.strerror}") from None
        self.add(text, str(file))

    def add(self, text: str, name: str) -> None:
        """Adds the statuses in a text. name: where it is from, for errors."""
        for status, notes in statuses_in(text, name):
            self.found.notes += notes
            self.statuses.append(status)
        if len(self.statuses) > STATUSES_MAX:
            raise TraceError(f"there are more than {STATUSES_MAX} statuses of RAS: give fewer")

    def finish(self) -> Import:
        """The processes and communicators of the last status, as tables; `statuses` has those of
        its job, in the order of their times."""
        given = self.statuses
        every = [one for at, one in enumerate(given) if one not in given[:at]]
        every.sort(key=lambda one: one.time_ns)
        last = every[-1]
        self.statuses = [one for one in every if one is last or one.processes & last.processes]
        others = len(every) - len(self.statuses)
        if others:
            of = f"{others} of {len(every)} statuses"
            self.found.notes.append(f"{of} are of other processes than the last one: left out")
        self._tables(last)
        return self.found

    def _tables(self, last: RasStatus) -> None:
        """Adds each process that answered. RAS tells addresses and no names, so not its host."""
        for comm in last.comms:
            for one in comm.ranks:
                source = self.found.source(
                    one.process if is_known(one.process) else (comm.key, one.rank),
                    self._file,
                    pid=one.process[1] if is_known(one.process) else None,
                    rank=last.world.get(one.process),
                    world_size=last.world_size,
                )
                self.found.read["ranks of communicators"] += 1
                self.found.add(
                    "comms",
                    source,
                    id=source.next_id(),
                    comm_id=comm.comm_id,
                    name="",
                    ranks=comm.size,
                    rank=one.rank,
                )


def is_status(head: bytes) -> bool:
    """Whether a file with these first bytes has an answer of RAS, in any form."""
    begin = head.lstrip()
    if begin.startswith((b"{", b"Connecting to ", b"Connection timed out")):
        return all(one in head for one in JSON_FORM)
    text = begin.startswith(b"NCCL version") and TEXT_FORM.search(head) is not None
    return text or begin.startswith(GREETING.encode())


def statuses_in(text: str, name: str) -> Iterator[tuple[RasStatus, list[str]]]:
    """Each status in a text of RAS, with notes on what was left out of it.

    name: of the file or service, for errors. TraceError if there is none.
    """
    at, count = WORDS.match(text).end(), 0  # type: ignore[union-attr]
    if at == len(text):
        raise TraceError(f"{name} has no status: RAS did not answer in time, ask it again")
    if not text.startswith("{", at):
        if TEXT_FORM.search(text.encode("utf-8", "replace")):
            raise TraceError(
                f"{name} has RAS's text, which is made for people: record JSON with {RECORD} "
                "(NCCL 2.28 or later)"
            )
        raise TraceError(f"{name} is no status of RAS: record one with {RECORD}")
    text, decoder = NO_COMMA.sub(r"\1,\2", text), json.JSONDecoder()
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError, MemoryError) as error:
            why = getattr(error, "msg", type(error).__name__)
            raise TraceError(f"{name} is no whole status of RAS: {why}") from None
        count += 1
        yield _status(value, f"status {count} in {name}" if count > 1 else name)
        at = WORDS.match(text, at).end()  # type: ignore[union-attr]


def _status(value: Any, name: str) -> tuple[RasStatus, list[str]]:
    comms = value.get("communicators") if isinstance(value, dict) else None
    if not isinstance(comms, list):
        raise TraceError(f"{name} is no status of RAS: it has no communicators")
    made, dropped = [], []
    for one in comms:
        try:
            made.append(_comm(one))
        except _ImpossibleError as error:
            dropped.append(str(error))
    keys = Counter(one.key for one in made)
    whole = tuple(one for one in made if keys[one.key] == 1)
    dropped += [f"communicator {key} is there {n} times" for key, n in keys.items() if n > 1]
    notes = [f"{name}: left out, as no job has it: {why}" for why in dropped[:DROPPED_NAMED_MAX]]
    if dropped[DROPPED_NAMED_MAX:]:
        notes.append(f"{name}: {len(dropped) - DROPPED_NAMED_MAX} more communicators are left out")
    version = value.get("nccl_version")
    shown = version[:TEXT_MAX] if isinstance(version, str) else ""
    return RasStatus(shown, _time_ns(value.get("timestamp")), whole), notes


class _ImpossibleError(ValueError):
    """A communicator that cannot be; the message says what is wrong with it."""


def _comm(value: Any) -> RasComm:
    """A communicator. NCCL 2.28.9 lists some that are made of unrelated memory."""
    if not isinstance(value, dict):
        raise _ImpossibleError("a communicator without fields")
    name, other = value.get("hash"), value.get("secondary_hash", "")
    if not isinstance(name, str) or not HASH.fullmatch(name) or not isinstance(other, str):
        raise _ImpossibleError("a communicator without a hash")
    what = f"communicator {name}"
    size = _whole(value.get("size"), f"size of {what}", 1, SIZE_MAX)
    ranks = tuple(_rank(one, size, what) for one in _list(value, "ranks", what))
    missing = tuple(_missing(one, size, what) for one in _list(value, "missing_ranks", what))
    made = RasComm(f"{name}:{other[:TEXT_MAX]}", int(name, 16), size, ranks, missing)
    if len({one.rank for one in made.every}) != len(made.every):
        raise _ImpossibleError(f"{what} has a rank twice")
    return made


def _list(value: dict[str, Any], key: str, what: str) -> list[dict[str, Any]]:
    found = value.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise _ImpossibleError(f"{key} of {what} is no list of ranks")
    return found


def _rank(value: dict[str, Any], size: int, what: str) -> RasRank:
    rank = _whole(value.get("rank"), f"a rank of {what}", 0, size - 1)
    status = _fields(value, "status", what)
    counts = _fields(value, "collective_counts", what)
    if len(counts) > FUNCTIONS_MAX:
        raise _ImpossibleError(f"{what} counts {len(counts)} functions")
    named = f"of rank {rank} of {what}"
    return RasRank(
        rank,
        _process(value),
        _whole(status.get("init_state", 0), f"init_state {named}", 0, 255),
        _whole(status.get("async_error", 0), f"async_error {named}", 0, 255),
        ending=any(status.get(one) is True for one in ("finalize_called", "destroy_flag"))
        and status.get("abort_flag") is not True,
        counts={
            key[:TEXT_MAX]: _whole(count, f"{key[:TEXT_MAX]} {named}", 0, COUNT_MAX)
            for key, count in counts.items()
        },
    )


def _missing(value: dict[str, Any], size: int, what: str) -> RasMissing:
    status = _fields(value, "status", what)
    return RasMissing(
        _whole(value.get("rank"), f"a missing rank of {what}", 0, size - 1),
        _process(value),
        answers=status.get("unresponsive") is False,
        dead=status.get("considered_dead") is True,
    )


def _fields(value: dict[str, Any], key: str, what: str) -> dict[str, Any]:
    found = value.get(key, {})
    if not isinstance(found, dict):
        raise _ImpossibleError(f"{key} of a rank of {what} has no fields")
    return found


def _process(value: dict[str, Any]) -> Process:
    """The process of a rank; ("", -1, ...) if it is not known."""
    host, pid, device = (value.get(one) for one in ("host", "pid", "cuda_dev"))
    device = device if isinstance(device, int) and 0 <= device < 1 << 16 else -1
    if not isinstance(host, str) or type(pid) is not int or not 0 < pid < 1 << 32:
        return "", -1, device
    return host[:TEXT_MAX], pid, device


def _whole(value: Any, what: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise _ImpossibleError(f"{what} is {str(value)[:40]}")
    return value


def _time_ns(stamp: Any) -> int:
    """The time in a stamp like 2026-01-31 23:59:58, which RAS gives in its host's zone."""
    try:
        return int(time.mktime(time.strptime(str(stamp)[:40], "%Y-%m-%d %H:%M:%S"))) * 10**9
    except (ValueError, OverflowError):
        return -1
