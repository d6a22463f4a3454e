"""One rank of a real job that diagnosis is tried on: it computes, then sums an array around a ring.

Started by bench.diagnose_real in a host of a lab. SIGUSR1 makes its computations take four times as
long, SIGUSR2 makes it stop communicating. It ends when its standard input is closed.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import Any

import numpy as np

from transport import Connection, Endpoint

PATIENCE_S = 60.0
PORT = 7_000
COMPUTE_S = 0.010


class Rank:
    """Computes and all-reduces in turn, as a rank of a training job, until it is told to end."""

    def __init__(self, me: int, addresses: list[str], elements: int) -> None:
        self.me, self.addresses, self.elements = me, addresses, elements
        self.factor = 1
        self.absent = threading.Event()
        self.over = threading.Event()
        self.ready = threading.Event()

    def connect(self, endpoint: Endpoint) -> tuple[Connection, Connection]:
        """The connections from the rank before and to the rank after."""
        after = self.addresses[(self.me + 1) % len(self.addresses)]
        with endpoint.listen(port=PORT, open=True) as listener:
            print("listening", flush=True)
            self.ready.wait(PATIENCE_S)  # until all ranks listen
            to = endpoint.connect(after, PORT, timeout_s=PATIENCE_S)
            return listener.accept(timeout_s=PATIENCE_S), to

    def compute(self) -> None:
        """Keeps the core busy for the time of a computation."""
        end = time.perf_counter() + COMPUTE_S * self.factor
        while time.perf_counter() < end:
            time.sleep(0.001)

    def run(self) -> None:
        ranks = len(self.addresses)
        part = np.ones(self.elements // ranks, np.int32)
        into = np.zeros_like(part)
        with Endpoint(interfaces="eth0") as endpoint:
            before, after = self.connect(endpoint)
            print("running", flush=True)
            while not self.over.is_set():
                self.compute()
                if self.absent.is_set():
                    self.over.wait()
                    return
                for _ in range(2 * (ranks - 1)):
                    receive = before.irecv_into(into)
                    send = after.isend(part)
                    receive.wait(PATIENCE_S)
                    send.wait(PATIENCE_S)


def main() -> None:
    me, elements, *addresses = sys.argv[1:]
    rank = Rank(int(me), addresses, int(elements))

    def slower(*_: Any) -> None:
        rank.factor = 4

    signal.signal(signal.SIGUSR1, slower)
    signal.signal(signal.SIGUSR2, lambda *_: rank.absent.set())
    worker = threading.Thread(target=rank.run, daemon=True)
    worker.start()
    while worker.is_alive() and sys.stdin.readline():
        rank.ready.set()
    rank.over.set()
    worker.join(0.5)


if __name__ == "__main__":
    main()
