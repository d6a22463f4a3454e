"""Tests the ports and the DSCP that settings choose, as a firewall or a switch sees them."""

import os
import socket
import threading
from contextlib import ExitStack
from typing import Any

import pytest

from tests.waiting import PATIENCE_S, until
from transport import Connection, Endpoint
from transport.errors import AddressError, WeftError

# Below the ports that Linux gives to sockets without one (32768 and up); each process has others.
BASE = 20_000 + os.getpid() % 40 * 300
DATA = f"{BASE}-{BASE + 23}"  # for three endpoints of eight paths
CONTROL = f"{BASE + 100}-{BASE + 101}"


def connected(stack: ExitStack, **settings: Any) -> tuple[Connection, Connection]:
    """A connection between two new endpoints, both with these settings."""
    common: dict[str, Any] = {"interfaces": "lo", "engines": 1, "paths": 8} | settings
    here, there = (stack.enter_context(Endpoint(**common)) for _ in range(2))
    listener = stack.enter_context(there.listen())
    dialled = stack.enter_context(here.connect(listener.handle, timeout_s=PATIENCE_S))
    return dialled, stack.enter_context(listener.accept(timeout_s=PATIENCE_S))


def test_ports__processes_share_a_range_and_learn_when_it_is_used_up() -> None:
    with ExitStack() as stack:
        here, there = connected(stack, port_base=DATA)
        sent = here.isend(b"x" * 100_000)
        assert there.recv(100_000, timeout_s=PATIENCE_S) == b"x" * 100_000
        sent.wait(timeout_s=PATIENCE_S)
        with pytest.raises(WeftError, match=r"all UDP ports from \d+ to \d+ .* are in use"):
            connected(stack, port_base=DATA)
        here.send(b"y", timeout_s=PATIENCE_S)
        assert there.recv(1, timeout_s=PATIENCE_S) == b"y"
    with ExitStack() as stack:
        connected(stack, port_base=DATA)  # the ports are free again


def test_ports__a_range_without_room_for_all_paths_says_how_many_are_needed() -> None:
    with pytest.raises(WeftError, match=r"has 24 ports, and 16 paths .* of 2 engines need 32"):
        Endpoint(interfaces="lo", engines=2, paths=16, port_base=DATA)


def test_ports__a_taken_control_port_is_said_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, Endpoint(interfaces="lo") as endpoint:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match="already in use") as refused:
            endpoint.listen(port=port)
    assert str(refused.value).count("cannot listen") == 1
    assert f"port {port}: " in str(refused.value)


def test_ports__listeners_of_several_processes_share_a_range() -> None:
    with ExitStack() as stack:
        endpoints = [
            stack.enter_context(Endpoint(interfaces="lo", control_port=CONTROL)) for _ in range(3)
        ]
        listeners = [stack.enter_context(one.listen()) for one in endpoints[:2]]
        assert sorted(one.port for one in listeners) == [BASE + 100, BASE + 101]
        with pytest.raises(AddressError, match=f"all ports of WEFT_CONTROL_PORT={CONTROL}"):
            endpoints[2].listen()
        for one in listeners:
            with (
                endpoints[2].connect(one.handle, timeout_s=PATIENCE_S) as dialled,
                one.accept(timeout_s=PATIENCE_S) as accepted,
            ):
                dialled.send(b"z", timeout_s=PATIENCE_S)
                assert accepted.recv(1, timeout_s=PATIENCE_S) == b"z"


def test_ports__one_port_for_two_processes_names_the_remedy() -> None:
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(Endpoint(interfaces="lo", control_port=BASE + 102))
            for _ in range(2)
        )
        stack.enter_context(one.listen())
        with pytest.raises(AddressError, match=rf"port {BASE + 102}: .*a range such as 7000-7063"):
            two.listen()


@pytest.mark.skipif(os.geteuid() != 0, reason="watching packets takes root")
def test_dscp__data_and_control_packets_carry_it() -> None:
    seen: set[tuple[int, int, int]] = set()  # protocol, DSCP, ECN bits
    done = threading.Event()

    def watch(sniffer: socket.socket) -> None:
        sniffer.settimeout(0.2)
        while not done.is_set():
            try:
                packet = sniffer.recv(65536)
            except TimeoutError:
                continue
            ports = {int.from_bytes(packet[at : at + 2], "big") for at in (34, 36)}
            if any(BASE + 200 <= port < BASE + 300 for port in ports):
                seen.add((packet[23], packet[15] >> 2, packet[15] & 3))

    with ExitStack() as stack:
        sniffer = stack.enter_context(
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        )
        sniffer.bind(("lo", 0))
        thread = threading.Thread(target=watch, args=(sniffer,))
        thread.start()
        try:
            settings: dict[str, Any] = {
                "port_base": f"{BASE + 200}-{BASE + 249}",
                "control_port": f"{BASE + 250}-{BASE + 299}",
                "dscp": 26,
            }
            here, there = connected(stack, **settings)
            sent = here.isend(b"x" * 100_000)
            there.recv(100_000, timeout_s=PATIENCE_S)
            sent.wait(timeout_s=PATIENCE_S)
            until(lambda: {(6, 26, 0), (17, 26, 2)} <= seen, f"only {seen} was seen")
        finally:
            done.set()
            thread.join()
    assert {dscp for _, dscp, _ in seen} == {26}
