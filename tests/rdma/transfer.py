"""Transfers messages between two processes over queue pairs and compares every byte.

`exchange` starts both ends, `python -m tests.rdma.transfer ROLE` is one of them. Callers set up
netem and faults.
"""

from __future__ import annotations

import ctypes
import json
import math
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.environment import clean_environment
from transport.endpoint.knobs import merged

ROOT = Path(__file__).resolve().parents[2]
BASE_BYTES = 4 << 20
AHEAD = 16
SERVER, CLIENT = "rxea", "rxeb"
SERVER_ADDRESS = "192.0.2.1"
QUIET_S = 0.2  # waiting time for packets in flight, which need milliseconds when emulated
REPORTS = 10

# Emulated processors may not run for up to 70 ms. With the default minimum RTO, 1 ms, such a pause
# would look like the loss of everything in flight.
RTO = "min=200ms"

Facts = dict[str, Any]


def sizes(count: int, most: int, seed: int) -> list[int]:
    """Draws message sizes, log-uniform up to `most` bytes; one in twenty is 0."""
    draw = random.Random(seed)
    return [
        0 if draw.random() < 0.05 else int(math.exp(draw.uniform(0, math.log(most))))
        for _ in range(count)
    ]


class Contents:
    """The content of message number i: a piece of one random block, whose offset depends on i.

    The processor is emulated, so one memcmp compares all bytes; numpy would cost several times as
    much. Buffers are not cleared, because their old contents are random too.
    """

    def __init__(self) -> None:
        self.block = bytearray(random.Random(1).randbytes(BASE_BYTES) * 2)
        self.address = address(self.block)

    def of(self, number: int, count: int) -> memoryview:
        assert count <= BASE_BYTES
        start = number * 1_000_003 % BASE_BYTES
        return memoryview(self.block)[start : start + count]

    def are(self, number: int, count: int, memory_address: int) -> bool:
        """Whether the bytes are exactly the content of message `number`."""
        assert count <= BASE_BYTES
        return not _memcmp(self.address + number * 1_000_003 % BASE_BYTES, memory_address, count)


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memcmp.restype = ctypes.c_int


def address(memory: bytearray) -> int:
    """The address of the memory, which must not be resized afterwards."""
    return ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory))


def facts(counters: Any) -> Facts:
    return {name: getattr(counters, name) for name in counters.FIELDS}


def serve(count: int, most: int, seed: int) -> None:
    from transport import Endpoint

    contents, wrong, total = Contents(), 0, 0
    memory = [bytearray(most) for _ in range(min(AHEAD, count))]
    places = [address(buffer) for buffer in memory]
    with Endpoint() as endpoint, endpoint.listen(open=True) as listener:
        print(listener.port, flush=True)
        with listener.accept(timeout_s=300) as connection:
            # Register the buffers, so that the NIC writes into them with
            # WEFT_RDMA=placement=direct.
            known = [endpoint.register(buffer) for buffer in memory]
            waiting = deque(
                connection.irecv_into(buffer, memory=block)
                for buffer, block in zip(memory, known, strict=True)
            )
            begun_s = time.monotonic()
            for number, expected in enumerate(sizes(count, most, seed)):
                got = waiting.popleft().wait(timeout_s=300)
                place = number % AHEAD
                wrong += got != expected or not contents.are(number, got, places[place])
                total += got
                if number + AHEAD < count:
                    waiting.append(connection.irecv_into(memory[place], memory=known[place]))
                if (number + 1) % max(count // REPORTS, 1000) == 0:
                    rate = total / (time.monotonic() - begun_s) / 1e6
                    so_far = f"{number + 1} of {count}: {rate:.2f} MB/s, {wrong} wrong"
                    print(so_far, file=sys.stderr)
            took_s = time.monotonic() - begun_s
            connection.send(b"all of them")
            time.sleep(QUIET_S)  # late copies arrive meanwhile, and are counted
            said: Facts = {"wrong": wrong, "bytes": total, "seconds": took_s}
            said |= {"connection": facts(connection.counters())}
            print(json.dumps(said | {"engine": facts(endpoint.counters())}), flush=True)


def send(port: int, count: int, most: int, seed: int) -> None:
    from transport import Endpoint

    contents = Contents()
    with Endpoint() as endpoint, endpoint.connect(SERVER_ADDRESS, port) as connection:
        under_way: deque[Any] = deque()
        memory = endpoint.register(contents.block)
        for number, size in enumerate(sizes(count, most, seed)):
            under_way.append(connection.isend(contents.of(number, size), memory=memory))
            if len(under_way) == AHEAD:
                under_way.popleft().wait(timeout_s=300)
        while under_way:
            under_way.popleft().wait(timeout_s=300)
        assert bytes(connection.recv(64)) == b"all of them"
        paths = [facts(path) for path in connection.counters().paths]
        said: Facts = {"connection": facts(connection.counters()), "paths": paths}
        print(json.dumps(said | {"engine": facts(endpoint.counters())}), flush=True)
        time.sleep(2 * QUIET_S)  # the receiver needs the connection until it has read its counters


@dataclass(frozen=True)
class Outcome:
    """The counters of both ends."""

    receiver: Facts
    sender: Facts

    @property
    def wrong(self) -> int:
        return int(self.receiver["wrong"])

    @property
    def resent(self) -> int:
        return int(self.sender["connection"]["segments_resent"])

    @property
    def sent(self) -> int:
        return int(self.sender["connection"]["segments_sent"])

    @property
    def duplicates(self) -> int:
        return int(self.receiver["connection"]["segments_duplicate"])

    @property
    def lost(self) -> int:
        """Segments sent and not received; exact unless the network duplicates packets."""
        came = int(self.receiver["connection"]["segments_received"]) + self.duplicates
        return self.sent + self.resent - came

    def resends_allowed(self, lost: int) -> float:
        """Expected resends at most: 1.5 times the losses, plus those after a pause of the host.

        After a pause longer than any timeout each path resends its oldest segment once.
        """
        return 1.5 * lost + len(self.sender["paths"])

    @property
    def mbytes_per_s(self) -> float:
        return float(self.receiver["bytes"]) / float(self.receiver["seconds"]) / 1e6


def exchange(
    mode: str,
    count: int,
    most: int = 256 << 10,
    *,
    seed: int = 1,
    timeout_s: float = 300,
    receiver: Mapping[str, str] | None = None,
    sender: Mapping[str, str] | None = None,
    **knobs: str,
) -> Outcome:
    """Sends `count` messages of up to `most` bytes from rxeb to rxea, with knobs for each end."""
    clean = clean_environment()
    clean |= {"WEFT_DATAPATH": "verbs", "WEFT_RDMA": f"mode={mode},slots=1024"}
    clean = merged(clean, {"WEFT_ENGINES": "1", "WEFT_PATHS": "16", "WEFT_RTO": RTO}, knobs)
    words = [str(count), str(most), str(seed)]
    command = [sys.executable, "-m", "tests.rdma.transfer"]
    with subprocess.Popen(
        [*command, "serve", *words],
        cwd=ROOT,
        env=merged(clean, {"WEFT_RDMA_DEVICES": SERVER}, receiver or {}),
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            port = server.stdout.readline().strip()
            done = subprocess.run(
                [*command, "send", port, *words],
                cwd=ROOT,
                env=merged(clean, {"WEFT_RDMA_DEVICES": CLIENT}, sender or {}),
                stdout=subprocess.PIPE,
                text=True,
                timeout=timeout_s,
                check=False,
            )
            said, _ = server.communicate(timeout=60) if done.returncode == 0 else ("", None)
        finally:
            server.kill()
    if done.returncode != 0 or server.returncode != 0:
        raise RuntimeError(
            f"{mode}: transfer failed: exit status {done.returncode} of the sender, "
            f"{server.returncode} of the receiver"
        )
    return Outcome(json.loads(said.splitlines()[-1]), json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    role, *words = sys.argv[1:]
    numbers = [int(word) for word in words]
    if role == "serve":
        serve(*numbers)
    else:
        send(*numbers)


if __name__ == "__main__":
    main()
