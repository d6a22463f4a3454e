"""Transfers messages between two processes over softverbs; checks contents and late writes.

`exchange` starts both ends, each of which runs this module. Both ends go through the same list of
fault settings ("weathers"), with a new endpoint for each weather.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.lib.built import TREE
from tests.environment import clean_environment
from tests.softverbs.arrays import ARRAYS
from tests.waiting import PATIENCE_S as PATIENCE_S
from transport.endpoint.knobs import merged

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = TREE / "libweft-softverbs.so"
EXCHANGE_S = 200.0  # time limit for all weathers together
AHEAD = 8  # number of messages in flight
RESTING = 8  # number of buffers that rest, to be checked for late writes before reuse
BEFORE, AFTER = b"\x5a", b"\xa5"

Weather = Mapping[str, str]
Facts = dict[str, Any]


def sizes(count: int, most: int, seed: int) -> list[int]:
    """Message sizes: odd sizes of all magnitudes, 0, and the maximum."""
    draw = random.Random(seed)
    logarithmic = [int(most ** draw.uniform(0, 1)) | 1 for _ in range(count - 2)]
    return [0, *logarithmic, most]


def contents(number: int, size: int) -> bytes:
    """The content of message `number`; it differs between messages and between offsets."""
    return random.Random(number).randbytes(size)


def counted() -> Facts:
    """The counters of this process's provider since its first device was opened."""
    library = ctypes.CDLL(str(LIBRARY))
    library.softverbs_count.restype = ctypes.c_int64
    names = ("sent", "lost", "late", "reordered", "duplicated", "stalled", "refused", "full")
    return {name: library.softverbs_count(name.encode()) for name in names}


@contextlib.contextmanager
def under(weather: Weather) -> Iterator[None]:
    """Sets the environment variables of faults, which softverbs reads at the first open."""
    names = {f"SOFTVERBS_{name}": value for name, value in weather.items()}
    os.environ.update(names)
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def facts(counters: Any) -> Facts:
    return {name: getattr(counters, name) for name in counters.FIELDS}


def receive(endpoint: Any, connection: Any, plan: list[int], most: int) -> Facts:
    """Receives and compares messages; fills used buffers, and checks them before reuse."""
    arrays = ARRAYS[os.environ.get("TRANSFER_ARRAYS", "host")]()
    buffers = [arrays.make(most) for _ in range(AHEAD + RESTING)]
    known = [endpoint.register(buffer) for buffer in buffers]
    wrong = touched = posted = 0
    waiting: deque[tuple[int, Any]] = deque()
    for number, size in enumerate(plan):
        while posted < min(len(plan), number + AHEAD):
            place = posted % len(buffers)
            if posted >= len(buffers):
                touched += arrays.get(buffers[place], most) != BEFORE * most
            waiting.append((place, connection.irecv_into(buffers[place], memory=known[place])))
            posted += 1
        place, handle = waiting.popleft()
        got = handle.wait(timeout_s=PATIENCE_S)
        wrong += got != size or arrays.get(buffers[place], got) != contents(number, size)
        arrays.put(buffers[place], BEFORE * most)
    time.sleep(0.05)  # time for late writes to arrive
    if len(plan) >= len(buffers):
        touched += sum(arrays.get(buffer, most) != BEFORE * most for buffer in buffers)
    return {"wrong": wrong, "touched": touched}


def send(endpoint: Any, connection: Any, plan: list[int], most: int) -> None:
    """Sends from registered memory, and overwrites it as soon as a message is done."""
    arrays = ARRAYS[os.environ.get("TRANSFER_ARRAYS", "host")]()
    buffers = [arrays.make(most) for _ in range(AHEAD)]
    known = [endpoint.register(buffer) for buffer in buffers]
    under_way: deque[tuple[int, Any]] = deque()

    def finish() -> None:
        place, handle = under_way.popleft()
        handle.wait(timeout_s=PATIENCE_S)
        arrays.put(buffers[place], AFTER * most)

    for number, size in enumerate(plan):
        if len(under_way) == AHEAD:
            finish()
        place = number % AHEAD
        arrays.put(buffers[place], contents(number, size))
        part = arrays.part(buffers[place], size)
        under_way.append((place, connection.isend(part, memory=known[place])))
    while under_way:
        finish()


def end(role: str, plans: list[tuple[int, int, int]], weathers: Sequence[Weather]) -> None:
    """Runs one end. For each weather the receiver prints its port, and each end its results."""
    from transport import Endpoint

    for (count, most, seed), weather in zip(plans, weathers, strict=True):
        plan = sizes(count, most, seed)
        with under(weather), Endpoint() as endpoint:
            if role == "receiver":
                with endpoint.listen(open=True) as listener:
                    print(listener.port, flush=True)
                    with listener.accept(timeout_s=PATIENCE_S) as connection:
                        said = receive(endpoint, connection, plan, most)
                        connection.send(b"all of them", timeout_s=PATIENCE_S)
                        connection.recv(16, timeout_s=PATIENCE_S)
                        said["connection"] = facts(connection.counters())
            else:
                port = int(sys.stdin.readline())
                with endpoint.connect("127.0.0.1", port, timeout_s=PATIENCE_S) as connection:
                    send(endpoint, connection, plan, most)
                    assert bytes(connection.recv(16, timeout_s=PATIENCE_S)) == b"all of them"
                    connection.send(b"yes", timeout_s=PATIENCE_S)
                    said = {"connection": facts(connection.counters())}
            said |= {"engine": facts(endpoint.counters()), "provider": counted()}
            print(json.dumps(said), flush=True)


def start(role: str, words: Sequence[str], knobs: Mapping[str, str]) -> subprocess.Popen[str]:
    clean = clean_environment("SOFTVERBS_")
    clean |= {"WEFT_DATAPATH": "verbs", "WEFT_RDMA_LIBRARY": str(LIBRARY), "WEFT_ENGINES": "1"}
    clean |= {"WEFT_PATHS": "4", "WEFT_RDMA": "slots=512", "WEFT_LOG_LEVEL": "error"}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.softverbs.transfer", role, *words],
        cwd=ROOT,
        env=merged(clean, knobs),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def exchange(
    plans: list[tuple[int, int, int]], weathers: Sequence[Weather], **knobs: str
) -> list[tuple[Facts, Facts]]:
    """Runs both ends; returns their results per weather. plans: (count, most bytes, seed)."""
    words = [json.dumps(plans), json.dumps([dict(weather) for weather in weathers])]
    found = []
    with start("receiver", words, knobs) as receiver, start("sender", words, knobs) as sender:
        # Kills both ends at the time limit; a killed end counts as failed.
        def end_both() -> None:
            receiver.kill()
            sender.kill()

        watchdog = threading.Timer(EXCHANGE_S, end_both)
        watchdog.start()
        try:
            assert receiver.stdout is not None
            assert sender.stdout is not None
            assert sender.stdin is not None
            for _ in weathers:
                sender.stdin.write(receiver.stdout.readline())
                sender.stdin.flush()
                lines = [end.stdout.readline() for end in (receiver, sender) if end.stdout]
                if not all(lines):
                    raise RuntimeError("an end failed: see its error above")
                found.append((json.loads(lines[0]), json.loads(lines[1])))
        finally:
            watchdog.cancel()
            receiver.kill()
            sender.kill()
    return found


if __name__ == "__main__":
    end(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]))
