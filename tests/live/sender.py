"""Sends a message to an echoing process for each line on stdin, and receives it back: `HANDLE`."""

import os
import sys

from transport import Endpoint

MESSAGE_BYTES = 1_000_000


def main(address: str) -> None:
    """Prints a line when a message is posted, and one when it has come back."""
    message = os.urandom(MESSAGE_BYTES)
    with Endpoint() as endpoint, endpoint.connect(bytes.fromhex(address)) as connection:
        print("connected", flush=True)
        for _ in sys.stdin:
            handle = connection.isend(message)
            print("posted", flush=True)
            handle.wait()
            assert connection.recv(MESSAGE_BYTES) == message
            print("echoed", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
