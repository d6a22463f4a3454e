"""Tests what `weft doctor --peer` says of MTUs that differ, and of who reports it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.host.sample import DEVICE, HELLO, PROBES, SIDE, paired
from tests.host.support import report, serving
from tests.waiting import PATIENCE_S
from transport.host.two_hosts.facts import PairStep
from transport.host.two_hosts.paths import PairFacts
from transport.lab import Lab


def mtu(lab: Lab, size: int) -> None:
    words = ["ip", "link", "set", "eth0", "mtu", str(size)]
    assert lab.run("host1", words, timeout=PATIENCE_S).returncode == 0


@pytest.mark.namespaces
def test_mtu__each_interface_is_named_as_it_is_now(lab: Lab) -> None:
    """That of the other host changes while its `weft doctor --serve` runs."""
    with serving(lab):
        mtu(lab, 1_400)
        try:
            _, found = report(lab)
        finally:
            mtu(lab, 1_500)
    assert "from the peer 1400 bytes, as the interface" in found["MTU"]["found"], found
    assert "interface here 1500, there 1400" in found["MTU"]["found"], found


@pytest.mark.parametrize(
    ("told_by", "said"),
    [
        ("10.0.0.1", "bytes, as a host reports (10.0.0.1)"),
        ("10.9.9.9", "bytes, as a router reports (10.9.9.9)"),
        ("", "bytes, as the kernel knows"),
    ],
)
def test_mtu__only_an_error_of_neither_host_is_a_router_s(told_by: str, said: str) -> None:
    probes = replace(PROBES, carried_bytes=1_400, told_bytes=1_400, told_by=told_by)
    far = replace(HELLO, devices=(replace(DEVICE, address="10.0.0.2", mtu_bytes=1_400),))
    facts = PairFacts(PairStep(0, 0), HELLO, far, replace(SIDE, probes=probes), SIDE)
    found = {one.subject: one for one in paired(facts, alone=True)}["MTU"]
    assert said in found.found
    assert "interface here 1500, there 1400" in found.found
