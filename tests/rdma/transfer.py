"""Decides whether messages arrive whole over queue pairs: two processes, checked byte by byte.

Never sets up the network: netem and faults are its callers' matter. `exchange` starts both ends,
`python -m tests.rdma.transfer ROLE` is one of them.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
BASE_BYTES = 8 << 20
AHEAD = 16
SERVER, CLIENT = "rxea", "rxeb"
SERVER_ADDRESS = "192.0.2.1"

Facts = dict[str, Any]


def sizes(count: int, most: int, seed: int) -> list[int]:
    """Log-uniform from 0 to `most` bytes, one in twenty empty."""
    draw = random.Random(seed)
    return [
        0 if draw.random() < 0.05 else int(math.exp(draw.uniform(0, math.log(most))))
        for _ in range(count)
    ]


class Contents:
    """What message number i holds: a piece of one random block, at a place of its own."""

    def __init__(self) -> None:
        block = np.random.default_rng(1).integers(0, 256, BASE_BYTES, np.uint8)
        self.block = np.concatenate([block, block])

    def of(self, number: int, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        start = number * 1_000_003 % BASE_BYTES
        return self.block[start : start + count]


def facts(counters: Any) -> Facts:
    return {name: getattr(counters, name) for name in counters.FIELDS}


def serve(count: int, most: int, seed: int) -> None:
    from transport import Endpoint

    contents, wrong, total = Contents(), 0, 0
    with Endpoint() as endpoint, endpoint.listen() as listener:
        print(listener.port, flush=True)
        with listener.accept(timeout_s=60) as connection:
            memory = [np.zeros(most, np.uint8) for _ in range(AHEAD)]
            waiting = deque(connection.irecv_into(memory[i].data) for i in range(min(AHEAD, count)))
            begun_s = time.monotonic()
            for number, expected in enumerate(sizes(count, most, seed)):
                got = waiting.popleft().wait(timeout_s=300)
                buffer = memory[number % AHEAD]
                same = got == expected and np.array_equal(
                    buffer[:got], contents.of(number, expected)
                )
                wrong += not same
                total += got
                buffer[:got] = 0xA5
                if number + AHEAD < count:
                    waiting.append(connection.irecv_into(buffer.data))
            took_s = time.monotonic() - begun_s
            connection.send(b"all of them")
            said: Facts = {"wrong": wrong, "bytes": total, "seconds": took_s}
            said |= {"connection": facts(connection.counters())}
            print(json.dumps(said | {"engine": facts(endpoint.counters())}), flush=True)


def send(port: int, count: int, most: int, seed: int) -> None:
    from transport import Endpoint

    contents = Contents()
    with Endpoint() as endpoint, endpoint.connect(SERVER_ADDRESS, port) as connection:
        under_way: deque[Any] = deque()
        for number, size in enumerate(sizes(count, most, seed)):
            under_way.append(connection.isend(contents.of(number, size).data))
            if len(under_way) == AHEAD:
                under_way.popleft().wait(timeout_s=300)
        while under_way:
            under_way.popleft().wait(timeout_s=300)
        assert bytes(connection.recv(64)) == b"all of them"
        paths = [facts(path) for path in connection.counters().paths]
        said = {"connection": facts(connection.counters()), "paths": paths}
        print(json.dumps(said | {"engine": facts(endpoint.counters())}), flush=True)


@dataclass(frozen=True)
class Outcome:
    """What both ends counted."""

    receiver: Facts
    sender: Facts

    @property
    def wrong(self) -> int:
        return int(self.receiver["wrong"])

    @property
    def resent(self) -> int:
        return int(self.sender["connection"]["segments_resent"])

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
    **knobs: str,
) -> Outcome:
    """`count` messages of up to `most` bytes from rxeb to rxea."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_")}
    clean |= {"WEFT_DATAPATH": "verbs", "WEFT_RDMA_MODE": mode, "WEFT_ENGINES": "1"}
    clean |= {"WEFT_PATHS": "16", "WEFT_RDMA_SLOTS": "1024"} | knobs
    words = [str(count), str(most), str(seed)]
    command = [sys.executable, "-m", "tests.rdma.transfer"]
    with subprocess.Popen(
        [*command, "serve", *words],
        cwd=ROOT,
        env=clean | {"WEFT_RDMA_DEVICES": SERVER},
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            port = server.stdout.readline().strip()
            done = subprocess.run(
                [*command, "send", port, *words],
                cwd=ROOT,
                env=clean | {"WEFT_RDMA_DEVICES": CLIENT},
                stdout=subprocess.PIPE,
                text=True,
                timeout=timeout_s,
                check=False,
            )
            said, _ = server.communicate(timeout=60)
        finally:
            server.kill()
    if done.returncode != 0 or server.returncode != 0:
        raise RuntimeError(f"{mode}: sender {done.returncode}, receiver {server.returncode}")
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
