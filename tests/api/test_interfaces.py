"""Tests a connection over two interfaces, also when one of them goes down.

Both ends run in namespaces joined by veth; no interface of the host is changed.
"""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environment import clean_environment
from tests.waiting import PATIENCE_S, until

MESSAGE_BYTES = 1 << 20
ROOT = Path(__file__).resolve().parents[2]

SERVER = f"""
from transport import Endpoint
with Endpoint(interfaces="e0+e1") as endpoint, endpoint.listen(port=7000, open=True) as listener:
    print("ready", endpoint.devices[0].mtu_bytes, flush=True)
    with listener.accept(timeout_s=240) as connection:
        for number in range(int(input())):
            assert connection.recv({MESSAGE_BYTES}) == bytes([number % 251]) * {MESSAGE_BYTES}
        connection.send(b"all there")
"""
CLIENT = f"""
import sys, time
from transport import Endpoint
messages, pause_s, all_return = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "True"
with Endpoint(interfaces="e0+e1") as endpoint:
    with endpoint.connect("10.77.0.2", 7000, timeout_s=240) as connection:
        handles = []
        for number in range(messages):
            handles.append(connection.isend(bytes([number % 251]) * {MESSAGE_BYTES}))
            time.sleep(pause_s)  # so that some messages are posted after the cut
        print("under way", flush=True)
        for handle in handles:
            handle.wait(timeout_s=240)
        assert connection.recv(100) == b"all there"
        end = time.monotonic() + 60
        while True:  # a path that seemed silent while this process was stopped comes back
            usable = [path.usable for path in connection.counters().paths]
            if all(usable) or not all_return or time.monotonic() > end:
                break
            time.sleep(0.05)
        print("done", *usable, flush=True)
"""


def ip(*words: str, namespace: str = "") -> str:
    place = ["-n", namespace] if namespace else []
    done = subprocess.run(
        ["ip", *place, *words], capture_output=True, text=True, timeout=PATIENCE_S
    )
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def await_carrier(namespace: str) -> None:
    """Waits for the carrier of a veth, which is missing for a moment after the veth is set up."""
    links = ("link", "show")
    until(
        lambda: ip(*links, namespace=namespace).count("state UP") == 2,
        f"the links of {namespace} have no carrier",
    )


def sent_bytes(namespace: str, interface: str) -> int:
    path = f"/sys/class/net/{interface}/statistics/tx_bytes"
    done = subprocess.run(
        ["ip", "netns", "exec", namespace, "cat", path],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return int(done.stdout)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two namespaces joined by two veth pairs with an MTU of 1500."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("making network namespaces takes root and iproute2")
    names = (f"weft-a-{os.getpid()}", f"weft-b-{os.getpid()}")
    made: list[str] = []
    try:
        try:
            for name in names:
                ip("netns", "add", name)
                made.append(name)
        except RuntimeError as error:
            pytest.skip(f"cannot make network namespaces: {error}")
        for number in range(2):
            end, device = f"e{number}", ["type", "veth", "peer", "name", f"e{number}"]
            ip("link", "add", end, *device, "netns", names[1], namespace=names[0])
            for host, name in enumerate(names):
                address = f"10.77.{number}.{host + 1}/24"
                ip("addr", "add", address, "dev", end, namespace=name)
                ip("link", "set", end, "up", namespace=name)
        for name in names:
            await_carrier(name)
        yield names
    finally:
        for name in made:
            ip("netns", "del", name)


def start(namespace: str, script: str, *words: str) -> subprocess.Popen[str]:
    clean = clean_environment()
    return subprocess.Popen(
        ["ip", "netns", "exec", namespace, sys.executable, "-c", script, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=clean | {"WEFT_PATH_POLICY": "round_robin"},  # others avoid paths that load delays
    )


def play(hosts: tuple[str, str], messages: int, pause_s: float, cut: bool) -> list[str]:
    server = start(hosts[1], SERVER)
    client: subprocess.Popen[str] | None = None
    try:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline().split() == ["ready", "1500"]
        server.stdin.write(f"{messages}\n")
        server.stdin.flush()
        client = start(hosts[0], CLIENT, str(messages), str(pause_s), str(not cut))
        assert client.stdout is not None
        if cut:
            assert client.stdout.readline().strip() == "under way"
            ip("link", "set", "e1", "down", namespace=hosts[0])
        # Read with a timer, because communicate() would miss what readline() has buffered.
        limit = threading.Timer(60, client.kill)
        limit.start()
        output = client.stdout.read()
        limit.cancel()
        assert client.wait(timeout=PATIENCE_S) == 0
        assert server.wait(timeout=PATIENCE_S) == 0
        return output.split()
    finally:
        for process in (server, client):
            if process is not None:
                process.kill()
                process.communicate(timeout=PATIENCE_S)


def test_interfaces__two_carry_one_connection(hosts: tuple[str, str]) -> None:
    before = [sent_bytes(hosts[0], name) for name in ("e0", "e1")]
    words = play(hosts, 40, 0.0, cut=False)
    # After "done" comes one word per path: 1 if the path carried anything.
    assert words[-33:-32] == ["done"], words
    assert set(words[-32:]) == {"1"}
    carried = [
        sent_bytes(hosts[0], name) - was for name, was in zip(("e0", "e1"), before, strict=True)
    ]
    assert sum(carried) >= 40 * MESSAGE_BYTES
    assert min(carried) >= 64 << 10


def test_interfaces__one_goes_down_and_the_rest_arrives(hosts: tuple[str, str]) -> None:
    words = play(hosts, 60, 0.002, cut=True)
    assert "done" in words


LIST = """
import json
from transport import Endpoint
from transport.errors import WeftError
try:
    with Endpoint() as endpoint:
        print(json.dumps([device.name for device in endpoint.devices]))
except WeftError as error:
    print(json.dumps(str(error)))
"""


def listed(namespace: str, **variables: str) -> str:
    """The devices of an endpoint with default settings, or the error if there are none."""
    done = subprocess.run(
        ["ip", "netns", "exec", namespace, sys.executable, "-c", LIST],
        cwd=ROOT,
        env=clean_environment("NCCL_") | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return done.stdout.strip()


def test_interfaces__bridges_and_link_local_ones_are_not_taken_by_default(
    hosts: tuple[str, str],
) -> None:
    here, _ = hosts
    ip("link", "set", "lo", "up", namespace=here)
    for name, address in (("docker0", "172.31.0.1/24"), ("br7", "172.31.1.1/24")):
        ip("link", "add", name, "type", "bridge", namespace=here)
        ip("address", "add", address, "dev", name, namespace=here)
        ip("link", "set", name, "up", namespace=here)
    # A bridge without a port has no carrier, so each bridge gets a port.
    for number, name in enumerate(("docker0", "br7")):
        ends = (f"v{number}a", f"v{number}b")
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1], namespace=here)
        ip("link", "set", ends[0], "master", name, namespace=here)
        for end in ends:
            ip("link", "set", end, "up", namespace=here)
    until(
        lambda: ip("link", "show", "br7", namespace=here).count("state UP") == 1,
        "the bridge has no carrier",
    )
    assert listed(here) == '["e0", "e1"]'
    assert listed(here, NCCL_SOCKET_IFNAME="e1") == '["e1"]'
    assert listed(here, NCCL_SOCKET_IFNAME="^e0,v,docker,br") == '["e1"]'
    assert listed(here, NCCL_SOCKET_IFNAME="=e,e0") == '["e0"]'
    assert listed(here, NCCL_SOCKET_IFNAME="br") == '["br7"]'
    assert listed(here, NCCL_SOCKET_IFNAME="lo") == '["lo"]'
    assert listed(here, NCCL_SOCKET_IFNAME="e0", WEFT_INTERFACES="e1") == '["e1"]'
    assert "NCCL_SOCKET_IFNAME=ib names no interface" in listed(here, NCCL_SOCKET_IFNAME="ib")
