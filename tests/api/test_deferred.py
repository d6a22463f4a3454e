"""Tests that the flows of a connection but the first open when a long message needs them."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.api.support import LOCAL, PATIENCE_S, child, content, line, pair, running
from tests.waiting import until
from transport import Connection, Endpoint, telemetry
from transport.errors import ConnectionClosedError, PeerDeadError

ENGINES = 4
SETTINGS: dict[str, Any] = LOCAL | {"engines": ENGINES}
LONG = content(ENGINES * 128 << 10, seed=1)  # a stripe for each flow


def exchange(here: Connection, there: Connection, message: bytes) -> None:
    memory = bytearray(len(message))
    receive = there.irecv_into(memory)
    here.isend(message).wait(PATIENCE_S)
    receive.wait(PATIENCE_S)
    assert memory == message


def flows_in(directory: Path) -> list[int]:
    """The number of flows with a row in each telemetry page."""
    return sorted(len(telemetry.read_page(path).flows) for path in telemetry.pages(directory))


def test_flows__open_with_the_first_long_message(tmp_path: Path) -> None:
    with pair(**SETTINGS, telemetry=str(tmp_path)) as (here, there):
        exchange(here, there, b"short")
        assert flows_in(tmp_path) == [1, 1]
        exchange(here, there, LONG)
        exchange(there, here, LONG)
        assert flows_in(tmp_path) == [ENGINES, ENGINES]
        assert here.counters().bytes_sent == len(LONG) + len(b"short")


def test_messages__that_are_long_may_be_the_first() -> None:
    """Posts at once, while the engines learn of the flows."""
    with Endpoint(**SETTINGS) as left, Endpoint(**SETTINGS) as right, right.listen() as listener:
        held = []
        for _ in range(100):
            here = left.connect(listener.handle)
            send = here.isend(LONG)
            there = listener.accept(timeout_s=PATIENCE_S)
            assert there.recv(len(LONG), timeout_s=PATIENCE_S) == LONG
            send.wait(PATIENCE_S)
            held.append((here, there))
        here, there = held[0]
        exchange(there, here, LONG)


def test_close__tells_a_peer_that_waits_for_a_long_message() -> None:
    with pair(**SETTINGS) as (here, there):
        receive = there.irecv_into(bytearray(len(LONG)))
        here.close()
        with pytest.raises(ConnectionClosedError):
            receive.wait(PATIENCE_S)


def test_close__of_a_connection_that_carried_nothing_is_told() -> None:
    with pair(**SETTINGS) as (here, there):
        here.close()
        with pytest.raises(ConnectionClosedError):
            there.recv(1, timeout_s=PATIENCE_S)


def test_close__while_flows_open() -> None:
    with Endpoint(**SETTINGS) as left, Endpoint(**SETTINGS) as right, right.listen() as listener:
        for _ in range(50):
            here = left.connect(listener.handle)
            there = listener.accept(timeout_s=PATIENCE_S)
            receive = there.irecv_into(bytearray(len(LONG)))
            here.isend(LONG)
            here.close()
            with suppress(ConnectionClosedError):  # unless the message arrived before
                receive.wait(PATIENCE_S)
            with pytest.raises(ConnectionClosedError):
                there.recv(1, timeout_s=PATIENCE_S)
            there.close()
        exchange(left.connect(listener.handle), listener.accept(timeout_s=PATIENCE_S), LONG)


@pytest.mark.parametrize("capacity", [10_000, 70_000, 1 << 20])
def test_death__of_a_peer_leaves_what_it_has_sent(capacity: int) -> None:
    """Receives of any capacity get the messages that arrived; then they fail."""
    with (
        running(child("sends_and_dies", WEFT_ENGINES=str(ENGINES))) as there,
        Endpoint(**SETTINGS) as near,
    ):
        here = near.connect(bytes.fromhex(line(there)))
        assert line(there) == "sent"
        there.kill()
        with pytest.raises(PeerDeadError):  # waits until the death is known
            here.send(b"to the dead", timeout_s=PATIENCE_S)
        for message in (b"first", b"second"):
            assert here.recv(capacity, timeout_s=PATIENCE_S) == message
        with pytest.raises(PeerDeadError):
            here.recv(capacity, timeout_s=PATIENCE_S)


def test_death__of_a_peer_ends_flows_that_never_opened() -> None:
    with running(child("echoes", WEFT_ENGINES=str(ENGINES))) as there, Endpoint(**SETTINGS) as near:
        here = near.connect(bytes.fromhex(line(there)))
        there.kill()
        with pytest.raises(PeerDeadError):
            here.recv(len(LONG), timeout_s=PATIENCE_S)


def test_policies__of_a_connection_hold_for_flows_that_open_later() -> None:
    settings = SETTINGS | {"telemetry": "off"}
    with (
        Endpoint(**settings) as left,
        Endpoint(**settings) as right,
        right.listen(policies={"window": "dctcp"}) as listener,
        left.connect(listener.handle, policies={"window": "cubic"}) as here,
        listener.accept(timeout_s=PATIENCE_S) as there,
    ):
        exchange(here, there, LONG)
        assert here.policies["window"].name == "cubic"
        here.set_policy("window", "swift")
        exchange(here, there, LONG)
        assert here.policies["window"].name == "swift"


def test_connections__by_the_hundred_use_one_row_each(tmp_path: Path) -> None:
    with (
        Endpoint(**SETTINGS, telemetry=str(tmp_path)) as left,
        Endpoint(**SETTINGS, telemetry="off") as right,
        right.listen() as listener,
    ):
        held = [
            (left.connect(listener.handle), listener.accept(timeout_s=PATIENCE_S))
            for _ in range(300)
        ]
        for number, (here, there) in enumerate(held):
            exchange(here, there, str(number).encode())
        assert flows_in(tmp_path) == [len(held)]
        for here, _ in held:
            here.close()
        assert until(lambda: flows_in(tmp_path) == [0])
