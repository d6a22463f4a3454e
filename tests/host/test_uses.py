"""Tests the first lines of `weft doctor`: what weft will use on a host, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from transport.host.finding import LIMITED, OK
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


def use(*devices: str, datapath: str = UDP) -> Use:
    named = {name: f"10.0.0.{at}" for at, name in enumerate(devices, 1)}
    policies = {"window": "swift", "path": "power_of_two"}
    return Use(datapath, named, policies, "7000-7063", "0")


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
        assert f"eth0 (not named by {variable})" in found[2].found
    found = findings(use("eth0"), nics, {"WEFT_INTERFACES": "^eth1"}, {})
    assert "(its address is routable)" in found[1].found
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
    assert found[2].found == "no interface"


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
