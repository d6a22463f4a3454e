"""A peer that lends memory which nobody can read: `python -m tests.local.blocking HANDLE`.

Whoever reads the memory sleeps in the kernel until this program, or a child of it, closes a
userfaultfd(2), whatever becomes of the peer. It prints `lent`, or why that cannot be had here, then
`asleep` once somebody sleeps, and obeys lines of its standard input: `give` closes the userfaultfd,
so that the memory reads as zeros, and `die` ends the peer while its child keeps it unreadable.
"""

import ctypes
import fcntl
import mmap
import os
import random
import signal
import struct
import sys

from tests.local.hostile import COPIES, LENDS, SIDE_BYTES, SIDES, Memory, check_layout
from tests.local.support import PATIENCE_S
from transport import Connection, Endpoint

USERFAULTFD = {"x86_64": 323, "aarch64": 282}  # number of the system call
# linux/userfaultfd.h
API, UFFDIO_API, UFFDIO_REGISTER, MISSING = 0xAA, 0xC018AA3F, 0xC020AA00, 1
LENT_BYTES = 4 << 20


def userfaultfd() -> int:
    """A descriptor for faults of the kernel too, which needs root; OSError if it is not granted."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    made: int = call(USERFAULTFD.get(os.uname().machine, -1), os.O_CLOEXEC)
    if made < 0:
        raise OSError(ctypes.get_errno(), "userfaultfd")
    fcntl.ioctl(made, UFFDIO_API, bytearray(struct.pack("QQQ", API, 0, 0)))
    return made


def unreadable(descriptor: int) -> tuple[mmap.mmap, int]:
    """Memory whose readers sleep until the descriptor is closed, and its address."""
    memory = mmap.mmap(-1, LENT_BYTES)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    asked = struct.pack("QQQQ", address, LENT_BYTES, MISSING, 0)
    fcntl.ioctl(descriptor, UFFDIO_REGISTER, bytearray(asked))
    return memory, address


def lend(connection: Connection) -> tuple[mmap.mmap, int]:
    """Lends memory to the other end; returns it, and the descriptor that lets it be read."""
    shared = Memory()
    check_layout(connection, shared)
    if shared.word(SIDES + SIDE_BYTES + COPIES).value % 2 == 0:
        raise OSError("the other end cannot copy out of this process")
    descriptor = userfaultfd()
    memory, address = unreadable(descriptor)
    shared.say(random.Random(0), LENT_BYTES | LENDS, address)
    return memory, descriptor


def die_with_a_child() -> None:
    """Ends this process, but not a child that has its descriptors and its standard input."""
    if os.fork() != 0:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    handle = bytes.fromhex(sys.argv[1])
    with Endpoint() as endpoint, endpoint.connect(handle, timeout_s=PATIENCE_S) as connection:
        try:
            memory, descriptor = lend(connection)
        except OSError as error:
            print(error, flush=True)
            return
        print("lent", flush=True)
        os.read(descriptor, 64)  # the fault of a reader
        print("asleep", flush=True)
        for order in map(str.strip, sys.stdin):
            if order == "die":
                die_with_a_child()
            if order == "give":
                break
        os.close(descriptor)
        sys.stdin.read()
        memory.close()
        os._exit(0)  # a child of a fork has no engines to stop


if __name__ == "__main__":
    main()
