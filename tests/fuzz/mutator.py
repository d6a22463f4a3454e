"""Damages files at random, from a fixed seed, and feeds them to readers, within bounds.

WEFT_FUZZ_EXECUTIONS sets how many damaged files each target reads; WEFT_FUZZ_SEED, where the seeds
begin. A target that fails names the seed, which makes the same file again.
"""

from __future__ import annotations

import os
import random
import resource
import signal
from collections.abc import Callable, Sequence
from types import FrameType

import pytest

# Taken out of the environment, as endpoints refuse variables WEFT_* that are no knobs.
SEED = int(os.environ.pop("WEFT_FUZZ_SEED", "0"))
EXECUTIONS = os.environ.pop("WEFT_FUZZ_EXECUTIONS", "")
HANG_S = 60
MEMORY_KB_MAX = 1 << 20  # more that a target takes while it reads files of some kilobytes
EXTREMES = (
    *(b"99999999999999999999", b"9223372036854775807", b"-9223372036854775808", b"1e999", b"-1"),
    *(
        b"NaN",
        b"Infinity",
        b"null",
        b"true",
        b"0",
        b"\n",
        b"\0",
        b"\xff\xff\xff\xff",
        b"[[[[",
        b'"',
    ),
)
NUMBERS = (0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, -(2**63))


def mutated(text: bytes, draw: random.Random) -> bytes:
    """The bytes with some changed, removed, repeated, or replaced by extremes."""
    data = bytearray(text)
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(data))
        size = draw.randint(1, 40)
        kind = draw.randrange(7)
        if kind == 0:
            data[at] = draw.randrange(256)
        elif kind == 1:
            del data[at : at + size]
        elif kind == 2:
            data[at:at] = data[at : at + size] * draw.randint(1, 3)
        elif kind == 3:
            data[at : at + draw.choice((1, 4, 10))] = draw.choice(EXTREMES)
        elif kind == 4:
            data[at : at + size] = draw.randbytes(size)
        elif kind == 5:
            data[at : at + 8] = number(draw).to_bytes(8, "little", signed=True)
        elif draw.random() < 0.2:
            del data[at:]
        if not data:
            data = bytearray(b" ")
    return bytes(data)


def number(draw: random.Random) -> int:
    """A number near which readers fail."""
    return min(max(draw.choice(NUMBERS) + draw.randint(-2, 2), -(2**63)), 2**63 - 1)


def executions(usual: int) -> int:
    """The number of files to damage: the environment's, or the usual one."""
    return int(EXECUTIONS or usual)


def fuzz(
    corpus: Sequence[bytes],
    read: Callable[[bytes], object],
    *errors: type[Exception],
    usual: int,
    damage: Callable[[bytes, random.Random], bytes] = mutated,
) -> None:
    """Reads damaged files of the corpus; any exception but `errors` fails, and so does a hang.

    errors: what the reader documents; its text must be one line. Both outcomes must occur.
    """
    outcomes = {"read": 0, "refused": 0}
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    was = signal.signal(signal.SIGALRM, _hangs)
    try:
        for seed in range(SEED, SEED + executions(usual)):
            data = damage(corpus[seed % len(corpus)], random.Random(seed))
            signal.alarm(HANG_S)
            try:
                read(data)
                outcomes["read"] += 1
            except errors as error:
                if "\n" in str(error):
                    pytest.fail(f"seed {seed}: {error}")
                outcomes["refused"] += 1
            except Exception as error:
                pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, was)
    more_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    assert more_kb < MEMORY_KB_MAX, f"{more_kb >> 10} MiB"
    assert min(outcomes.values()) > 0, outcomes


def _hangs(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"a file was read for more than {HANG_S} s")
