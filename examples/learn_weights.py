"""Decides path weights from what was lost on each path, in plain NumPy, beside the data path.

Never runs on the per-packet path: it looks a hundred times a second and writes parameters.
Two of eight paths lose a fifth of their datagrams (injected); watch their weights fall.
Run it: python -m examples.learn_weights
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from transport import Connection, ControlLoop, Endpoint, Telemetry

PATHS = 8
BAD_PATHS = (0, 1)
MESSAGE_BYTES = 1 << 20
SECONDS = 1.5  # of each half
KNOBS: dict[str, Any] = {"interfaces": "lo", "engines": 1, "paths": PATHS}
FAULTS: dict[str, Any] = {"fault_loss": 0.2, "fault_paths": ",".join(map(str, BAD_PATHS))}


class Learner:
    """Multiplicative weights (Arora, Hazan, Kale, 2012): a path pays for the share it loses."""

    def __init__(self, paths: int, rate: float = 2.0, floor: float = 0.02) -> None:
        self.weight = np.ones(paths)
        self.rate, self.floor = rate, floor  # the floor keeps every path measured

    def __call__(self, telemetry: Telemetry) -> dict[str, dict[str, Any]] | None:
        for seen in telemetry.connections:
            if seen.segments_sent_delta.sum() < 100:
                return None
            self.weight *= np.exp(-self.rate * seen.loss_share)
        self.weight = np.maximum(self.weight / self.weight.max(), self.floor)
        return {"path": {"weight": self.weight}}


def transfer(here: Connection, there: Connection, stop: threading.Event) -> int:
    """Messages one way until told to stop; returns the bytes moved."""
    out, into = bytearray(MESSAGE_BYTES), bytearray(MESSAGE_BYTES)
    moved = 0
    while not stop.is_set():
        handle = there.irecv_into(into)
        here.send(out, timeout_s=30)
        moved += handle.wait(timeout_s=30)
    return moved


def measure(here: Connection, there: Connection) -> dict[str, Any]:
    """One half of the run: GB/s, segments sent again, and each path's share of the bytes."""
    before = here.counters()
    stop = threading.Event()
    timer = threading.Timer(SECONDS, stop.set)
    timer.start()
    moved = transfer(here, there, stop)
    timer.join()
    after = here.counters()
    sent = np.array(
        [a.bytes_sent - b.bytes_sent for a, b in zip(after.paths, before.paths, strict=True)]
    )
    return {
        "gbytes_per_s": moved / SECONDS / 1e9,
        "resent": after.segments_resent - before.segments_resent,
        "shares": sent / max(sent.sum(), 1),
    }


def main() -> int:
    """Both halves side by side; 0 when the bad paths carry less than half of a fair share."""
    learner = Learner(PATHS)
    with (
        Endpoint(**KNOBS, path_policy="weighted") as left,
        Endpoint(**KNOBS, **FAULTS) as right,
        right.listen() as listener,
        left.connect(listener.handle) as here,
        listener.accept(timeout_s=10) as there,
    ):
        even = measure(here, there)
        with ControlLoop(here, learner, pace_s=0.01) as loop:
            learned = measure(here, there)
    table = Table(box=None, title=f"paths {FAULTS['fault_paths']} lose 20 %")
    for heading in ("weights", "GB/s", "sent again", *(f"{i}" for i in range(PATHS))):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, half in (("even", even), ("learned", learned)):
        shares = [f"{share:.0%}" for share in half["shares"]]
        table.add_row(name, f"{half['gbytes_per_s']:.2f}", str(half["resent"]), *shares)
    Console().print(table)
    print(f"shares of the bytes by path; {loop.steps} steps of control")
    carried = float(learned["shares"][list(BAD_PATHS)].sum())
    return 0 if carried < 0.5 * len(BAD_PATHS) / PATHS else 1


if __name__ == "__main__":
    sys.exit(main())
