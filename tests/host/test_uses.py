"""Tests the first lines of `weft doctor`: what weft will use on a host, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from transport.host.finding import LIMITED, OK
from transport.host.rdma import Port
from transport.host.uses import Use, findings, near

UDP = "udp, 2 engines, 32 paths"
ROOT_A = "/sys/devices/pci0000:00/0000:00:01.0"
ROOT_B = "/sys/devices/pci0000:80/0000:80:01.0"


@dataclass
class FakeNic:
    """An interface, as native.interfaces() describes it."""

    name: str
    addresses: list[str] = field(default_factory=lambda: ["10.0.0.1"])
    what: str = "NIC"
    why_left_out: str = ""
    pci_path: str = ""
    mtu_bytes: int = 9000
    speed_mbps: int = 100_000
    below: list[str] = field(default_factory=list)


def use(*devices: str, datapath: str = UDP, base: str = "0") -> Use:
    named = [(name, f"10.0.0.{at}") for at, name in enumerate(devices, 1)]
    policies = {"window": "swift", "path": "power_of_two"}
    return Use(datapath, named, policies, "7000-7063", base, 64)


LO = FakeNic("lo", ["127.0.0.1"], "loopback", "loopback", "", 65536, 0)
DOCKER = FakeNic("docker0", what="bridge", why_left_out="a bridge of this host", speed_mbps=0)


def test_uses__says_what_is_used_and_what_is_not() -> None:
    found = findings(use("eth0"), [LO, FakeNic("eth0"), DOCKER], {}, {})
    assert [one.state for one in found] == [OK] * 5
    assert [one.subject for one in found] == [
        "uses",
        "devices",
        "left out",
        "ports",
        "uses policies",
    ]
    by_subject = {one.subject: one.found for one in found}
    assert by_subject == {
        "uses": UDP,
        "devices": "eth0 10.0.0.1: NIC, mtu 9000, 100 Gb/s (its address is routable)",
        "left out": "lo (loopback), docker0 (a bridge of this host)",
        "ports": "control (TCP): 7000-7063; data (UDP): any free ports",
        "uses policies": "window swift, path power_of_two",
    }


def test_uses__names_the_setting_that_chose() -> None:
    nics = [LO, FakeNic("eth0"), FakeNic("eth1"), DOCKER]
    for variable, value in (("WEFT_INTERFACES", "eth1"), ("NCCL_SOCKET_IFNAME", "=eth1")):
        found = findings(use("eth1"), nics, {variable: value}, {})
        assert f"(named by {variable}={value})" in found[1].found
        assert f"eth0 (not named by {variable}={value})" in found[2].found
    found = findings(use("eth0"), nics, {"WEFT_INTERFACES": "^eth1"}, {})
    assert "(its address is routable)" in found[1].found
    assert "eth1 (left out by WEFT_INTERFACES=^eth1)" in found[2].found
    found = findings(use("lo"), nics[:2], {"NCCL_SOCKET_IFNAME": "^eth"}, {})
    assert "(loopback, but no better one is left)" in found[1].found
    found = findings(use("lo"), [LO], {}, {})
    assert "(loopback, but no better one is there)" in found[1].found


def test_uses__advises_on_nothing_that_is_not_used() -> None:
    short = [LO, FakeNic("eth0", mtu_bytes=1500), FakeNic("eth1")]
    found = findings(use("eth0", "eth1"), short, {}, {})
    assert found[1].state == LIMITED
    assert "ip link set eth0 mtu 9000" in found[1].remedy
    assert findings(use("eth1"), short, {}, {})[1].state == OK
    assert findings(use("rxe0", datapath="verbs UC"), short, {}, {})[1].state == OK


def test_uses__names_both_nics_of_a_joined_device() -> None:
    nics = [FakeNic("eth0"), FakeNic("eth1", what="virtual function", mtu_bytes=1500)]
    found = findings(use("eth0+eth1"), nics, {}, {})
    assert "eth0+eth1 10.0.0.1: NIC, mtu 9000" in found[1].found
    assert "virtual function, mtu 1500" in found[1].found
    assert found[2].found == "nothing"
    twice = Use(UDP, [("eth0", "10.0.0.1"), ("eth0", "fd00::1")], {}, "0", "0", 64)
    assert "eth0 10.0.0.1" in findings(twice, nics, {}, {})[1].found
    assert "eth0 fd00::1" in findings(twice, nics, {}, {})[1].found


def test_uses__tells_which_nics_are_near_the_gpus() -> None:
    nics = [
        LO,
        FakeNic("mgmt", pci_path="/sys/devices/pci0000:e0/0000:e0:00.0"),
        FakeNic("eth0", pci_path=f"{ROOT_A}/0000:01:00.0/0000:02:00.0"),
        FakeNic("eth1", pci_path=f"{ROOT_B}/0000:81:00.0/0000:82:00.0"),
    ]
    gpus = {
        "0000:03:00.0": f"{ROOT_A}/0000:01:00.0/0000:03:00.0",
        "0000:83:00.0": f"{ROOT_B}/0000:81:00.0/0000:83:00.0",
    }
    assert near(gpus, nics) == {"0000:03:00.0": ["eth0"], "0000:83:00.0": ["eth1"]}
    last = findings(use("mgmt", "eth0", "eth1"), nics, {}, gpus)[-1]
    assert (last.subject, last.state) == ("NICs near GPUs", OK)
    last = findings(use("mgmt"), nics, {}, gpus)[-1]
    assert last.state == LIMITED
    assert "WEFT_INTERFACES=eth0,eth1" in last.remedy
    assert near(gpus, nics[:2]) == {"0000:03:00.0": [], "0000:83:00.0": []}
    assert findings(use("mgmt"), nics[:2], {}, gpus)[-1].subject == "uses policies"


def test_uses__a_bond_is_where_its_nics_are() -> None:
    nics = [
        FakeNic("bond0", what="bond of eth0, eth1", below=["eth0", "eth1"]),
        FakeNic("eth0", why_left_out="no address", pci_path=f"{ROOT_A}/0000:01:00.0/0000:02:00.0"),
        FakeNic("eth1", why_left_out="no address", pci_path=f"{ROOT_B}/0000:81:00.0/0000:82:00.0"),
        FakeNic("down0", why_left_out="down", pci_path=f"{ROOT_A}/0000:01:00.0/0000:03:00.1"),
        FakeNic("mgmt", pci_path=f"{ROOT_A}/0000:05:00.0"),
    ]
    gpus = {"0000:03:00.0": f"{ROOT_A}/0000:01:00.0/0000:03:00.0"}
    assert near(gpus, nics) == {"0000:03:00.0": ["bond0"]}
    assert findings(use("bond0"), nics, {}, gpus)[-1].state == OK


def test_uses__names_all_ports_of_the_data_paths() -> None:
    ports = findings(use("eth0", base="20000"), [FakeNic("eth0")], {}, {})[3].found
    assert ports.endswith("data (UDP): 20000-20063")
    ports = findings(use("eth0", base="20000-24095"), [FakeNic("eth0")], {}, {})[3].found
    assert ports.endswith("data (UDP): 20000-24095")


def test_uses__over_rdma_speaks_of_rdma_ports() -> None:
    def port(device: str, *, active: bool = True, link_layer: str = "Ethernet") -> Port:
        return Port(device, 1, active, link_layer, 100.0, ())

    ports = [port("mlx5_0"), port("mlx5_1", active=False), port("rdmap1", link_layer="Unspecified")]
    found = findings(use("mlx5_0", datapath="verbs UC"), [FakeNic("eth0")], {}, {}, ports)
    assert found[2].found == "mlx5_1:1 (not active), rdmap1:1 (neither RoCE nor InfiniBand)"
    assert "4791" in found[3].found
    assert "data (UDP)" not in found[3].found


def test_uses__advises_on_an_mtu_that_can_be_set() -> None:
    vlan = FakeNic("eth0.7", what="VLAN of eth0", mtu_bytes=1500, below=["eth0"])
    remedy = findings(use("eth0.7"), [vlan], {}, {})[1].remedy
    assert "ip link set eth0 mtu 9000; ip link set eth0.7 mtu 9000" in remedy
    for nic in (FakeNic("ib0", mtu_bytes=2044), FakeNic("d0", what="dummy", mtu_bytes=1500)):
        assert findings(use(nic.name), [nic], {}, {})[1].state == OK
