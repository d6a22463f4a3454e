"""Sends as fast as it can to the next host of a ring, and receives from the host before.

Run it on each host, as in docs/PLANNING.md:
python -m transport.examples.ring_of_hosts --open 10.1.0.2
"""

from transport.ground.interrupts import end_at_interrupt

if __name__ == "__main__":
    end_at_interrupt()  # also while the packages below are imported

import threading
import time

import click

from transport import Connection, Endpoint, Listener, WeftError
from transport.cli.options import FiniteRange
from transport.endpoint import knobs
from transport.errors import AddressError, RefusedError

MESSAGE_BYTES, IN_FLIGHT = 256 << 10, 16
PORT = 7000  # without WEFT_CONTROL_PORT
START_S = 30.0  # for the program of the next host to start


def usual_port() -> int:
    """The first port of WEFT_CONTROL_PORT, which is the same on all hosts of a job; else PORT.

    Raises KnobError if a setting of this environment is wrong.
    """
    return int(knobs.in_force()["control_port"].partition("-")[0]) or PORT


def receive(listener: Listener) -> None:
    """Takes messages of one connection until the sender closes it."""
    try:
        before = listener.accept(timeout_s=60)
    except WeftError:  # the program has ended
        return
    with before:
        buffers = [bytearray(MESSAGE_BYTES) for _ in range(IN_FLIGHT)]
        handles = [before.irecv_into(buffer) for buffer in buffers]
        try:
            while True:
                for at, buffer in enumerate(buffers):
                    handles[at].wait(60)
                    handles[at] = before.irecv_into(buffer)
        except WeftError:  # the sender has closed the connection
            return


def send(after: Connection, seconds: float) -> float:
    """Keeps messages in flight for this time; returns the rate in bytes per second."""
    message, sent = bytes(MESSAGE_BYTES), 0
    handles = [after.isend(message) for _ in range(IN_FLIGHT)]
    began_s = time.monotonic()
    while time.monotonic() < began_s + seconds:
        handles[sent % IN_FLIGHT].wait(60)
        handles[sent % IN_FLIGHT] = after.isend(message)
        sent += 1
    return sent * MESSAGE_BYTES / (time.monotonic() - began_s)


def connect(endpoint: Endpoint, to: str, port: int) -> Connection:
    """Connects to a host, on which the program may not have started yet."""
    until_s = time.monotonic() + START_S
    while True:
        try:
            return endpoint.connect(to, port, timeout_s=60)
        except RefusedError as error:
            # Nothing listens yet. Whatever else refuses, such as another secret, will not change.
            if type(error) is not RefusedError:
                raise
            if time.monotonic() > until_s:
                raise click.ClickException(
                    f"{str(error).partition(';')[0]}: start this program on {to}, too, within "
                    f"{START_S:g} s and with the same port: that of --port, or the first of "
                    f"WEFT_CONTROL_PORT, or {PORT}"
                ) from None
            time.sleep(0.1)


@click.command()
@click.argument("to")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    show_default=f"the first of WEFT_CONTROL_PORT, else {PORT}",
    help="TCP port that every host listens on for connections, the same on all hosts.",
)
@click.option(
    "--seconds",
    metavar="SECONDS",
    type=FiniteRange(0.01, 1e6),
    default=5.0,
    show_default=True,
    help="Time to send.",
)
@click.option(
    "--open",
    "is_open",
    is_flag=True,
    help="Accept any process that reaches the port; it must be given.",
)
def main(to: str, port: int | None, seconds: float, is_open: bool) -> None:
    """Send as fast as it can to the host TO, and receive from another one; print the rate.

    Run it on each host of a ring, with the address of the next one as TO. RANK and WORLD_SIZE in
    the environment are the number of this host and how many there are: `weft top` and traces show
    them.

    Example, on the first of two hosts: RANK=0 WORLD_SIZE=2 python -m
    transport.examples.ring_of_hosts --open 10.0.0.2
    """
    if not is_open:
        raise click.UsageError(
            "the hosts find each other by address and not by handles, so any process that reaches "
            "the port may connect: say --open, and set WEFT_SECRET_FILE to keep others out"
        )
    try:
        run(to, port or usual_port(), seconds)
    except WeftError as error:
        raise click.ClickException(str(error)) from None


def listening(endpoint: Endpoint, port: int) -> Listener:
    """Listens on a port; if it cannot, the error says what to do on all hosts."""
    try:
        return endpoint.listen(port=port, open=True)
    except AddressError as error:
        raise click.ClickException(
            f"{str(error).partition(';')[0]}: give another port with --port, the same on all hosts"
        ) from None


def run(to: str, port: int, seconds: float) -> None:
    """Sends to a host and receives from another one; then prints the rate.

    Messages take the network even if the program runs twice on one host.
    """
    with Endpoint(local="off") as endpoint, listening(endpoint, port) as listener:
        click.echo(f"listening on TCP port {port}, connecting to {to} port {port}", err=True)
        thread = threading.Thread(target=receive, args=(listener,), daemon=True)
        thread.start()
        with connect(endpoint, to, port) as after:
            rate = send(after, seconds)
        print(f"sent {rate / 1e6:.2f} MB/s to {to}: {endpoint.summary()}", flush=True)
        thread.join()


if __name__ == "__main__":
    main()
