"""One process of a fault schedule: echoes messages, dials others, and obeys lines of stdin.

Each line of stdout is a JSON event: the state of a connection, or the open descriptors.
"""

import contextlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.waiting import until
from transport import Connection, Endpoint
from transport.errors import WeftError

BYTES_MAX = 200_000
BURST = 400  # dials at once: more control frames than a listener reads in one loop iteration
CHURN_S = 1.0
# How many more descriptors than at the start are allowed, for sockets of paths and sessions.
DESCRIPTORS_MORE = 40
CHILD_S = 120  # time that a forked child lives; longer than any wait for an error about a death
POLICIES = {
    "window": ("swift", "dctcp", "cubic"),
    "path": ("power_of_two", "oblivious", "round_robin"),
}
# Policies for single connections: their libraries are loaded and unloaded with the connections.
OWN_POLICIES = (
    {"window": "cubic", "path": "flowlet", "loss": "sleek"},
    {"window": "aimd", "path": "plb", "loss": "go_back_n", "credit": "grant"},
    {"window": "timely", "loss": "sleek"},
    {"window": "fixed", "path": "bitmap"},
)

SPEAKING = threading.Lock()


def say(**facts: Any) -> None:
    with SPEAKING:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class Node:
    """An endpoint with the connections that it has dialled and accepted."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.listener = endpoint.listen()
        self.dialled: dict[int, Connection] = {}
        self.rounds: dict[int, int] = {}
        self.ended = threading.Event()
        self.accepted: list[Connection] = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        for connection in self.listener:
            self.accepted.append(connection)
            threading.Thread(target=self.echo, args=[connection], daemon=True).start()

    def echo(self, connection: Connection) -> None:
        memory = bytearray(BYTES_MAX)
        try:
            while True:
                count = connection.recv_into(memory)
                connection.send(memoryview(memory)[:count])
        except WeftError:
            connection.close()

    def dial(self, number: int, handle: str) -> None:
        """Dials, then exchanges messages until the connection ends; compares every byte."""
        chance = random.Random(number)
        own = chance.choice(OWN_POLICIES) if chance.random() < 0.3 else None
        try:
            connection = self.endpoint.connect(bytes.fromhex(handle), timeout_s=120, policies=own)
            self.dialled[number] = connection
            say(event="dialled", number=number)
            back = bytearray(BYTES_MAX)
            while not self.ended.is_set():
                data = chance.randbytes(chance.choice((0, 1, 5_000, 60_000, BYTES_MAX)))
                receive = connection.irecv_into(back)
                connection.send(data)
                if back[: receive.wait()] != data:
                    say(event="wrong", number=number, round=self.rounds.get(number, 0))
                self.rounds[number] = self.rounds.get(number, 0) + 1
                time.sleep(chance.random() * 0.02)  # the others want a turn
        except WeftError as error:
            say(event="failed", number=number, status=error.status, text=str(error))

    def swap(self, number: int, seed: int) -> None:
        chance = random.Random(seed)
        family = chance.choice(sorted(POLICIES))
        if number in self.dialled:
            try:
                self.dialled[number].set_policy(family, chance.choice(POLICIES[family]))
            except WeftError as error:
                say(event="not swapped", number=number, status=error.status)

    def fork(self) -> None:
        """Forks a child that keeps its inherited descriptors, like a data loader's worker."""
        if os.fork() == 0:
            time.sleep(CHILD_S)  # until the schedule ends it
            os._exit(0)

    def burst(self, number: int, handle: str) -> None:
        """Dials many connections at once; each carries one message there and back."""
        failures: list[str] = []

        def one(index: int) -> None:
            data = index.to_bytes(4, "little")
            try:
                with self.endpoint.connect(bytes.fromhex(handle), timeout_s=120) as connection:
                    connection.send(data)
                    if connection.recv(4) != data:
                        say(event="wrong", number=number, round=index)
            except WeftError as error:
                failures.append(error.status)

        threads = [
            threading.Thread(target=one, args=[index], daemon=True) for index in range(BURST)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say(event="burst", number=number, failures=sorted(set(failures)), count=len(failures))

    def churn(self, seed: int) -> None:
        """Changes policies of endpoint and connections while connections are dialled and closed."""
        until = time.monotonic() + CHURN_S
        failures: list[str] = []

        def guarded(work: Callable[[], None]) -> None:
            try:
                work()
            except WeftError as error:
                failures.append(f"{error.status}: {error}")

        def change() -> None:
            chance = random.Random(seed)
            while time.monotonic() < until:
                self.endpoint.set_policy("window", chance.choice(POLICIES["window"]))
                for connection in list(self.dialled.values()):
                    with contextlib.suppress(WeftError):
                        connection.set_policy("path", chance.choice(POLICIES["path"]))

        def dial() -> None:
            chance = random.Random(seed + 1)
            handle = self.listener.handle
            while time.monotonic() < until:
                own = chance.choice(OWN_POLICIES)
                with self.endpoint.connect(handle, timeout_s=120, policies=own) as connection:
                    connection.send(b"policies")
                    if connection.recv(8) != b"policies":
                        say(event="wrong", number=-1, round=0)

        works = (change, dial, dial)
        threads = [threading.Thread(target=guarded, args=[work], daemon=True) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say(event="churned", failures=failures)

    def abort(self) -> None:
        """Closes all dialled connections with messages in flight, as ncclCommAbort does."""
        for connection in list(self.dialled.values()):
            connection.close()

    def end(self) -> None:
        self.ended.set()
        for connection in [*self.dialled.values(), *self.accepted]:
            connection.close()
        self.listener.close()

    def obey(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "dial":
                words = (order["number"], order["handle"])
                threading.Thread(target=self.dial, args=words, daemon=True).start()
            case "close":
                if order["number"] in self.dialled:
                    self.dialled[order["number"]].close()
            case "swap":
                self.swap(order["number"], order["seed"])
            case "abort":
                self.abort()
            case "burst":
                words = (order["number"], order["handle"])
                threading.Thread(target=self.burst, args=words, daemon=True).start()
            case "churn":
                threading.Thread(target=self.churn, args=[order["seed"]], daemon=True).start()
            case "fork":
                self.fork()
            case "report":
                say(event="report", rounds=self.rounds)


def main() -> None:
    with Endpoint() as endpoint:
        node = Node(endpoint)
        before = descriptors()
        say(event="ready", handle=node.listener.handle.hex(), descriptors=before)
        for text in sys.stdin:
            order = json.loads(text)
            if order["do"] == "end":
                break
            node.obey(order)
        node.end()
        with contextlib.suppress(AssertionError):  # the schedule says that they are too many
            until(lambda: descriptors() <= before + DESCRIPTORS_MORE)
        say(event="ended", descriptors=descriptors())


if __name__ == "__main__":
    main()
