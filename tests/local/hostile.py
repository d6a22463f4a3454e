"""A peer that breaks the rules of the shared memory: `python -m tests.local.hostile HANDLE ATTACK`.

It finds the mapping of its own connection and writes there what no peer writes. The places follow
native/local/segment.h and lane.h, and are checked against a message before they are used.
"""

import contextlib
import ctypes
import mmap
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.local.support import MAPPING, PATIENCE_S, RING_BYTES
from tests.waiting import until
from transport import Connection, Endpoint
from transport.errors import WeftError

SIDES, SIDE_BYTES = 128, 1152
WANTS, SLEEPERS, BELL, MARK_ADDRESS, MARK, COPIES, ENDED = 0, 4, 8, 128, 136, 152, 156
OFFERS, ADVICE, TRIALS = 160, 168, 176  # OFFERS: with the word of what is accepted
LANES = SIDES + 2 * SIDE_BYTES
PRODUCED, CONSUMED, LENT, LOANS = 0, 128, 256, 384
LANE_BYTES = 512
RINGS = 4096  # the first page has all before them
WHOLE_BYTES = RINGS + 2 * RING_BYTES
HEAD_BYTES = 16
LENDS = 1 << 63
LENDS_OF_DEVICE = 1 << 62
RECEIVE_BYTES = 1 << 20  # capacity of the victim's receives
LENT_BYTES = RECEIVE_BYTES  # long enough for several threads
MPROTECT = ctypes.CDLL(None, use_errno=True).mprotect
HELD: list[mmap.mmap] = []  # may be read until this process ends


class Memory:
    """The shared memory of this process's only connection, which it dialled."""

    def __init__(self) -> None:
        rows = [row for row in Path("/proc/self/maps").read_text().splitlines() if MAPPING in row]
        (row,) = rows
        self.at = int(row.split("-")[0], 16)
        self.all = np.ctypeslib.as_array((ctypes.c_uint8 * WHOLE_BYTES).from_address(self.at))

    def word(self, place: int) -> ctypes.c_uint64:
        return ctypes.c_uint64.from_address(self.at + place)

    def lane(self, index: int, place: int) -> ctypes.c_uint64:
        return self.word(LANES + index * LANE_BYTES + place)

    def say(self, draw: random.Random, bytes_and_kind: int, address: int) -> None:
        """Publishes the head of a message in the lane to the victim, with random bytes behind."""
        produced = self.lane(0, PRODUCED)
        start = RINGS
        at = produced.value % RING_BYTES
        behind = draw.choice([0, 16, 4096, RING_BYTES - HEAD_BYTES])
        for i, value in enumerate((bytes_and_kind, address)):
            self.word(start + (at + 8 * i) % RING_BYTES).value = value & (1 << 64) - 1
        produced.value += HEAD_BYTES + behind


def some_position(draw: random.Random, true: int) -> int:
    """A value that is plausible, at a limit, or arbitrary."""
    near = draw.choice([1, 8, 15, 16, 17, 4096, RING_BYTES - 16, RING_BYTES, RING_BYTES + 16])
    wild = draw.choice([0, 1, 1 << 63, (1 << 64) - 16, (1 << 64) - 1, draw.getrandbits(64)])
    return draw.choice([true + near, true - near, wild]) & (1 << 64) - 1


def positions(memory: Memory, draw: random.Random) -> None:
    """Writes into the positions of both lanes."""
    for _ in range(draw.choice([1, 3, 200])):
        word = memory.lane(draw.randrange(2), draw.choice([PRODUCED, CONSUMED, LENT]))
        word.value = some_position(draw, word.value)


def sizes(memory: Memory, draw: random.Random) -> None:
    """Announces messages of impossible or changing sizes."""
    for _ in range(draw.choice([1, 5])):
        size = draw.choice(
            [
                *(RECEIVE_BYTES, RECEIVE_BYTES + 1, RING_BYTES, (1 << 63) - 1, 1 << 62, 0, 1),
                draw.getrandbits(63),
            ]
        )
        memory.say(draw, size, draw.getrandbits(64))


def addresses(memory: Memory, draw: random.Random) -> None:
    """Lends messages at addresses that this process does not have, or that wrap around."""
    own = ctypes.create_string_buffer(4096)
    for _ in range(draw.choice([1, 5])):
        address = draw.choice(
            [
                *(0, 1, (1 << 64) - 1, (1 << 64) - 4096, 0xFFFF_8000_0000_0000, 1 << 47),
                *(draw.getrandbits(64), memory.at + WHOLE_BYTES - 16, ctypes.addressof(own)),
            ]
        )
        size = draw.choice([1, 4096, 65536, RECEIVE_BYTES, RECEIVE_BYTES + 1, 0, 1 << 62])
        memory.say(draw, size | LENDS, address)


def introductions(memory: Memory, draw: random.Random) -> None:
    """Writes into what the sides tell each other."""
    for _ in range(draw.choice([1, 10])):
        side = SIDES + SIDE_BYTES * draw.randrange(2)
        places = [WANTS, BELL, MARK_ADDRESS, MARK, MARK + 8, COPIES, OFFERS, ADVICE, TRIALS]
        place = draw.choice(places)
        memory.word(side + place).value = draw.choice([0, 1, 3, draw.getrandbits(64)])
    memory.say(draw, 65536 | LENDS, memory.at)


def loans(memory: Memory, draw: random.Random) -> None:
    """Lends memory of a device to a process that has none, and counts loans that it did not get."""
    memory.word(SIDES + OFFERS).value = draw.getrandbits(64)
    memory.lane(1, LOANS).value = draw.choice([0, 2, draw.getrandbits(64)])
    memory.say(draw, 65536 | LENDS_OF_DEVICE | draw.choice([0, LENDS]), 0)


def holes(memory: Memory, draw: random.Random) -> None:
    """Lends messages that cannot be read in some place, or that end while they are copied."""
    kept = mmap.mmap(-1, LENT_BYTES)
    kept[:] = bytes(LENT_BYTES)
    address = ctypes.addressof(ctypes.c_char.from_buffer(kept))
    hole = address + draw.randrange(LENT_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE
    early = draw.random() < 0.5
    if early:
        forbid(hole, mmap.PAGESIZE)
    for _ in range(draw.choice([1, 3])):
        memory.say(draw, LENT_BYTES | LENDS, address)
    wake()
    if not early:
        time.sleep(draw.random() * 0.0005)  # while threads copy it
        forbid(hole, draw.choice([mmap.PAGESIZE, address + LENT_BYTES - hole]))
        memory.lane(0, LENT).value |= draw.randrange(2)
    HELD.append(kept)


def forbid(address: int, size_bytes: int) -> None:
    """Makes memory unreadable."""
    if MPROTECT(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")


def everything(memory: Memory, draw: random.Random) -> None:
    """Writes random bytes over the whole memory, again and again."""
    for _ in range(draw.choice([1, 10])):
        memory.all[:] = np.random.default_rng(draw.getrandbits(32)).integers(
            0, 256, WHOLE_BYTES, np.uint8
        )


ATTACKS = (positions, sizes, addresses, introductions, holes, loans, everything)


def wake() -> None:
    """Sends the byte that wakes the other process."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # no socket, or closed meanwhile
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    if (one.family, one.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET):
                        one.send(b"\0")


def until_ended(memory: Memory) -> None:
    """Waits until the victim has ended the connection, or this process, which then unmaps it."""
    ended = ctypes.c_uint32.from_address(memory.at + SIDES + SIDE_BYTES + ENDED)
    until(lambda: ended.value != 0 or MAPPING not in Path("/proc/self/maps").read_text())


def writes_too_far(memory: Memory, _: random.Random) -> None:
    """Claims to have written more than the ring holds."""
    memory.lane(0, PRODUCED).value += 1 << 40
    wake()
    until_ended(memory)


def lends_what_it_lacks(memory: Memory, draw: random.Random) -> None:
    """Lends memory where no process has any."""
    memory.say(draw, 4096 | LENDS, 16)
    wake()
    until_ended(memory)


SINGLE = (writes_too_far, lends_what_it_lacks)


def check_layout(connection: Connection, memory: Memory) -> None:
    """Asserts that the places above are those of the library."""
    before = memory.lane(0, PRODUCED).value
    connection.send(b"layout" * 10, timeout_s=PATIENCE_S)
    assert connection.recv(100, timeout_s=PATIENCE_S) == b"layout" * 10
    assert memory.lane(0, PRODUCED).value - before == HEAD_BYTES + 64
    assert memory.lane(0, CONSUMED).value == memory.lane(0, PRODUCED).value
    assert memory.word(RINGS + before % RING_BYTES).value == 60


def attack(handle: bytes, work: Callable[[Memory, random.Random], None], seed: int) -> None:
    """Breaks one connection, with messages of both ends in it."""
    draw = random.Random(seed)
    with Endpoint() as endpoint, endpoint.connect(handle, timeout_s=PATIENCE_S) as connection:
        memory = Memory()
        check_layout(connection, memory)
        if work in SINGLE:
            work(memory, draw)
            return
        with contextlib.suppress(WeftError):
            for _ in range(draw.randrange(4)):
                connection.isend(bytes(draw.choice([0, 10, 5000, 100_000, RECEIVE_BYTES])))
            if draw.random() < 0.5:
                connection.irecv_into(bytearray(RECEIVE_BYTES))
            work(memory, draw)
            connection.isend(b"goes on")  # wakes the victim
            connection.irecv_into(bytearray(RECEIVE_BYTES))
        time.sleep(draw.choice([0, 0.01]))  # while the victim works on it
        work(memory, draw)


def main() -> None:
    handle, name, first, count = sys.argv[1:]
    work = {one.__name__: one for one in (*ATTACKS, *SINGLE)}[name]
    for seed in range(int(first), int(first) + int(count)):
        attack(bytes.fromhex(handle), work, seed)
    print("done", flush=True)


if __name__ == "__main__":
    main()
