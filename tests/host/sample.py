"""What two hosts may tell each other in a test of `weft doctor --peer` that finds no fault."""

from __future__ import annotations

from transport.host.two_hosts import Finding, judge
from transport.host.two_hosts.facts import DeviceFact, Hello, PathFact, ProbeFacts, SideFacts
from transport.host.two_hosts.paths import PairFacts
from transport.host.two_hosts.view import seen_by_tester

TOKEN = bytes(range(16))
DEVICE = DeviceFact("eth0", "10.0.0.1", 1_500, 10_000, "NIC", "00" * 80, 9_000)
HELLO = Hello(
    version="0.2.0",
    host="a",
    has_secret=False,
    datapath="udp",
    token="00" * 16,
    back_port=0,
    back="",
    control_port="0",
    port_base="0",
    free_ports="32768-60999",
    sockets=8,
    paths=8,
    down="",
    devices=(DEVICE,),
)
PROBES = ProbeFacts(1_000, 1_000, 1_000, 0, 100_000, 5_000, 1_500, 1_500, 1_500)
PATHS = tuple(PathFact(0, number, 50_000, True) for number in range(8))
SIDE = SideFacts("", 1, PATHS, 1_000_000_000, 5_000, 0, 0, PROBES)


def paired(facts: PairFacts, *, alone: bool) -> list[Finding]:
    """The report on a pair in the words of the testing end."""
    return seen_by_tester(judge.pair(facts, alone=alone))


def greeted(near: Hello, far: Hello) -> list[Finding]:
    """The report on two hellos in the words of the testing end."""
    return seen_by_tester(judge.greeted(near, far))
