"""Runs a ring of processes that exchange messages until a file says stop: `FOLDER RANKS SLOW`."""

import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import numpy as np

from transport import Endpoint

PATIENCE_S = 60.0
STEP_S = 0.02
LATE_S = 0.1  # what the slow rank takes longer while the file `slow` is there
PART_BYTES = 20_000


def rank_main(pipe: Pipe, where: Path, me: int, ranks: int, slow: int) -> None:
    """Passes parts around the ring in steps, as an all-reduce does."""
    os.environ |= {"RANK": str(me), "WORLD_SIZE": str(ranks)}
    with Endpoint(interfaces="lo") as endpoint, endpoint.listen() as listener:
        pipe.send(listener.handle)
        after = endpoint.connect(pipe.recv())
        before = listener.accept(timeout_s=PATIENCE_S)
        came = np.zeros(PART_BYTES, np.uint8)
        while not pipe.poll():
            time.sleep(STEP_S)  # what a rank computes in a step
            if me == slow and (where / "slow").exists():
                time.sleep(LATE_S)  # the fault
            for _ in range(2 * (ranks - 1)):
                receive = before.irecv_into(came)
                after.isend(came.tobytes()).wait(PATIENCE_S)
                receive.wait(PATIENCE_S)


def main(where: Path, ranks: int, slow: int) -> None:
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for me in range(ranks):
        ours, theirs = context.Pipe()
        made = context.Process(target=rank_main, args=(theirs, where, me, ranks, slow), daemon=True)
        made.start()
        processes.append(made)
        pipes.append(ours)
    handles = [pipe.recv() for pipe in pipes]
    for me, pipe in enumerate(pipes):
        pipe.send(handles[(me + 1) % ranks])
    print("connected", flush=True)
    sys.stdin.read()
    for made in processes:
        made.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
