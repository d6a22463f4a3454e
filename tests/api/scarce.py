"""Child processes with few file descriptors: `python -m tests.api.scarce ROLE`."""

import contextlib
import json
import os
import resource
import sys
from dataclasses import asdict
from typing import Any

from transport import Endpoint, WeftError
from transport.cli.doctor import check_descriptors

LOCAL = "lo"
PATIENCE_S = 240
MANY = 20_000  # more than any limit that a test sets


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) - 1


def table_size() -> int:
    """How many descriptors the kernel has made room for."""
    with open("/proc/self/status") as status:
        return next(int(row.split()[1]) for row in status if row.startswith("FDSize:"))


def take_all(at_most: int = MANY) -> list[int]:
    """Opens file descriptors until the process has none left; returns them."""
    taken: list[int] = []
    with contextlib.suppress(OSError):
        while len(taken) < at_most:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    return taken


def give_back(taken: list[int]) -> None:
    for descriptor in taken:
        os.close(descriptor)


def failure_of(error: WeftError) -> dict[str, str]:
    return {"kind": type(error).__name__, "text": str(error)}


def transfer(engines: int) -> None:
    """Transfers a message; reports the descriptors opened and left."""
    payload = bytes(range(256)) * 4096
    with (
        Endpoint(interfaces=LOCAL, engines=engines, log_level="info") as endpoint,
        endpoint.listen() as listener,
    ):
        table = table_size()
        with (
            endpoint.connect(listener.handle, timeout_s=PATIENCE_S) as here,
            listener.accept(timeout_s=PATIENCE_S) as there,
        ):
            send = here.isend(payload)
            moved = there.recv(len(payload), timeout_s=PATIENCE_S) == payload
            send.wait(PATIENCE_S)
            opened = open_descriptors()
            left = take_all()
            give_back(left)
            tell(
                summary=endpoint.summary(),
                moved=moved,
                opened=opened,
                left=len(left),
                soft=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                table=table,
            )


def devices(engines: int) -> None:
    """Transfers a message over each of two devices."""
    with Endpoint(interfaces="127.0.0.1,::1", engines=engines) as endpoint:
        moved = 0
        held = contextlib.ExitStack()
        with held:
            for device in range(len(endpoint.devices)):
                listener = held.enter_context(endpoint.listen(device=device))
                here = held.enter_context(
                    endpoint.connect(listener.handle, timeout_s=PATIENCE_S, device=device)
                )
                there = held.enter_context(listener.accept(timeout_s=PATIENCE_S))
                here.isend(b"hello")
                moved += there.recv(5, timeout_s=PATIENCE_S) == b"hello"
            left = take_all()
            give_back(left)
        tell(summary=endpoint.summary(), moved=moved, left=len(left))


def start(engines: int) -> None:
    """Tries 20 times to open an endpoint; reports the last error and the leaked descriptors."""
    before, failure = open_descriptors(), {}
    for _ in range(20):
        try:
            Endpoint(interfaces=LOCAL, engines=engines).close()
        except WeftError as error:
            failure = failure_of(error)
    tell(**failure, grown=open_descriptors() - before)


def endpoints(engines: int) -> None:
    """Opens as many endpoints as possible before any of them has a peer."""
    with contextlib.ExitStack() as held:
        made: list[Endpoint] = []
        failure = {}
        for _ in range(10):
            try:
                made.append(
                    held.enter_context(Endpoint(interfaces=LOCAL, engines=engines, paths=4))
                )
            except WeftError as error:
                failure = failure_of(error)
                break
        moved = 0
        for one in made:
            with (
                one.listen() as listener,
                one.connect(listener.handle, timeout_s=PATIENCE_S) as here,
                listener.accept(timeout_s=PATIENCE_S) as there,
            ):
                here.isend(b"hello")
                moved += there.recv(5, timeout_s=PATIENCE_S) == b"hello"
        left = take_all()
        give_back(left)
        tell(**failure, made=len(made), moved=moved, left=len(left))


def dials(_: int) -> None:
    """Connects without a free descriptor, reports the error, and connects with free ones."""
    with (
        Endpoint(interfaces=LOCAL, engines=1) as endpoint,
        Endpoint(interfaces=LOCAL, engines=1) as other,
        other.listen() as listener,
    ):
        taken = take_all()
        try:
            endpoint.connect(listener.handle, timeout_s=PATIENCE_S)
            failure = {}
        except WeftError as error:
            failure = failure_of(error)
        give_back(taken)
        endpoint.connect(listener.handle, timeout_s=PATIENCE_S).close()
        tell(**failure)


def accepts(spared: int) -> None:
    """Accepts with `spared` free descriptors, and after a second line of stdin with all of them."""
    with Endpoint(interfaces=LOCAL, engines=1) as endpoint, endpoint.listen() as listener:
        taken = take_all()
        give_back([taken.pop() for _ in range(spared)])
        tell(handle=listener.handle.hex())
        sys.stdin.readline()
        try:
            # Without a spared one no peer can be accepted, which is said when the time is over.
            with listener.accept(timeout_s=PATIENCE_S if spared else 5) as connection:
                failure = {"received": connection.recv(5, timeout_s=PATIENCE_S).decode()}
        except WeftError as error:
            failure = failure_of(error)
        tell(**failure)
        sys.stdin.readline()
        give_back(taken)
        tell(ready=True)
        with listener.accept(timeout_s=PATIENCE_S) as connection:
            tell(received=connection.recv(5, timeout_s=PATIENCE_S).decode())


def forks(engines: int) -> None:
    """Reports the soft descriptor limit of this process and of a forked child."""
    with Endpoint(interfaces=LOCAL, engines=engines):
        here = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        child = os.fork()
        if child == 0:
            os._exit(resource.getrlimit(resource.RLIMIT_NOFILE)[0] % 251)
        _, status = os.waitpid(child, 0)
        tell(soft=here, in_child_modulo_251=os.waitstatus_to_exitcode(status))


def fork_paths(engines: int) -> None:
    """Reports how many paths an endpoint of a forked child gets while the parent has one open."""
    with Endpoint(interfaces=LOCAL, engines=engines):
        child = os.fork()
        if child == 0:
            with Endpoint(interfaces=LOCAL, engines=engines) as mine:
                tell(summary=mine.summary())
            os._exit(0)
        os.waitpid(child, 0)


def half_way(engines: int) -> None:
    """Opens endpoints that fail after engines and sockets were created; reports leaks."""
    before = open_descriptors()
    opened, running = [], []
    for _ in range(20):
        with contextlib.suppress(WeftError):
            Endpoint(interfaces=LOCAL, engines=engines, secret_file="/nowhere/at/all")
        opened.append(open_descriptors())
        running.append(len(os.listdir("/proc/self/task")))
    tell(before=before, opened=opened, running=running)


def doctor(engines: int) -> None:
    """Reports the findings of `weft doctor`."""
    os.environ |= {"WEFT_ENGINES": str(engines), "WEFT_INTERFACES": LOCAL}
    tell(**asdict(check_descriptors()))


def main() -> None:
    role, soft, hard, number = sys.argv[1], *map(int, sys.argv[2:])
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    roles = (
        transfer,
        start,
        endpoints,
        dials,
        accepts,
        forks,
        fork_paths,
        half_way,
        doctor,
        devices,
    )
    {one.__name__: one for one in roles}[role](number)


if __name__ == "__main__":
    main()
