"""Tests what `weft doctor --peer` says of devices of several NICs, as in WEFT_INTERFACES=a+b."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.host.sample import DEVICE, HELLO, PATHS, PROBES, SIDE, paired
from tests.host.support import (
    FINE,
    SCRIPT,
    filtered,
    found_by,
    names_range,
    peer,
    report,
    second_nic,
    start,
    states,
)
from tests.waiting import PATIENCE_S
from transport.host.two_hosts.facts import NicFact, PairStep, ProbeFacts, nic_pairs
from transport.host.two_hosts.paths import PairFacts
from transport.lab import Lab

JOINED = {"WEFT_INTERFACES": "eth0+eth1", "WEFT_PORT_BASE": "20000-24095"}
FURTHER = NicFact("eth1", "10.1.0.1", 1_500, 9_000)
HELLO_2 = replace(HELLO, devices=(replace(DEVICE, name="eth0+eth1", also=(FURTHER,)),))


@contextmanager
def both(lab: Lab, settings: dict[str, str] = JOINED) -> Iterator[None]:
    """The hosts have two links, and `weft doctor --serve` on host1 joins them."""
    with second_nic(lab):
        server = start(lab, "host1", SCRIPT, "doctor", "--serve", **settings)
        try:
            assert server.stdout is not None
            assert "eth0+eth1" in server.stdout.readline()
            yield
        finally:
            server.kill()
            server.communicate(timeout=PATIENCE_S)


@pytest.mark.namespaces
def test_joined__each_nic_is_tested_and_the_speed_of_veths_is_not_judged(lab: Lab) -> None:
    """How many ports of the range each end took is known, and which ones is not."""
    rule = "iif eth1 meta l4proto udp meta length > 1300 drop"
    with both(lab), filtered(lab, "host0", rule), filtered(lab, "host1", rule):
        _, found = report(lab, **JOINED)
    assert states(found, "MTU eth0>eth0") <= FINE, found
    assert found["MTU eth1>eth1"]["state"] == "BROKEN", found
    assert "to the peer 1300 of the interface's 1500" in found["MTU eth1>eth1"]["found"]
    assert "from the peer 1300 of the interface's 1500" in found["MTU eth1>eth1"]["found"]
    assert found["data paths"]["state"] in FINE, found
    assert "idle: to the peer" in found["loss eth1>eth1"]["found"]
    assert found["rate"]["state"] == "not judged", found
    assert "?" not in found["UDP ports"]["found"], found


@pytest.mark.namespaces
def test_joined__a_nic_that_nothing_passes_is_named_and_no_ports_are(lab: Lab) -> None:
    rule = "iif eth1 meta l4proto udp drop"
    with both(lab), filtered(lab, "host0", rule), filtered(lab, "host1", rule):
        _, found = report(lab, **JOINED)
    paths = found["data paths"]
    assert paths["state"] == "BROKEN", found
    assert "silent: all 2 paths of eth1 > eth1" in paths["found"], paths
    assert "nothing arrives between eth1 (10.201.0.1) of this host and eth1" in paths["remedy"]
    assert "let UDP ports" not in paths["remedy"]
    assert found["MTU eth1>eth1"]["state"] == "not judged"
    assert states(found, "MTU eth0>eth0", "reordering eth0>eth0") <= FINE


@pytest.mark.namespaces
def test_joined__a_nic_that_nothing_passes_one_way(lab: Lab) -> None:
    with both(lab), filtered(lab, "host0", "iif eth1 meta l4proto udp drop"):
        _, found = report(lab, **JOINED)
    said = "does not arrive at eth1 (10.201.0.1) of this host, the other direction is open"
    assert found["data paths"]["state"] == "BROKEN", found
    assert said in found["data paths"]["remedy"], found["data paths"]
    assert "message port" not in found, found  # it is reached, over TCP


@pytest.mark.namespaces
def test_joined__all_ports_of_each_nic_are_tried(lab: Lab) -> None:
    """Of the second NIC, one range is dropped."""
    settings = JOINED | {"WEFT_PORT_BASE": "20000-20127", "WEFT_CONTROL_PORT": "7117-7148"}
    rule = "iif eth1 udp dport 20032-20063 drop"
    with both(lab, settings), filtered(lab, "host1", rule):
        said, errors = peer(lab, "--all-ports", **settings).communicate(timeout=PATIENCE_S)
    found = found_by(said, errors)
    assert found["every UDP port eth0>eth0"]["state"] == "ok", found
    assert found["every TCP port eth1>eth1"]["state"] == "ok", found
    assert found["every UDP port eth1>eth1"]["state"] == "BROKEN", found
    blocked = found["every UDP port eth1>eth1"]["found"]
    assert names_range(blocked, "dropped without an error) from here to there", 20_032, 20_063)


@pytest.mark.parametrize(
    ("probes", "state", "said"),
    [
        (None, "BROKEN", "look at their link and route"),
        (PROBES, "BROKEN", "let UDP ports 32768-60999"),
        (replace(PROBES, carried_bytes=1_300), "limited", "see MTU eth0>eth1: mend it first"),
    ],
)
def test_joined__silent_paths_of_one_nic_get_the_remedy_of_their_cause(
    probes: ProbeFacts | None, state: str, said: str
) -> None:
    """One host has one NIC, the other one has two; odd paths lead to the second one."""
    assert nic_pairs(HELLO.devices[0], HELLO_2.devices[0]) == [(0, 0), (0, 1)]
    paths = tuple(replace(one, usable=one.path % 2 == 0) for one in PATHS)
    side = replace(SIDE, paths=paths, also=(probes,))
    facts = PairFacts(PairStep(0, 0), HELLO, HELLO_2, side, side)
    found = {one.subject: one for one in paired(facts, alone=True)}
    assert found["data paths"].state == state, found
    assert "silent: all 4 paths of eth0 > eth1" in found["data paths"].found
    assert said in found["data paths"].remedy
    assert found["MTU eth0>eth0"].state == "ok"


def test_joined__the_lossy_nic_whose_paths_are_silent_is_named() -> None:
    """One of two paths of the second NIC never answered, and half of the probes of it are lost."""
    paths = tuple(
        replace(one, rtt_ns=0, usable=False, probes=1) if one.path == 1 else one for one in PATHS
    )
    lossy = replace(PROBES, arrived=PROBES.sent // 2, answered=PROBES.sent // 2, late=0)
    side = replace(SIDE, paths=paths, also=(lossy,), segments=10_000, lost=1_000, arrived=9_000)
    facts = PairFacts(PairStep(0, 0), HELLO, HELLO_2, side, side)
    found = {one.subject: one for one in paired(facts, alone=True)}
    assert found["data paths"].state == "limited", found
    assert found["data paths"].remedy.startswith("see loss eth0>eth1, which silences paths")
    assert found["loss eth0>eth1"].state == "BROKEN"
    assert found["loss under load"].remedy.startswith("see loss eth0>eth1, which loses packets")
    assert found["loss eth0>eth0"].state in FINE


@pytest.mark.parametrize(
    ("arrives", "said"),
    [
        (True, "of the other host sends does not arrive at eth0 (10.0.0.1) of this host, the oth"),
        (False, "of the other host, at least not from this host"),
    ],
)
def test_joined__the_direction_is_named_in_which_a_nic_hears_nothing(
    arrives: bool, said: str
) -> None:
    """The other host answers probes of its second NIC, once it has heard one there."""
    paths = tuple(replace(one, rtt_ns=0) if one.path % 2 else one for one in PATHS)
    lost = replace(PROBES, answered=0, arrived=0)
    here = replace(SIDE, paths=paths, also=(lost,))
    there = replace(SIDE, paths=paths, also=(lost if arrives else None,))
    facts = PairFacts(PairStep(0, 0), HELLO, HELLO_2, here, there)
    found = {one.subject: one for one in paired(facts, alone=True)}
    assert found["data paths"].state == "BROKEN"
    assert said in found["data paths"].remedy, found["data paths"].remedy
