"""One process of a schedule: serves echoes, dials others, and does what its standard input says.

Every line of its standard output is JSON: what became of each connection, and what it holds.
"""

import json
import os
import random
import sys
import threading
import time
from typing import Any

from transport import Connection, Endpoint
from transport.errors import WeftError

BYTES_MAX = 200_000
POLICIES = {
    "window": ("swift", "dctcp", "cubic"),
    "path": ("power_of_two", "oblivious", "round_robin"),
}


SPEAKING = threading.Lock()


def say(**facts: Any) -> None:
    with SPEAKING:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class Node:
    """An endpoint and the connections that it has dialled."""

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
        try:
            connection = self.endpoint.connect(bytes.fromhex(handle), timeout_s=120)
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
                time.sleep(chance.random() * 0.02)
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
        """A child that holds what it inherited for a while, as a loader's worker does."""
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)

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
            case "fork":
                self.fork()
            case "report":
                say(event="report", rounds=self.rounds)


def main() -> None:
    with Endpoint() as endpoint:
        node = Node(endpoint)
        say(event="ready", handle=node.listener.handle.hex(), descriptors=descriptors())
        for text in sys.stdin:
            order = json.loads(text)
            if order["do"] == "end":
                break
            node.obey(order)
        node.end()
        time.sleep(0.2)
        say(event="ended", descriptors=descriptors())


if __name__ == "__main__":
    main()
