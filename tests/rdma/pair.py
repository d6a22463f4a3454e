"""Both ends of a connection over queue pairs in one process, with checked messages.

Starting a second process in the guest would take longer than the tests that use this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.rdma.transfer import Contents, address, sizes
from transport import Endpoint
from transport.endpoint.connection import Connection
from transport.endpoint.knobs import KnobValue, keys_of, merged

PATIENCE_S = 60.0
MESSAGES, MOST_BYTES = 60, 64 << 10


class UnderWay:
    """Messages posted at both ends, which the engines transfer without further calls."""

    def __init__(self, pair: Pair, expected: list[int]) -> None:
        self.contents, self.expected = Contents(), expected
        self.memory = [bytearray(max(size, 1)) for size in expected]
        self.receives = [
            pair.receiving.irecv_into(
                buffer, memory=pair.here.register(buffer) if pair.direct else None
            )
            for buffer in self.memory
        ]
        block = pair.there.register(self.contents.block) if pair.direct else None
        self.sends = [
            pair.sending.isend(self.contents.of(i, size), memory=block)
            for i, size in enumerate(self.expected)
        ]

    def await_some(self) -> None:
        """Waits for the first message, while the others are in flight."""
        self.receives[0].wait(timeout_s=PATIENCE_S)

    def finish(self) -> int:
        """Waits for all messages; returns the number of wrong messages."""
        wrong = 0
        for number, handle in enumerate(self.receives):
            got = handle.wait(timeout_s=PATIENCE_S)
            same = self.contents.are(number, got, address(self.memory[number]))
            wrong += got != self.expected[number] or not same
        for handle in self.sends:
            handle.wait(timeout_s=PATIENCE_S)
        return wrong


@dataclass(frozen=True)
class Pair:
    """A receiver and a sender, each with its own endpoint."""

    here: Endpoint
    receiving: Connection
    there: Endpoint
    sending: Connection
    direct: bool  # True: buffers are registered, and the NIC writes into them

    def begin(self, messages: int, most: int, seed: int = 1) -> UnderWay:
        return UnderWay(self, sizes(messages, most, seed))

    def carry(self, seed: int = 1) -> int:
        """Transfers a few messages; returns the number of wrong messages."""
        return self.begin(MESSAGES, MOST_BYTES, seed).finish()


@contextmanager
def paired(
    mode: str, receiver: str = "rxea", sender: str = "rxeb", **knobs: KnobValue
) -> Iterator[Pair]:
    usual: dict[str, KnobValue] = {"datapath": "verbs", "rdma": {"mode": mode, "slots": 512}}
    common = merged(usual, {"engines": 1, "paths": 8}, knobs)
    with (
        Endpoint(rdma_devices=receiver, **common) as here,
        Endpoint(rdma_devices=sender, **common) as there,
        here.listen() as listener,
        there.connect(listener.handle) as sending,
        listener.accept(timeout_s=PATIENCE_S) as receiving,
    ):
        direct = keys_of(common["rdma"]).get("placement") == "direct"
        yield Pair(here, receiving, there, sending, direct)
