"""Shows that weft works on this host: two processes, eight paths, injected loss, real data.

All traffic stays on loopback. It needs neither a GPU nor root. The exit status is 0 only if every
check passes.
"""

from transport.ground.interrupts import end_at_interrupt

if __name__ == "__main__":
    end_at_interrupt()  # also while the packages below are imported

import multiprocessing
import sys
import time
from multiprocessing.connection import Connection as Pipe
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn
from rich.table import Table

from transport import Connection, Endpoint, Request, WeftError
from transport.ground.workers import follow_parent, interrupts_held

PATHS = 8
LOSS = 0.01
KNOBS: dict[str, Any] = {
    "interfaces": "lo",
    "local": "off",  # over the network, not through shared memory
    "paths": PATHS,
    "engines": 1,
    "fault": {"loss": LOSS},
}
MESSAGE_BYTES = 1 << 20
MESSAGES = 1_024
MESSAGES_MAX = 4 * MESSAGES  # more than MESSAGES are sent until every path has carried some
IN_FLIGHT = 16
SECONDS_MAX = 15.0
SEED = 1


def pattern() -> np.ndarray[Any, Any]:
    """Message 0: random bytes. Message i has the same bytes, rotated by i."""
    return np.random.default_rng(SEED).integers(0, 256, MESSAGE_BYTES, dtype=np.uint8)


def receive(pipe: Pipe) -> None:
    """The main function of the receiving process; an error of weft ends it with one line."""
    follow_parent()
    try:
        receive_all(pipe)
    except WeftError as error:
        sys.exit(f"the receiving process: {error}")


def receive_all(pipe: Pipe) -> None:
    """Receives messages until an empty one and compares each with its pattern."""
    expected = pattern()
    with Endpoint(**KNOBS) as endpoint, endpoint.listen() as listener:
        pipe.send(listener.handle)
        connection = listener.accept(timeout_s=60)
        memory = [bytearray(MESSAGE_BYTES) for _ in range(IN_FLIGHT)]
        requests = [connection.irecv_into(one) for one in memory]
        corrupt = 0
        for i in range(MESSAGES_MAX + 1):
            slot = i % IN_FLIGHT
            if requests[slot].wait(timeout_s=60) == 0:
                break
            got = np.frombuffer(memory[slot], dtype=np.uint8)
            turn = i % MESSAGE_BYTES
            same = (got[turn:] == expected[: MESSAGE_BYTES - turn]).all()
            corrupt += not (same and (got[:turn] == expected[MESSAGE_BYTES - turn :]).all())
            requests[slot] = connection.irecv_into(memory[slot])
        pipe.send((corrupt, endpoint.counters().injected_loss_data))
        pipe.recv()


def all_paths_carry(connection: Connection) -> bool:
    """Whether each path has carried data."""
    return all(path.bytes_sent > 0 for path in connection.counters().paths)


def send(pipe: Pipe, console: Console) -> dict[str, Any]:
    """Sends until all messages are sent or time is up; returns the counters of both ends."""
    handle = pipe.recv()
    bar = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with (
        Endpoint(**KNOBS) as endpoint,
        endpoint.connect(handle) as connection,
        Progress(
            *bar, console=console, transient=True, disable=not console.is_terminal
        ) as progress,
    ):
        console.print(endpoint.summary())
        task = progress.add_task("", total=MESSAGES * MESSAGE_BYTES)
        messages = [np.roll(pattern(), i) for i in range(IN_FLIGHT)]
        requests: list[Request] = []
        begin = time.monotonic()
        for i in range(MESSAGES_MAX):
            if i >= MESSAGES and i % IN_FLIGHT == 0 and all_paths_carry(connection):
                break
            if time.monotonic() - begin > SECONDS_MAX:
                break
            if i >= IN_FLIGHT:
                requests[i - IN_FLIGHT].wait(timeout_s=60)
                # Message i + IN_FLIGHT is message i, rotated by IN_FLIGHT more bytes.
                messages[i % IN_FLIGHT] = np.roll(messages[i % IN_FLIGHT], IN_FLIGHT)
            requests.append(connection.isend(messages[i % IN_FLIGHT]))
            progress.update(task, completed=min(i, MESSAGES) * MESSAGE_BYTES)
        for one in requests[-IN_FLIGHT:]:
            one.wait(timeout_s=60)
        seconds = time.monotonic() - begin
        connection.send(b"", timeout_s=60)
        # Wait until the receiver has compared all messages, because closing ends its receives.
        if not pipe.poll(60):
            raise EOFError
        corrupt, dropped = pipe.recv()  # the receiver counts drops, as loss is injected on arrival
        return {
            "counters": connection.counters(),
            "corrupt": corrupt,
            "dropped": dropped,
            "messages": len(requests),
            "gbytes_per_s": len(requests) * MESSAGE_BYTES / seconds / 1e9,
        }


def report(console: Console, found: dict[str, Any]) -> list[str]:
    """Prints the tables; returns the checks that failed."""
    counters, corrupt = found["counters"], found["corrupt"]
    sent = sum(path.bytes_sent for path in counters.paths)
    carried = [path.bytes_sent / sent for path in counters.paths]
    paths = Table("path", "share of bytes", "RTT us", "segments", "lost", box=None, pad_edge=False)
    for i, path in enumerate(counters.paths):
        cells = (i, f"{carried[i]:.1%}", round(path.rtt_ns / 1e3), path.segments_sent)
        paths.add_row(*map(str, (*cells, path.segments_lost)))
    console.print(paths)
    totals = Table(
        *("messages", "corrupt messages", "dropped by us", "declared lost", "retransmitted"),
        "GB/s",
        box=None,
        pad_edge=False,
    )
    totals_of = (found["messages"], corrupt, found["dropped"], counters.segments_lost)
    totals.add_row(
        *map(str, (*totals_of, counters.segments_resent)), f"{found['gbytes_per_s']:.2f}"
    )
    console.print(totals)
    checks = {
        # How much each path carries depends on the machine's load.
        "every path carries data": min(carried) > 0,
        "loss was injected": found["dropped"] > 0,
        "dropped segments were resent": counters.segments_resent >= found["dropped"],
        "no message is corrupt": corrupt == 0,
    }
    return [name for name, holds in checks.items() if not holds]


def main() -> int:
    console = Console(highlight=False)
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    other = context.Process(target=receive, args=(theirs,), daemon=True)
    with interrupts_held():
        other.start()
    theirs.close()
    try:
        if not pipe.poll(60):
            raise EOFError
        found = send(pipe, console)
        pipe.send(None)
        other.join(10)
    except EOFError:
        console.print("failed: the receiving process ended early")
        return 1
    except WeftError as error:
        console.print(f"failed: {error}")
        return 1
    wrong = report(console, found)
    for name in wrong:
        console.print(f"failed: {name}")
    console.print("it works" if not wrong else "it does not work here")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
