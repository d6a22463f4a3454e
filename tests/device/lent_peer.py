"""The other process of tests/device/lent_checks.py: receives into memory of a GPU or of the host.

Reads commands from standard input, a line each, and answers each with a line.
"""

import sys
from typing import Any

import cupy
import numpy as np

from tests.api.support import PATIENCE_S
from transport import Connection, Endpoint
from transport.errors import WeftError


def random(size_bytes: int, seed: int) -> Any:
    """Random bytes on the current GPU; the same on every GPU of a model."""
    return cupy.random.default_rng(seed).integers(0, 256, size_bytes, dtype=cupy.uint8)


def received(connection: Connection, kind: str, size_bytes: int, seed: int) -> str:
    """Receives a message; says whether its bytes are right, and nothing else was written."""
    library = np if kind == "host" else cupy
    place = library.full(size_bytes + 33, 0xEE, dtype=library.uint8)
    if kind != "host":
        cupy.cuda.Device().synchronize()
    print("posted", flush=True)
    try:
        got = connection.irecv_into(place).wait(PATIENCE_S)
    except WeftError as error:
        return f"{type(error).__name__}: {error}"
    wanted = random(size_bytes, seed)
    found = cupy.asarray(place)
    right = got == size_bytes and bool((found[:size_bytes] == wanted).all())
    return "right" if right and bool((found[size_bytes:] == 0xEE).all()) else "wrong"


def main() -> None:
    cupy.cuda.Device(int(sys.argv[2])).use()
    with Endpoint() as endpoint, endpoint.connect(bytes.fromhex(sys.argv[1])) as connection:
        print("connected", flush=True)
        for line in sys.stdin:
            kind, size_bytes, seed = line.split()
            said = received(connection, kind, int(size_bytes), int(seed))
            cupy.get_default_memory_pool().free_all_blocks()
            print(said, flush=True)


if __name__ == "__main__":
    main()
