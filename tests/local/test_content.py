"""Tests that each message arrives once, whole and in order, for any size, mode and pair of ends."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.api.support import PATIENCE_S, pair
from tests.api.test_threads import together
from tests.local.support import (
    RING_BYTES,
    WAYS,
    agree,
    dialled,
    is_local,
    message,
    served,
    words,
)
from transport import Connection

LENT_BYTES = 128 * 1024  # native/local/lending.h, kLendBytes
HEAD_BYTES = 16
EDGES = sorted(
    {0, 1, 15, 16, 17, 5_000_000}
    | {limit + d for limit in (LENT_BYTES, RING_BYTES) for d in (-17, -16, -15, -1, 0, 1, 15, 16)}
)
SIZES = st.one_of(
    st.sampled_from(EDGES), st.integers(0, 3000), st.integers(0, 2 * RING_BYTES + 999)
)
PLANS = st.lists(SIZES, max_size=12)


@pytest.fixture(scope="module", params=WAYS)
def within(request: pytest.FixtureRequest) -> Iterator[tuple[Connection, Connection]]:
    """A connection within this process."""
    with pair(**words(request.param)) as ends:
        yield ends


@pytest.fixture(scope="module", params=WAYS)
def between(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection to a process that checks what it gets."""
    with (
        served("exchanges", mode=request.param) as (_, handle),
        dialled(handle, request.param) as connection,
    ):
        yield connection


def test_content__of_all_sizes_both_ways_at_once(between: Connection) -> None:
    agree(between, EDGES, EDGES[::-1])
    agree(between, EDGES[::-1] * 3, EDGES * 3, seed=9)
    assert is_local(between)


def test_content__one_way_at_a_time(between: Connection) -> None:
    agree(between, EDGES, [])
    agree(between, [], EDGES)
    assert is_local(between)


def test_content__fills_the_ring_to_the_last_byte(between: Connection) -> None:
    for size in range(RING_BYTES - 2 * HEAD_BYTES, RING_BYTES + HEAD_BYTES + 1):
        agree(between, [size], [], seed=size)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(out=PLANS, into=PLANS, seed=st.integers(0, 1 << 20))
def test_content__of_any_sequence(
    between: Connection, out: list[int], into: list[int], seed: int
) -> None:
    agree(between, out, into, seed)


class Ledger:
    """Operations on both ends of a connection, and what must have arrived."""

    def __init__(self, ends: tuple[Connection, Connection]) -> None:
        self.ends = ends
        self.sends: list[list[Any]] = [[], []]  # of each end
        self.receives: list[list[Any]] = [[], []]
        self.sizes: list[list[int]] = [[], []]

    def send(self, end: int, size: int) -> None:
        data = message(size, len(self.sizes[end]))
        self.sizes[end].append(size)
        self.sends[end].append(self.ends[end].isend(data))

    def receive(self, end: int, _: int) -> None:
        self.receives[end].append(self.ends[end].irecv(EDGES[-1]))

    def settle(self) -> None:
        for end in (0, 1):
            while len(self.receives[end]) < len(self.sizes[1 - end]):
                self.receive(end, 0)
            while len(self.sizes[1 - end]) < len(self.receives[end]):
                self.send(1 - end, 3)
        for end in (0, 1):
            for i, size in enumerate(self.sizes[1 - end]):
                assert self.receives[end][i].wait(PATIENCE_S) == size
                assert self.receives[end][i].data == message(size, i).tobytes()
        for request in (*self.sends[0], *self.sends[1]):
            request.wait(PATIENCE_S)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["send", "receive"]), st.integers(0, 1), SIZES), max_size=30
    )
)
def test_content__whichever_end_posts_first(
    within: tuple[Connection, Connection], steps: list[tuple[str, int, int]]
) -> None:
    ledger = Ledger(within)
    for what, end, size in steps:
        getattr(ledger, what)(end, size)
    ledger.settle()
    assert all(one.counters().segments_sent == 0 for one in within)


def test_content__with_many_threads_on_one_connection(
    within: tuple[Connection, Connection],
) -> None:
    here, there = within
    each, sizes = 60, [4, 100_000, 20, 300_000]
    arrived: list[bytes] = []

    def work(index: int) -> None:
        if index == 0:
            arrived.extend(there.recv(300_000, timeout_s=PATIENCE_S) for _ in range(4 * each))
            return
        for i in range(each):
            number = index * each + i
            body = number.to_bytes(4, "little") + message(sizes[i % 4], number).tobytes()[4:]
            here.send(body, timeout_s=PATIENCE_S)

    together(5, work)
    numbers = [int.from_bytes(one[:4], "little") for one in arrived]
    assert sorted(numbers) == list(range(each, 5 * each))
    for index in range(1, 5):
        mine = [one for one in numbers if one // each == index]
        assert mine == sorted(mine)
    for number, data in zip(numbers, arrived, strict=True):
        assert data[4:] == message(sizes[number % each % 4], number).tobytes()[4:]


def test_content__with_asyncio(within: tuple[Connection, Connection]) -> None:
    here, there = within
    sizes = EDGES * 4

    async def one_way(sender: Connection, receiver: Connection) -> None:
        receives = [asyncio.create_task(receiver.arecv(EDGES[-1])) for _ in sizes]
        sends = [
            asyncio.create_task(sender.asend(message(size, i))) for i, size in enumerate(sizes)
        ]
        await asyncio.gather(*sends)
        for i, data in enumerate(await asyncio.gather(*receives)):
            assert data == message(sizes[i], i).tobytes()

    async def main() -> None:
        await asyncio.gather(one_way(here, there), one_way(there, here))

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_content__on_many_connections_at_once() -> None:
    with served("exchanges") as (_, handle):

        def work(index: int) -> None:
            with dialled(handle) as connection:
                for seed in range(5):
                    agree(connection, [RING_BYTES + index, 9], [index, 1 << 20], seed)
                assert is_local(connection)

        together(6, work)
