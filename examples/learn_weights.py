"""Learns path weights from the loss of each path, in plain NumPy, beside the data path.

A Python thread reads counters and writes weights a hundred times a second; packets never wait for
it.
Two of eight paths lose a fifth of their datagrams (injected), and their weights fall.
Run it: python -m examples.learn_weights
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from transport import Connection, ControlLoop, Endpoint, Telemetry

PATHS = 8
BAD_PATHS = (0, 1)
MESSAGE_BYTES = 1 << 20
ROUNDS = 5  # even and learned weights alternate, so that other load affects both alike
SECONDS = 0.5  # time for which traffic runs before the weights change from even to learned or back
KNOBS: dict[str, Any] = {"interfaces": "lo", "local": "off", "engines": 1, "paths": PATHS}
FAULTS: dict[str, Any] = {"loss": 0.2, "paths": "+".join(map(str, BAD_PATHS))}


class Learner:
    """Multiplicative weights (Arora, Hazan, Kale, 2012): a path's loss lowers its weight.

    Each step also moves every weight towards the best one (fixed share: Herbster, Warmuth, 1998),
    because otherwise a random difference between equal paths would become permanent.
    """

    def __init__(self, paths: int, rate: float = 2.0, back: float = 0.02) -> None:
        self.weight = np.ones(paths)
        self.rate, self.back = rate, back  # back > 0 keeps every path in use and measured

    def __call__(self, telemetry: Telemetry) -> dict[str, dict[str, Any]] | None:
        for seen in telemetry.connections:
            if seen.segments_sent_delta.sum() < 100:
                return None
            self.weight *= np.exp(-self.rate * seen.loss_share)
        self.weight /= self.weight.max()
        self.weight += self.back * (1.0 - self.weight)
        return {"path": {"weight": self.weight}}


def transfer(here: Connection, there: Connection, stop: threading.Event) -> int:
    """Sends messages one way until `stop` is set; returns the number of bytes."""
    out, into = bytearray(MESSAGE_BYTES), bytearray(MESSAGE_BYTES)
    moved = 0
    while not stop.is_set():
        request = there.irecv_into(into)
        here.send(out, timeout_s=30)
        moved += request.wait(timeout_s=30)
    return moved


def measure(here: Connection, there: Connection) -> dict[str, Any]:
    """Sends for SECONDS; returns bytes moved, seconds, segments resent, and bytes by path."""
    before = here.counters()
    stop = threading.Event()
    timer = threading.Timer(SECONDS, stop.set)
    begin_s = time.perf_counter()
    timer.start()
    moved = transfer(here, there, stop)
    seconds = time.perf_counter() - begin_s
    timer.join()
    after = here.counters()
    sent = np.array(
        [a.bytes_sent - b.bytes_sent for a, b in zip(after.paths, before.paths, strict=True)]
    )
    resent = after.segments_resent - before.segments_resent
    return {"moved": moved, "seconds": seconds, "resent": resent, "sent": sent}


def summed(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums the measurements with even or with learned weights; resends are per MB moved."""
    moved = sum(turn["moved"] for turn in turns)
    sent = sum(turn["sent"] for turn in turns)
    speeds = sorted(turn["moved"] / turn["seconds"] / 1e9 for turn in turns)
    return {
        "resent_a_mbyte": sum(turn["resent"] for turn in turns) / (moved / 1e6),
        "shares": sent / max(sent.sum(), 1),
        "slowest": speeds[0],
        "fastest": speeds[-1],
    }


def show(halves: dict[str, dict[str, Any]], steps: int) -> None:
    table = Table(box=None, title=f"paths {FAULTS['paths']} lose 20 %; local off")
    for heading in ("weights", "resends per MB", "GB/s", *(f"{i}" for i in range(PATHS))):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, half in halves.items():
        shares = [f"{share:.0%}" for share in half["shares"]]
        speed = f"{half['slowest']:.2f} to {half['fastest']:.2f}"
        table.add_row(name, f"{half['resent_a_mbyte']:.2f}", speed, *shares)
    Console().print(table)
    print(f"by path: share of the bytes; {ROUNDS} turns of each kind; {steps} steps")
    less = 1.0 - halves["learned"]["resent_a_mbyte"] / max(halves["even"]["resent_a_mbyte"], 1e-9)
    print(f"learned weights cause {less:.0%} fewer resends for the same bytes. Other load also")
    print("affects GB/s: compare it only if the ranges do not overlap")


def main() -> int:
    """Compares even and learned weights, and prints the result, which other load can change."""
    learner = Learner(PATHS)
    turns: dict[str, list[dict[str, Any]]] = {"even": [], "learned": []}
    steps = 0
    with (
        Endpoint(**KNOBS, path_policy="weighted") as left,
        Endpoint(**KNOBS, fault=FAULTS) as right,
        right.listen() as listener,
        left.connect(listener.handle) as here,
        listener.accept(timeout_s=60) as there,
    ):
        for _ in range(ROUNDS):
            here.set_params("path", weight=np.ones(PATHS))
            turns["even"].append(measure(here, there))
            here.set_params("path", weight=learner.weight)
            with ControlLoop(here, learner, pace_s=0.01) as loop:
                turns["learned"].append(measure(here, there))
            steps += loop.steps
    halves = {name: summed(found) for name, found in turns.items()}
    show(halves, steps)
    carried = float(halves["learned"]["shares"][list(BAD_PATHS)].sum())
    even = len(BAD_PATHS) / PATHS
    print(f"the lossy paths carry {carried:.0%} of the bytes; with even weights {even:.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
