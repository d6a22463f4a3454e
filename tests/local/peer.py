"""The peer process of the tests: `python -m tests.local.peer ROLE ARGUMENT...`."""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.api.scarce import give_back, take_all
from tests.local.support import LONG_BYTES, PATIENCE_S, exchange, is_local, message
from tests.waiting import until
from transport import Connection, Endpoint, Request
from transport.errors import ForkedChildError, WeftError

RECEIVE_BYTES = 1 << 20
UNASKED_BYTES = (10, 70_000, 0, 3000)
GUARD_BYTES = 1 << 16
SLEEP_S = 300  # until the test ends the process


def answer(connection: Connection) -> None:
    """Exchanges what the other end proposes, until it ends the connection (support.agree)."""
    with contextlib.suppress(WeftError), connection:
        while True:
            plan = json.loads(connection.recv(65536))
            verdict = "right"
            try:
                exchange(connection, **plan)
            except AssertionError as error:
                verdict = str(error)
            connection.send(verdict.encode())


def exchanges() -> None:
    """Accepts any number of peers and exchanges messages with each."""
    with Endpoint() as endpoint, endpoint.listen() as listener:
        print(listener.handle.hex(), flush=True)
        for connection in listener:
            threading.Thread(target=answer, args=[connection], daemon=True).start()


def exchanges_as(user: str) -> None:
    """Does so as another user."""
    become(user)
    exchanges()


def become(user: str) -> None:
    os.setgroups([])
    os.setresgid(int(user), int(user), int(user))
    os.setresuid(int(user), int(user), int(user))


def dials(address: str) -> None:
    """Dials and exchanges messages with a listener."""
    with Endpoint() as endpoint:
        answer(endpoint.connect(bytes.fromhex(address), timeout_s=PATIENCE_S))


def dials_as(user: str, address: str) -> None:
    """Does so as another user."""
    become(user)
    dials(address)


def accepted(work: Callable[[Connection], None]) -> None:
    """Listens, accepts one peer and works with it."""
    with Endpoint() as endpoint, endpoint.listen() as listener:
        print(listener.handle.hex(), flush=True)
        with listener.accept(timeout_s=PATIENCE_S) as connection:
            work(connection)


def send_long(connection: Connection, count: int = sys.maxsize) -> None:
    """Sends numbered long messages, several of them outstanding."""
    requests: list[Request] = []
    for number in range(count):
        requests.append(connection.isend(message(LONG_BYTES, number)))
        if len(requests) == 3:
            requests.pop(0).wait()
    for request in requests:
        request.wait()


def receive_long(connection: Connection, count: int = sys.maxsize) -> None:
    """Receives numbered long messages, several of them outstanding, and checks each."""
    memory = [np.zeros(LONG_BYTES, np.uint8) for _ in range(3)]
    requests = [connection.irecv_into(one) for one in memory[:count]]
    for number in range(count):
        slot = number % 3
        requests[slot].wait()
        if not np.array_equal(memory[slot], message(LONG_BYTES, number)):
            print("wrong bytes", flush=True)
        if number + 3 < count:
            requests[slot] = connection.irecv_into(memory[slot])


MOVES = {"sends": send_long, "receives": receive_long}


def moves(direction: str, count: str = "0") -> None:
    """Sends or receives `count` long messages (0: without end); says when all are through."""

    def work(connection: Connection) -> None:
        MOVES[direction](connection, int(count) or sys.maxsize)
        print("all", flush=True)
        sys.stdin.read()

    accepted(work)


def becomes_another_program(direction: str) -> None:
    """Moves long messages, and replaces its program at a line of stdin."""

    def work(connection: Connection) -> None:
        threading.Thread(target=MOVES[direction], args=[connection], daemon=True).start()
        sys.stdin.readline()
        # The new program fills memory, so that addresses of messages may be valid there.
        fills = f"import time; kept = b'#' * {8 * LONG_BYTES}; time.sleep({SLEEP_S})"
        os.execv(sys.executable, [sys.executable, "-c", fills])

    accepted(work)


def forks(direction: str) -> None:
    """Moves long messages, forks at a line of stdin, and prints what became of the child."""

    def work(connection: Connection) -> None:
        threading.Thread(target=MOVES[direction], args=[connection], daemon=True).start()
        sys.stdin.readline()
        pid = os.fork()
        if pid == 0:
            child_of_fork(connection)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        pid = os.fork()
        if pid == 0:
            time.sleep(SLEEP_S)  # until the test ends it
            os._exit(0)
        print(code, pid, flush=True)
        time.sleep(SLEEP_S)  # until the test ends it

    accepted(work)


def child_of_fork(connection: Connection) -> None:
    """Ends the process: 0 if each use of the parent's connection is refused."""
    refused = 0
    for use in (lambda: connection.send(b"from the child"), lambda: connection.recv(10)):
        try:
            use()
        except ForkedChildError:
            refused += 1
    connection.close()
    os._exit(refused - 2)


def sends_and_closes(plan: str) -> None:
    """Sends messages of the given sizes, closes at a line of stdin, and prints how each went."""

    def work(connection: Connection) -> None:
        sizes = json.loads(plan)
        requests = [connection.isend(message(size, i)) for i, size in enumerate(sizes)]
        print("posted", flush=True)
        sys.stdin.readline()
        done = [one.done for one in requests]
        connection.close()
        outcomes = [outcome(one) for one in requests]
        print(json.dumps([done, outcomes]), flush=True)
        sys.stdin.readline()

    accepted(work)


def outcome(request: Request) -> str:
    """How a request ended: "ok", or the name of its error."""
    try:
        request.wait(PATIENCE_S)
    except WeftError as error:
        return error.status
    return "ok"


def receives_and_closes(count: str) -> None:
    """Receives a number of messages, checks them, and closes."""

    def work(connection: Connection) -> None:
        for number in range(int(count)):
            data = np.frombuffer(connection.recv(1 << 20, timeout_s=PATIENCE_S), np.uint8)
            assert np.array_equal(data, message(len(data), number))
        sys.stdin.readline()
        connection.close()
        print("closed", flush=True)
        sys.stdin.readline()

    accepted(work)


def post_all(connection: Connection, count: int) -> tuple[list[Request], list[Request], list[Any]]:
    """Posts receives and sends of mixed sizes; returns both, and the memory of the receives."""
    sizes = [UNASKED_BYTES[i % len(UNASKED_BYTES)] for i in range(count)]
    memory = [np.zeros(size, np.uint8) for size in sizes]
    receives = [connection.irecv_into(one) for one in memory]
    sends = [connection.isend(message(size, i)) for i, size in enumerate(sizes)]
    return receives, sends, memory


def moved(connection: Connection, count: int) -> bool:
    """Whether the counters, which move nothing, say that all of post_all() is through."""
    counters = connection.counters()
    whole = sum(UNASKED_BYTES) * count // len(UNASKED_BYTES)
    return counters.bytes_sent == counters.bytes_received == whole


def posts(count: str) -> None:
    """Posts sends and receives, and waits for none of them; says whether all went right."""

    def work(connection: Connection) -> None:
        receives, sends, memory = post_all(connection, int(count))
        until(lambda: moved(connection, int(count)), "messages do not move by themselves")
        for request in (*receives, *sends):
            request.wait(PATIENCE_S)
        right = all(np.array_equal(m, message(len(m), i)) for i, m in enumerate(memory))
        print("right" if right else "wrong", flush=True)
        sys.stdin.readline()

    accepted(work)


def suffers() -> None:
    """Accepts any number of peers and echoes to each; checks the memory around what it receives.

    Prints a line for each connection that ended. A first message "exchange" makes the peer one
    whose messages are exchanged and checked.
    """

    def serve(connection: Connection) -> None:
        memory = np.full(RECEIVE_BYTES + 2 * GUARD_BYTES, 0xA5, np.uint8)
        inner = memory[GUARD_BYTES:-GUARD_BYTES]
        status = ""
        try:
            while not status:
                got = connection.recv_into(inner)
                if inner[:got].tobytes() == b"exchange":
                    answer(connection)
                    return
                connection.isend(inner[:got].copy())
        except WeftError as error:
            status = error.status
        connection.close()
        intact = (memory[:GUARD_BYTES] == 0xA5).all() and (memory[-GUARD_BYTES:] == 0xA5).all()
        guards = "intact" if intact else "overwritten"
        print(f"{status} {guards}\n", end="", flush=True)  # in one piece: other threads print, too

    with Endpoint() as endpoint, endpoint.listen() as listener:
        print(listener.handle.hex(), flush=True)
        for connection in listener:
            threading.Thread(target=serve, args=[connection], daemon=True).start()


def opens_many(count: str) -> None:
    """Connects to itself, and prints how many connections share memory, and the descriptors left.

    A message passes over each of them.
    """
    with Endpoint() as endpoint, endpoint.listen() as listener, contextlib.ExitStack() as stack:
        ends = []
        for _ in range(int(count)):
            here = stack.enter_context(endpoint.connect(listener.handle, timeout_s=PATIENCE_S))
            there = stack.enter_context(listener.accept(timeout_s=PATIENCE_S))
            ends.append((here, there))
        for number, (here, there) in enumerate(ends):
            here.isend(number.to_bytes(8))
            assert int.from_bytes(there.recv(8, timeout_s=PATIENCE_S)) == number
        taken = take_all()
        give_back(taken)
        print(json.dumps({"local": sum(is_local(here) for here, _ in ends), "left": len(taken)}))


ROLES = (
    becomes_another_program,
    dials,
    dials_as,
    exchanges,
    exchanges_as,
    forks,
    moves,
    opens_many,
    posts,
    receives_and_closes,
    sends_and_closes,
    suffers,
)


def main() -> None:
    role, *arguments = sys.argv[1:]
    {one.__name__: one for one in ROLES}[role](*arguments)


if __name__ == "__main__":
    main()
