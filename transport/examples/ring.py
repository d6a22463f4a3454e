"""A ring all-reduce with the Python API, summed on GPUs or by NumPy.

Each rank is a process, with a GPU of its own if there are enough. In the first half of the steps, a
rank adds each part that arrives to its own part; Endpoint.reduce writes the sum to the array and to
the send buffer in one pass. In the second half, the sums go around the ring. The elements are
integers, so that every sum is exact.
Run it: python -m transport.examples.ring --with cupy
"""

from transport.ground.interrupts import end_at_interrupt

if __name__ == "__main__":
    end_at_interrupt()  # also while the packages below are imported

import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.connection import Connection as Pipe, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import click
import numpy as np

from transport import Connection, Endpoint, WeftError
from transport.errors import ConnectionLostError
from transport.ground.extras import install
from transport.ground.workers import follow_parent, interrupts_held

# Through shared memory, `weft top` and traces would show no paths.
KNOBS = {"interfaces": "lo", "local": "off"}
PATIENCE_S = 60.0
END_S = 2.0  # between the end of a rank's connections and that of its process


class Arrays:
    """The operations that differ between host and GPU arrays."""

    def __init__(self, library: str, rank: int) -> None:
        self.library = library
        self.make: Any = np.asarray
        if library == "cupy":
            import cupy

            cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
            self.make, self.cupy = cupy.asarray, cupy

    def add(self, endpoint: Endpoint, came: Any, mine: Any, outgoing: Any) -> None:
        """Adds `came` to `mine`, and copies the sum to `outgoing`."""
        if self.library == "cupy":
            endpoint.reduce(came, mine, mine, also=outgoing)
        else:
            np.add(came, mine, out=mine)
            outgoing[:] = mine

    def host(self, array: Any) -> np.ndarray[Any, Any]:
        """A copy of an array as a NumPy array."""
        return np.asarray(array.get() if self.library == "cupy" else array)


def all_reduce(
    endpoint: Endpoint,
    before: Connection,
    after: Connection,
    me: int,
    parts: list[Any],
    buffers: Any,
) -> None:
    """Sums the `parts` of all ranks in place.

    buffers: the Arrays that made them (NumPy or CuPy), a receive buffer and a send buffer.
    """
    arrays, incoming, outgoing = buffers
    ranks = len(parts)
    if ranks == 1:
        return
    outgoing[:] = parts[me]
    for step in range(ranks - 1):
        receive = before.irecv_into(incoming)
        send = after.isend(outgoing)
        receive.wait(PATIENCE_S)
        send.wait(PATIENCE_S)
        arrays.add(endpoint, incoming, parts[(me - step - 1) % ranks], outgoing)
    for step in range(ranks - 1):
        receive = before.irecv_into(parts[(me - step) % ranks])
        send = after.isend(parts[(me - step + 1) % ranks])
        receive.wait(PATIENCE_S)
        send.wait(PATIENCE_S)


def rank_main(pipe: Pipe, library: str, me: int, *settings: int) -> None:
    """The process of a rank: tells its parent the error if weft fails."""
    follow_parent()
    try:
        run_rank(pipe, library, me, *settings)
    except WeftError as error:
        pipe.send(error)


def run_rank(pipe: Pipe, library: str, me: int, ranks: int, elements: int, rounds: int) -> None:
    """Joins the ring, runs the all-reduce `rounds` times and compares every element."""
    arrays = Arrays(library, me)
    count = -(-elements // ranks)
    with Endpoint(**KNOBS) as endpoint, endpoint.listen() as listener:
        pipe.send(listener.handle)
        after = endpoint.connect(pipe.recv())
        before = listener.accept(timeout_s=PATIENCE_S)
        buffers = (
            arrays,
            arrays.make(np.zeros(count, np.int32)),
            arrays.make(np.zeros(count, np.int32)),
        )
        numbers = np.arange(count * ranks, dtype=np.int32) % 1_000_003
        wrong, best_s = 0, float("inf")
        for round_ in range(rounds):
            whole = arrays.make(numbers * (me + 1) + round_)
            parts = [whole[i * count : (i + 1) * count] for i in range(ranks)]
            pipe.send("ready")
            pipe.recv()
            begin = time.perf_counter()
            all_reduce(endpoint, before, after, me, parts, buffers)
            best_s = min(best_s, time.perf_counter() - begin)
            expected = numbers * (ranks * (ranks + 1) // 2) + ranks * round_
            wrong += int((arrays.host(whole) != expected).sum())
        pipe.send((wrong, best_s))
        pipe.recv()


def run_ranks(library: str, *settings: int) -> list[tuple[int, float]]:
    """Starts the ranks and runs them; how many elements were wrong and the best time of each."""
    ranks, _, rounds = settings
    context = multiprocessing.get_context("spawn")
    pipes: list[Pipe] = []
    processes: list[SpawnProcess] = []
    try:
        with interrupts_held():
            for me in range(ranks):
                ours, theirs = context.Pipe()
                words = (theirs, library, me, *settings)
                # Names of the ranks in `weft top` and traces. weft top reads the environment that a
                # process was started with, so the rank itself would set them too late.
                os.environ |= {"RANK": str(me), "WORLD_SIZE": str(ranks)}
                processes.append(context.Process(target=rank_main, args=words, daemon=True))
                processes[-1].start()
                theirs.close()
                pipes.append(ours)
        found = conducted(pipes, rounds)
        for process in processes:
            process.join(PATIENCE_S)
        return found
    except RankError as error:
        raise click.ClickException(why_failed(processes, error.rank, error.sent)) from None
    finally:
        for process in processes:
            process.kill()


def conducted(pipes: list[Pipe], rounds: int) -> list[tuple[int, float]]:
    """Leads the ranks through the rounds; returns what each found. RankError if one fails."""
    handles = heard(pipes)
    for rank in range(len(pipes)):
        tell(pipes, rank, handles[(rank + 1) % len(pipes)])
    for _ in range(rounds):
        heard(pipes)
        for rank in range(len(pipes)):
            tell(pipes, rank, "go")
    found = heard(pipes)
    for rank in range(len(pipes)):
        tell(pipes, rank, "over")
    return found


class RankError(Exception):
    """A rank sent an error, or its process ended (sent: None)."""

    def __init__(self, rank: int, sent: WeftError | None) -> None:
        super().__init__(f"rank {rank} failed")
        self.rank, self.sent = rank, sent


def tell(pipes: list[Pipe], rank: int, message: Any) -> None:
    """Sends a message to a rank; RankError if its process has ended."""
    try:
        pipes[rank].send(message)
    except OSError:
        raise RankError(rank, None) from None


def heard(pipes: list[Pipe]) -> list[Any]:
    """The next message of each rank; RankError if a rank sends an error or has ended."""
    found: dict[int, Any] = {}
    while len(found) < len(pipes):
        ready = wait([pipe for rank, pipe in enumerate(pipes) if rank not in found])
        for rank in [rank for rank, pipe in enumerate(pipes) if pipe in ready]:
            try:
                found[rank] = pipes[rank].recv()
            except (EOFError, OSError):  # OSError: it ended and left a message unread
                raise RankError(rank, None) from None
            if isinstance(found[rank], WeftError):
                raise RankError(rank, found[rank])
    return [found[rank] for rank in range(len(pipes))]


def why_failed(processes: list[SpawnProcess], rank: int, sent: WeftError | None) -> str:
    """Why the job failed, once a rank sent an error or ended.

    A rank that lost its connection to one that was killed may be heard first.
    """
    if sent is not None and not isinstance(sent, ConnectionLostError):
        return f"rank {rank}: {sent}"
    until_s = time.monotonic() + END_S
    while True:
        codes = [one.exitcode for one in processes]
        for other, code in enumerate(codes):
            if code is not None and code < 0:
                return f"rank {other} was killed by {signal_name(-code)}"
        running = [one.sentinel for one, code in zip(processes, codes, strict=True) if code is None]
        left_s = until_s - time.monotonic()
        if not running or left_s <= 0 or (sent is None and codes[rank] is not None):
            break
        wait(running, left_s)
    if sent is not None:
        return f"rank {rank}: {sent}"
    return f"rank {rank} ended with status {processes[rank].exitcode}: see its error above"


def signal_name(number: int) -> str:
    """The name of a signal; its number if it has none, as those of real time."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@click.command()
@click.option(
    "--with",
    "library",
    type=click.Choice(["numpy", "cupy"]),
    default="numpy",
    show_default=True,
    help="Where the arrays lie: the host, or GPUs.",
)
@click.option(
    "--ranks",
    metavar="N",
    type=click.IntRange(1, 64),
    default=3,
    show_default=True,
    help="Number of processes.",
)
@click.option(
    "--elements",
    metavar="N",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    help="Number of elements of each array, of 4 bytes each.",
)
@click.option(
    "--rounds",
    metavar="N",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="How many all-reduces; with 1000 there is time to look at them with weft top.",
)
def main(library: str, ranks: int, elements: int, rounds: int) -> None:
    """Sum an array of every rank around a ring and compare every element.

    The ranks are processes of this host, with sockets on loopback between them whatever WEFT_LOCAL
    says. Prints the time of the fastest all-reduce, and the bandwidths that nccl-tests would print:
    algbw is bytes of the array per second, busbw what each link carried.

    Example: python -m transport.examples.ring --ranks 4 --rounds 1000
    """
    try:
        Arrays(library, 0)
    except Exception as error:  # no package or no GPU: each library raises its own exception
        remedy = f": {install('gpu')}" if isinstance(error, ImportError) else ""
        raise click.ClickException(f"--with {library}: {error}{remedy}") from None
    found = run_ranks(library, ranks, elements, rounds)
    wrong, seconds = sum(one[0] for one in found), max(one[1] for one in found)
    algbw = elements * 4 / seconds / 1e9
    click.echo(
        f"{ranks} ranks, {elements * 4 / 1e6:.1f} MB, local off: best {seconds * 1e3:.2f} ms, "
        f"algbw {algbw:.2f} GB/s, busbw {algbw * 2 * (ranks - 1) / ranks:.2f} GB/s, "
        f"{wrong} elements wrong"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
