"""Tests that two hosts reach each other by default in network layouts that hosts really have.

The hosts are namespaces joined by a bridge in a third one; no interface of this host is changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.environment import clean_environment
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.namespaces

SERVER = """
import sys
from pathlib import Path
from transport import Endpoint
with Endpoint() as endpoint:
    device = int(sys.argv[2])
    with endpoint.listen(device=device) as listener:
        print([f"{one.name}={one.address}" for one in endpoint.devices], flush=True)
        Path(sys.argv[1] + ".new").write_bytes(listener.handle)
        Path(sys.argv[1] + ".new").rename(sys.argv[1])
        with listener.accept(timeout_s=240) as connection:
            assert connection.recv(1 << 20, timeout_s=240) == bytes(range(256)) * 4096
            connection.send(b"done", timeout_s=240)
"""
CLIENT = """
import sys
from pathlib import Path
from transport import Endpoint
handle, device, timeout_s = Path(sys.argv[1]).read_bytes(), int(sys.argv[2]), float(sys.argv[3])
with Endpoint() as endpoint:
    print([f"{one.name}={one.address}" for one in endpoint.devices], flush=True)
    with endpoint.connect(handle, device=device, timeout_s=timeout_s) as connection:
        connection.send(bytes(range(256)) * 4096, timeout_s=240)
        assert connection.recv(4, timeout_s=240) == b"done"
"""


def call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


def shown(words: list[str]) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True)
class Hosts:
    """Two hosts, each with eth0 on a common switch."""

    names: tuple[str, str]
    switch: str

    def ip(self, host: int, words: str) -> None:
        call("ip", "-n", self.names[host], *words.split())

    def sysctl(self, host: int, setting: str) -> None:
        name, _, value = setting.partition("=")
        write = f"echo {value} > /proc/sys/{name.replace('.', '/')}"
        call("ip", "netns", "exec", self.names[host], "sh", "-c", write)

    def join(self, host: int, interface: str) -> None:
        """Connects an interface of a host to the switch."""
        port = f"p{host}{interface}"
        place = ["netns", self.names[host], "type", "veth", "peer", "name", port]
        call("ip", "link", "add", interface, *place, "netns", self.switch)
        call("ip", "-n", self.switch, "link", "set", port, "master", "br0", "up")
        self.ip(host, f"link set {interface} up")

    def start(self, host: int, script: str, *words: str, **settings: str) -> subprocess.Popen[str]:
        clean = clean_environment("NCCL_")
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], sys.executable, "-c", script, *words],
            cwd=ROOT,
            env=clean | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def exchange(
        self, folder: Path, device: int = 0, timeout_s: float = PATIENCE_S, **settings: str
    ) -> tuple[str, str]:
        """Sends a message from host 0 to host 1; returns host 0's devices and its errors."""
        handle = folder / "handle"
        handle.unlink(missing_ok=True)
        server = self.start(1, SERVER, str(handle), str(device), **settings)
        client: subprocess.Popen[str] | None = None
        try:
            until(lambda: handle.exists() or server.poll() is not None, "there is no handle")
            assert server.poll() is None, server.communicate()
            words = (str(handle), str(device), str(timeout_s))
            client = self.start(0, CLIENT, *words, **settings)
            said, errors = client.communicate(timeout=2 * PATIENCE_S)
            if client.returncode == 0:
                assert server.wait(timeout=PATIENCE_S) == 0
            return said.strip(), errors if client.returncode else ""
        finally:
            for process in (server, client):
                if process is not None:
                    process.kill()
                    process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("making network namespaces takes root and iproute2")
    names = [f"weft-{one}-{os.getpid()}" for one in ("h0", "h1", "sw")]
    made: list[str] = []
    try:
        try:
            for name in names:
                call("ip", "netns", "add", name)
                made.append(name)
                call("ip", "-n", name, "link", "set", "lo", "up")
        except RuntimeError as error:
            pytest.skip(f"cannot make network namespaces: {error}")
        call("ip", "-n", names[2], "link", "add", "br0", "type", "bridge")
        call("ip", "-n", names[2], "link", "set", "br0", "up")
        two = Hosts((names[0], names[1]), names[2])
        for host in range(2):
            two.join(host, "eth0")
            two.ip(host, f"address add 10.77.0.{host + 1}/24 dev eth0")
        for host in range(2):
            words = ["ip", "-n", two.names[host], "link", "show", "eth0"]
            until(lambda: "state UP" in shown(words), "eth0 has no carrier")  # noqa: B023
        yield two
    finally:
        for name in made:
            call("ip", "netns", "del", name)


def add(hosts: Hosts, words: str) -> None:
    """Adds a link to both hosts, or skips the test if this kernel has none of the kind."""
    for host in range(2):
        try:
            hosts.ip(host, "link add " + words.format(host=host + 1))
        except RuntimeError as error:
            pytest.skip(f"this kernel makes no such link: {error}")


def test_layouts__an_overlay_with_one_address_is_left_out(hosts: Hosts, tmp_path: Path) -> None:
    add(hosts, "flannel.1 type vxlan id 1 local 10.77.0.{host} dev eth0 dstport 8472 nolearning")
    for host in range(2):
        hosts.ip(host, f"address add 10.244.{host}.0/32 dev flannel.1")
        hosts.ip(host, "link set flannel.1 up")
    assert hosts.exchange(tmp_path) == ("['eth0=10.77.0.1']", "")


def test_layouts__an_exclusion_adds_no_interface(hosts: Hosts, tmp_path: Path) -> None:
    add(hosts, "docker0 type bridge")
    for host in range(2):
        hosts.ip(host, "address add 172.17.0.1/16 dev docker0")
        hosts.ip(host, "link set docker0 up")
        hosts.ip(host, "link add vethc0 type veth peer name vethc1")
        hosts.ip(host, "link set vethc0 master docker0 up")
        hosts.ip(host, "link set vethc1 up")
    only = ("['eth0=10.77.0.1']", "")
    assert hosts.exchange(tmp_path) == only
    assert hosts.exchange(tmp_path, NCCL_SOCKET_IFNAME="^docker0,lo") == only


def test_layouts__a_routable_address_on_lo_is_used(hosts: Hosts, tmp_path: Path) -> None:
    for host in range(2):
        hosts.ip(host, "address flush dev eth0 scope global")
        hosts.ip(host, f"address add 10.99.0.{host + 1}/32 dev lo")
        hosts.ip(host, f"route add 10.99.0.{2 - host}/32 dev eth0 src 10.99.0.{host + 1}")
        hosts.sysctl(host, "net.ipv4.conf.eth0.proxy_arp=1")
    assert hosts.exchange(tmp_path) == ("['lo=10.99.0.1']", "")
    assert hosts.exchange(tmp_path, WEFT_INTERFACES="10.99.0.0/24") == ("['lo=10.99.0.1']", "")


def test_layouts__a_host_of_link_local_addresses_is_told_so(hosts: Hosts, tmp_path: Path) -> None:
    for host in range(2):
        hosts.ip(host, "address flush dev eth0 scope global")
    server = hosts.start(1, SERVER, str(tmp_path / "handle"), "0")
    try:
        until(lambda: (tmp_path / "handle").exists(), "there is no handle")
    finally:
        server.kill()
        said, errors = server.communicate(timeout=PATIENCE_S)
    assert said.strip() == "['lo=127.0.0.1']"
    assert "WEFT_INTERFACES=eth0" in errors
    for host in range(2):
        words = ["ip", "-n", hosts.names[host], "-6", "address", "show", "dev", "eth0"]
        until(lambda: "tentative" not in shown(words), "an address stays tentative")  # noqa: B023
    devices, failed = hosts.exchange(tmp_path, WEFT_INTERFACES="eth0", WEFT_FAMILY="ipv6")
    assert (devices.startswith("['eth0=fe80:"), failed) == (True, "")


def test_layouts__two_nics_in_one_subnet_are_named_if_nobody_answers(
    hosts: Hosts, tmp_path: Path
) -> None:
    for host in range(2):
        hosts.join(host, "eth1")
        hosts.ip(host, f"address add 10.77.0.{host + 11}/24 dev eth1")
        hosts.sysctl(host, "net.ipv4.conf.all.rp_filter=1")
        hosts.sysctl(host, "net.ipv4.conf.all.arp_ignore=1")  # only the NIC of an address answers
    impatient = {"WEFT_HANDSHAKE_TIMEOUT_NS": "3s"}
    devices, failed = hosts.exchange(tmp_path, device=1, timeout_s=30, **impatient)
    assert devices == "['eth0=10.77.0.1', 'eth1=10.77.0.11']"
    assert "eth0 and eth1 are in one subnet" in failed
    assert "net.ipv4.conf.eth1.rp_filter=2" in failed
    for host in range(2):  # the remedy
        for interface in ("eth0", "eth1"):
            hosts.sysctl(host, f"net.ipv4.conf.{interface}.rp_filter=2")
    assert hosts.exchange(tmp_path, device=1)[1] == ""
    assert hosts.exchange(tmp_path, WEFT_INTERFACES="eth1") == ("['eth1=10.77.0.11']", "")
