"""Helpers of the tests of shared memory: numbered messages, peers, what a process holds."""

import json
import os
import select
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.api import support
from tests.api.support import LOCAL, PATIENCE_S as PATIENCE_S, line, running
from tests.waiting import until
from transport import Connection, Endpoint

MODES = ("auto", "ring")
SEVERAL = "several"  # as auto, with as many threads for each copy as a host with many cores has
WAYS = (*MODES, SEVERAL)
COPIERS = 3
MAPPING = "memfd:weft-local"
RING_BYTES = 256 * 1024  # native/local/lane.h
LONG_BYTES = 64 << 20
VARIETY_BYTES = 1 << 20


def words(mode: str) -> dict[str, Any]:
    """Settings of an endpoint of these tests."""
    if mode == SEVERAL:
        return LOCAL | {"local": "auto", "poll": {"copiers": COPIERS}}
    return LOCAL | {"local": mode}


def variables_of(mode: str) -> dict[str, Any]:
    """The same as environment variables of a child process."""
    several = {"WEFT_LOCAL": "auto", "WEFT_POLL": f"copiers={COPIERS}"}
    return several if mode == SEVERAL else {"WEFT_LOCAL": mode}


def start(
    role: str, *arguments: str, mode: str = "auto", launcher: tuple[str, ...] = (), **variables: str
) -> subprocess.Popen[str]:
    """Starts tests/local/peer.py in a role."""
    variables = variables_of(mode) | variables
    return support.child(
        role, *arguments, launcher=launcher, module="tests.local.peer", **variables
    )


@contextmanager
def served(role: str, *arguments: str, **options: Any) -> Iterator[tuple[Any, bytes]]:
    """Starts a peer that listens; yields its process and its handle."""
    with running(start(role, *arguments, **options)) as process:
        yield process, bytes.fromhex(line(process))


@cache
def numbers(count: int) -> np.ndarray:
    """uint64[count], read-only: any eight bytes of it tell where they are."""
    found = np.arange(count, dtype=np.uint64) * 0x9E3779B97F4A7C15
    found.flags.writeable = False
    return found


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    """The next lines of a process; AssertionError with its stderr if there are fewer."""
    assert process.stdout is not None
    text, descriptor = "", process.stdout.fileno()
    while text.count("\n") < count:
        if select.select([descriptor], [], [], PATIENCE_S)[0]:
            more = os.read(descriptor, 65536).decode()
            text += more
            if more:
                continue
        process.kill()
        raise AssertionError(f"the process printed {text!r}: {process.communicate()[1]}")
    return text.splitlines()


def message(size_bytes: int, number: int) -> np.ndarray:
    """The content of a message, uint8[size_bytes], read-only; other numbers have other contents."""
    begin = number * 8191 % VARIETY_BYTES
    whole = LONG_BYTES if size_bytes > LONG_BYTES // 8 else LONG_BYTES // 8
    return numbers((whole + VARIETY_BYTES) // 8).view(np.uint8)[begin : begin + size_bytes]


def exchange(
    connection: Connection, out: Sequence[int], into: Sequence[int], seed: int = 0
) -> None:
    """Sends and receives messages of the given sizes, all outstanding at once; checks each."""
    memory = [np.full(size + 16, 0xA5, np.uint8) for size in into]
    receives = [connection.irecv_into(one[:-16]) for one in memory]
    sends = [connection.isend(message(size, seed + i)) for i, size in enumerate(out)]
    for request, size in zip(receives, into, strict=True):
        assert request.wait(PATIENCE_S) == size
    for request in sends:
        request.wait(PATIENCE_S)
    for i, (one, size) in enumerate(zip(memory, into, strict=True)):
        assert np.array_equal(one[:-16], message(size, seed + i)), f"message {i} is wrong"
        assert (one[-16:] == 0xA5).all(), f"message {i} was written past its end"


def agree(connection: Connection, out: Sequence[int], into: Sequence[int], seed: int = 0) -> None:
    """Exchanges messages with a peer of the role `exchanges`, which checks those that it gets."""
    plan = {"out": list(into), "into": list(out), "seed": seed}
    connection.send(json.dumps(plan).encode(), timeout_s=PATIENCE_S)
    exchange(connection, out, into, seed)
    assert connection.recv(65536, timeout_s=PATIENCE_S) == b"right"


def alive(connection: Connection, seed: int = 1) -> None:
    """Asserts that a connection to a peer of the role `exchanges` works, for any size."""
    agree(connection, [0, 100, 3 << 20], [RING_BYTES + 1, 7], seed)


def is_local(connection: Connection) -> bool:
    """Whether messages have moved, and none over the network."""
    counters = connection.counters()
    return counters.bytes_sent > 0 and counters.segments_sent == 0


def mappings(pid: int | str = "self") -> int:
    """Number of mappings of shared memory of connections in a process."""
    return Path(f"/proc/{pid}/maps").read_text().count(MAPPING)


def names_of_threads(pid: int | str) -> list[str]:
    """The names of a process's threads."""
    names = []
    for one in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread has just ended
            names.append((one / "comm").read_text().strip())
    return names


def held(pid: int | str = "self") -> dict[str, int]:
    """What a process holds: descriptors, mappings of shared memory and threads.

    One thread is left out: that of the backlog, which starts when it is first needed.
    """
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "mappings": mappings(pid),
        "threads": sum(name != "weft-backlog" for name in names_of_threads(pid)),
    }


def returns_to(before: dict[str, int], pid: int | str = "self") -> None:
    """Waits until a process holds no more than it did."""

    def no_more() -> bool:
        now = held(pid)
        return all(now[what] <= before[what] for what in before)

    until(
        no_more,
        lambda: f"a process holds {held(pid)}, and held {before} before: {names_of_threads(pid)}",
        patience_s=10,
    )


def shared_files() -> set[str]:
    """Files of shared memory on this host, but those of semaphores of other programs."""
    return {one for one in os.listdir("/dev/shm") if "local" in one or "weft" in one}


@contextmanager
def dialled(handle: bytes, mode: str = "auto", **knobs: Any) -> Iterator[Connection]:
    """An endpoint's connection to a peer."""
    with (
        Endpoint(**words(mode), **knobs) as endpoint,
        endpoint.connect(handle, timeout_s=PATIENCE_S) as connection,
    ):
        yield connection
