"""Exchanges messages with an echoing process until stdin is closed: `HANDLE [BYTES]`."""

import os
import select
import sys
import time

from transport import Endpoint


def main(address: str, size_bytes: int = 100_000) -> None:
    """Sends and receives messages, with a pause of a millisecond after each."""
    message = os.urandom(size_bytes)
    with Endpoint() as endpoint, endpoint.connect(bytes.fromhex(address)) as connection:
        print("connected", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            connection.send(message)
            assert connection.recv(size_bytes) == message
            time.sleep(0.001)  # other processes of the test want a turn


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
