"""The peer process of the tests: `python -m tests.api.peer ROLE HANDLE...`."""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

from tests.waiting import until
from transport import Connection, Endpoint
from transport.errors import WeftError


def echo() -> None:
    """Listens and echoes every message until the peer closes."""
    with Endpoint() as endpoint, endpoint.listen() as listener:
        print(listener.handle.hex(), flush=True)
        memory = bytearray(64 << 20)
        with listener.accept(timeout_s=60) as connection:
            try:
                while True:
                    count = connection.recv_into(memory)
                    connection.send(memoryview(memory)[:count])
            except WeftError as error:
                print(error.status, flush=True)


def posts_and_sleeps(address: str, count: str) -> None:
    """Posts sends before the peer's receives; checks the handles only after a line of stdin."""
    with Endpoint() as endpoint, endpoint.connect(bytes.fromhex(address)) as connection:
        handles = [connection.isend(bytes([i % 251]) * (i % 61)) for i in range(int(count))]
        print("posted", flush=True)
        sys.stdin.readline()
        # The last acknowledgments may still be in flight.
        until(lambda: all(handle.done for handle in handles), "sends are not done")
        print("done", sum(handle.done for handle in handles), flush=True)
        sys.stdin.readline()


def greets() -> None:
    """Listens, never accepts, and prints its port."""
    with Endpoint() as endpoint, endpoint.listen(open=True) as listener:
        print(listener.port, flush=True)
        time.sleep(300)  # until the test ends it


def echoes() -> None:
    """Accepts any number of peers and echoes their messages, without end."""

    def serve(connection: Connection) -> None:
        memory = bytearray(4 << 20)
        with contextlib.suppress(WeftError), connection:
            while True:
                count = connection.recv_into(memory)
                connection.send(memoryview(memory)[:count])

    with Endpoint() as endpoint, endpoint.listen() as listener:
        print(listener.handle.hex(), flush=True)
        for connection in listener:
            threading.Thread(target=serve, args=[connection], daemon=True).start()


def dials_at_once(address: str) -> None:
    """Opens hundreds of connections to the handle; prints how many carried no message."""
    handle = bytes.fromhex(address)
    failures: list[str] = []

    def one(index: int) -> None:
        data = index.to_bytes(4, "little")
        try:
            for _ in range(3):
                with endpoint.connect(handle, timeout_s=60) as connection:
                    connection.send(data, timeout_s=60)
                    if connection.recv(4, timeout_s=60) != data:
                        failures.append("wrong bytes")
        except WeftError as error:
            failures.append(str(error))

    with Endpoint() as endpoint:
        threads = [threading.Thread(target=one, args=[index]) for index in range(200)]
        print("dialling", flush=True)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(len(failures), *failures[:1], flush=True)
        sys.stdin.readline()  # waits for the test, which may stop this idle process again


def forking() -> None:
    """Listens, accepts, forks a child that outlives it, and prints the child's process id."""
    with Endpoint() as endpoint, endpoint.listen(0) as listener:
        print(listener.handle.hex(), flush=True)
        with listener.accept(timeout_s=60):
            pid = os.fork()
            if pid == 0:
                time.sleep(300)  # until the test ends it
                os._exit(0)
            print(pid, flush=True)
            time.sleep(300)  # until the test ends it


def sends_and_dies() -> None:
    """Listens, accepts, sends two messages, reports that they are done, and waits to be killed."""
    with Endpoint() as endpoint, endpoint.listen() as listener:
        print(listener.handle.hex(), flush=True)
        with listener.accept(timeout_s=60) as connection:
            connection.send(b"first")
            connection.send(b"second")
            print("sent", flush=True)
            time.sleep(300)  # until the test ends it


def blocked() -> None:
    """Listens, accepts, waits for a message that never comes; prints how the wait ended."""
    with Endpoint() as endpoint, endpoint.listen() as listener:
        print(listener.handle.hex(), flush=True)
        with listener.accept(timeout_s=60) as connection:
            try:
                print("blocked", flush=True)
                connection.recv(1 << 20)
            except KeyboardInterrupt:
                print("interrupted", flush=True)


def accepting() -> None:
    """Waits for a peer that never comes."""
    with Endpoint() as endpoint, endpoint.listen() as listener:
        try:
            print("blocked", flush=True)
            listener.accept()
        except KeyboardInterrupt:
            print("interrupted", flush=True)


def silent() -> None:
    """Listens, accepts, and neither sends nor receives until its stdin ends."""
    with Endpoint() as endpoint, endpoint.listen() as listener:
        print(listener.handle.hex(), flush=True)
        with listener.accept(timeout_s=60):
            print("accepted", flush=True)
            sys.stdin.read()


def few_descriptors(limit: int) -> None:
    """Opens endpoints under a small RLIMIT_NOFILE until one fails; prints the error."""
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    kept = []
    try:
        for _ in range(limit):
            endpoint = Endpoint()
            kept.append((endpoint, endpoint.listen()))
    except WeftError as error:
        print(error.status, error, flush=True)


def grow_stack(depth: int) -> None:
    """Makes the kernel give this thread a deep stack; map() calls through C."""
    if depth:
        list(map(grow_stack, [depth - 1]))


def little_memory(spare_mib: int) -> None:
    """Opens connections until memory runs out; prints the error; tests the first connection."""
    import resource

    with Endpoint(engines=1) as endpoint, endpoint.listen() as listener:
        kept = [(endpoint.connect(listener.handle), listener.accept(timeout_s=60))]
        grow_stack(800)  # at the limit the stack of the main thread cannot grow: SIGSEGV
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (spare_mib << 20)
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        payload, ended = bytes(range(256)) * 256, "never"
        for _ in range(20_000):
            try:
                kept.append((endpoint.connect(listener.handle), listener.accept(timeout_s=60)))
                kept[-1][1].irecv_into(bytearray(1 << 16))
                kept[-1][0].isend(payload)
            except (WeftError, MemoryError) as error:
                ended = getattr(error, "status", "MemoryError")
                break
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        there, here = kept[0]
        receive = here.irecv_into(memory := bytearray(len(payload)))
        there.send(payload)
        receive.wait(timeout_s=60)
        print(ended, memory == payload, len(kept) > 1, flush=True)


def listening(limit: int = 0) -> None:
    """Listens and prints its handle, port and, after each line of stdin, its count of refusals.

    `limit`: RLIMIT_NOFILE, if not 0.
    """
    import resource

    if limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with Endpoint() as endpoint, endpoint.listen(open=True) as listener:
        print(listener.handle.hex(), listener.port, flush=True)
        for _ in sys.stdin:
            counters = endpoint.counters()
            print(counters.strangers_refused, counters.malformed + counters.stray, flush=True)


def forgetful() -> None:
    """Exits without closing its endpoint and connections."""
    endpoint = Endpoint()
    listener = endpoint.listen()
    here = endpoint.connect(listener.handle)
    there = listener.accept(timeout_s=60)
    there.irecv_into(bytearray(10))
    globals()["kept"] = (endpoint, listener, here, there)
    print("leaving", flush=True)


def threads_at_exit() -> None:
    """Exits while daemon threads connect, send and wait."""
    endpoint = Endpoint()
    listener = endpoint.listen()
    begun = threading.Event()

    def serve(connection: Connection) -> None:
        with contextlib.suppress(WeftError):
            while True:
                connection.send(connection.recv(100))

    def accept() -> None:
        for connection in listener:
            threading.Thread(target=serve, args=[connection], daemon=True).start()

    def dial() -> None:
        with contextlib.suppress(WeftError):
            while True:
                with endpoint.connect(listener.handle) as connection:
                    for _ in range(20):
                        connection.send(bytes(100))
                        connection.recv(100)
                begun.set()

    for work in (accept, dial, dial, dial, dial):
        threading.Thread(target=work, daemon=True).start()
    begun.wait(60)
    print("leaving", flush=True)


def main() -> None:
    role, *arguments = sys.argv[1:]
    named = (
        echo,
        echoes,
        forking,
        sends_and_dies,
        blocked,
        accepting,
        silent,
        listening,
        forgetful,
        greets,
        threads_at_exit,
    )
    roles = {one.__name__: one for one in named}
    if role in ("few_descriptors", "little_memory"):
        {"few_descriptors": few_descriptors, "little_memory": little_memory}[role](
            int(arguments[0])
        )
    elif role == "dials_at_once":
        dials_at_once(arguments[0])
    elif role == "posts_and_sleeps":
        posts_and_sleeps(*arguments)
    elif role == "listening":
        listening(*map(int, arguments))
    else:
        roles[role]()


if __name__ == "__main__":
    main()
