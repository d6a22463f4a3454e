"""Tests what is left of a process that ends, what a second one gets, and who may use AF_XDP."""

import json
import os
import signal
import subprocess

import pytest

from tests.waiting import PATIENCE_S, until
from tests.xdp.support import Wire, ip
from tests.xdp.talk import begin, finish, talk

pytestmark = pytest.mark.namespaces

OPEN = """
from transport import Endpoint
try:
    with Endpoint() as endpoint:
        print(endpoint.summary())
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""
LISTEN = """
from transport import Endpoint
with Endpoint() as endpoint, endpoint.listen(port=0, open=True) as listener:
    print(listener.port, flush=True)
    with listener.accept(timeout_s=240) as connection:
        assert connection.recv(5, timeout_s=240) == b"hello"
        connection.send(b"world", timeout_s=240)
        connection.recv(1, timeout_s=240)
"""
DIAL = """
import sys
from transport import Endpoint
with Endpoint() as endpoint:
    with endpoint.connect("10.78.0.1", int(sys.argv[1]), timeout_s=240) as connection:
        connection.send(b"hello", timeout_s=240)
        assert connection.recv(5, timeout_s=240) == b"world"
        connection.send(b"!", timeout_s=240)
"""


ECHO_TWICE = """
from transport import Endpoint
with Endpoint() as endpoint, endpoint.listen(port=7000, open=True) as listener:
    print("ready", flush=True)
    with listener.accept(timeout_s=240) as one, listener.accept(timeout_s=240) as two:
        for connection in (one, two, two):
            connection.send(connection.recv(5, timeout_s=240), timeout_s=240)
        two.recv(1, timeout_s=240)
"""
TWO_ENDPOINTS = """
from transport import Endpoint

def exchange(connection):
    connection.send(b"hello", timeout_s=240)
    assert connection.recv(5, timeout_s=240) == b"hello"

with Endpoint() as second:
    with Endpoint() as first, first.connect("10.78.0.2", 7000, timeout_s=240) as one:
        two = second.connect("10.78.0.2", 7000, timeout_s=240)
        exchange(one)
        exchange(two)
        assert first.counters().bypass_sent > 0
    exchange(two)
    two.send(b"!", timeout_s=240)
    two.close()
    assert second.counters().bypass_sent == 0
"""


FORKED = """
import os, sys, time
from transport import Endpoint
port = int(sys.argv[1])
with Endpoint() as endpoint, endpoint.connect("10.78.0.2", port, timeout_s=240) as connection:
    connection.send(b"hello", timeout_s=240)
    assert connection.recv(5, timeout_s=240) == b"world"
    child = os.fork()
    if child == 0:
        time.sleep(240)
        os._exit(0)
    print(child, flush=True)
    sys.stdin.readline()
"""


def said(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    return out.strip()


def gone(wire: Wire, host: int) -> None:
    until(lambda: wire.program(host) == 0, f"host {host} still has an XDP program")


def test_life__the_program_goes_with_the_endpoint(wire: Wire) -> None:
    talk(wire)
    gone(wire, 0)
    gone(wire, 1)


def test_life__a_killed_process_leaves_nothing(wire: Wire) -> None:
    ends = begin(wire, hold=True)
    assert wire.program(0) > 0
    assert wire.program(1) > 0
    for end in ends:
        # `ip netns exec` becomes the program itself, so that this signal reaches the endpoint.
        end.send_signal(signal.SIGKILL)
        end.wait(timeout=PATIENCE_S)
    gone(wire, 0)
    gone(wire, 1)
    ends = begin(wire, hold=True)  # at once: the queues may still be taken
    assert all(end["bypass_sent"] > 0 for end in finish(*ends))


def test_life__a_forked_child_keeps_nothing(wire: Wire) -> None:
    listener = wire.start(1, LISTEN)
    assert listener.stdout is not None
    parent = wire.start(0, FORKED, listener.stdout.readline().strip())
    assert parent.stdout is not None
    said_child = parent.stdout.readline().strip()
    assert said_child.isdigit(), parent.communicate()
    child = int(said_child)
    try:
        assert wire.program(0) > 0
        parent.send_signal(signal.SIGKILL)
        parent.wait(timeout=PATIENCE_S)
        gone(wire, 0)
        os.kill(child, 0)  # it is still there
    finally:
        os.kill(child, signal.SIGKILL)


def test_life__a_second_process_uses_udp_sockets(wire: Wire) -> None:
    first = begin(wire, hold=True)
    holder = wire.program(0)
    settings = {"WEFT_CONTROL_PORT": "0"}
    second = wire.start(0, LISTEN, **settings)
    assert second.stdout is not None
    port = second.stdout.readline().strip()
    assert port.isdigit(), second.communicate()
    dialler = wire.start(0, DIAL, port, **settings)
    _, errors = dialler.communicate(timeout=PATIENCE_S)
    assert dialler.returncode == 0, errors
    assert f"program {holder}" in errors
    assert "UDP sockets are used instead of AF_XDP on eth0" in errors
    assert wire.program(0) == holder
    finish(*first)


def test_life__endpoints_of_a_process_share_the_program(wire: Wire) -> None:
    """A queue has room for the first one; the second uses UDP sockets, and outlives the first."""
    server = wire.start(1, ECHO_TWICE)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n", server.communicate()
    client = wire.start(0, TWO_ENDPOINTS)
    _, errors = client.communicate(timeout=PATIENCE_S)
    assert client.returncode == 0, errors
    assert "on queue 0 of eth0: another socket has it" in errors
    gone(wire, 0)


def test_life__without_capabilities_it_says_which(wire: Wire) -> None:
    text = said(wire.start_powerless(0, OPEN))
    assert "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF" in text
    assert "setcap" in text
    assert "auto would use UDP sockets instead" in text
    assert said(wire.start_powerless(0, OPEN, WEFT_DATAPATH="udp")).startswith("udp,")


def test_life__loopback_is_refused(wire: Wire) -> None:
    text = said(wire.start(0, OPEN, WEFT_INTERFACES="lo"))
    assert "lo is loopback, where AF_XDP has no use" in text


def test_life__an_interface_that_goes_down_comes_back(wire: Wire) -> None:
    ends = begin(wire, hold=True)
    ip("-n", wire.names[0], "link", "set", "eth0", "down")
    ip("-n", wire.names[0], "link", "set", "eth0", "up")
    finish(*ends)
    gone(wire, 0)


def test_life__a_neighbour_that_is_forgotten_is_found_again(wire: Wire) -> None:
    ends = begin(wire, hold=True)
    ip("-n", wire.names[0], "neigh", "flush", "dev", "eth0")
    ip("-n", wire.names[1], "neigh", "flush", "dev", "eth0")
    finish(*ends)


def test_life__a_route_over_another_interface_is_left_to_the_kernel(wire: Wire) -> None:
    """Two endpoints of one host meet over loopback, although they use the address of eth0."""
    listener = wire.start(0, LISTEN)
    assert listener.stdout is not None
    port = listener.stdout.readline().strip()
    assert port.isdigit(), listener.communicate()
    dialler = wire.start(0, DIAL, port)
    _, errors = dialler.communicate(timeout=PATIENCE_S)
    assert dialler.returncode == 0, errors


def test_life__an_interface_that_is_removed_ends_no_process(wire: Wire) -> None:
    ends = begin(wire, hold=True)
    ip("-n", wire.names[0], "link", "del", "eth0")
    for end in ends:
        assert end.poll() is None


DOCTOR = """
import sys
from transport.cli import main
sys.argv = ["weft", "doctor", "--json", "-"]
main()
"""


def findings(process: subprocess.Popen[str]) -> dict[str, dict[str, str]]:
    """The lines of `weft doctor`, by subject."""
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert out, errors
    return {one["subject"]: one for one in json.loads(out)}


def test_life__doctor_says_what_can_be_used(wire: Wire) -> None:
    good = findings(wire.start(0, DOCTOR))["AF_XDP"]
    assert (good["state"], good["found"]) == ("ok", "can be used on eth0")
    unused = findings(wire.start(0, DOCTOR, WEFT_DATAPATH="udp"))["AF_XDP"]
    assert unused["state"] == "absent"
    assert "WEFT_DATAPATH=xdp uses it" in unused["remedy"]
    bad = findings(wire.start_powerless(0, DOCTOR))
    assert bad["WEFT_DATAPATH"]["state"] == "BROKEN"
    assert "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF" in bad["WEFT_DATAPATH"]["found"]
    assert bad["AF_XDP"]["state"] == "absent"
    assert "cap_net_raw,cap_net_admin,cap_bpf+ep" in bad["AF_XDP"]["remedy"]
