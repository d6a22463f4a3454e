"""Connects two endpoints in one process and sends a message each way.

Run it: python -m examples.two_endpoints
"""

from transport import Endpoint


def main() -> None:
    with Endpoint(interfaces="lo") as server, Endpoint(interfaces="lo") as client:
        listener = server.listen()
        # The handle is 80 bytes, passed to the peer by any means. Whoever has it may connect.
        here = client.connect(listener.handle)
        there = listener.accept(timeout_s=10)

        reply = bytearray(1 << 20)
        waiting = here.irecv_into(reply)
        here.isend(b"hello")
        print("received", there.recv(100))
        there.send(b"x" * len(reply))
        print("received", waiting.wait(timeout_s=10), "bytes from", here.peer_address)


if __name__ == "__main__":
    main()
