"""PFC against what is known of it: no loss, unfairness by ports, and victims (DCQCN, section 2.2).

Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, show both on a
fabric of 40 Gb/s: a sender that has a port of the congested switch to itself gets more than those
that share one, and a flow that crosses no congested link suffers from pauses that spread. Their
rates also depend on ECMP; here each switch has one way, so the shares follow from the ports.
"""

from __future__ import annotations

import pytest

from tests.sim.support import needs_fabric, scenario
from transport.sim.run import run

pytestmark = needs_fabric

RATE = 12_500_000_000
LIMIT_NS = 4_000_000
NETWORK = """
hosts = 16
hosts_per_leaf = 4
spines = 1
rate = "100 Gb/s"
uplink_rate = "100 Gb/s"
queue_bytes = 4_000_000
{marks}
pause_bytes = 100_000
resume_bytes = 60_000
"""
REST = """
[policies]
window = "{window}"
loss = "fixed"
path = "single"
[hosts]
window_bytes_max = 8_000_000
"""
# Hosts 1 (on the receiver's own leaf), 4, 5, 8 and 12 send to host 0.
INCAST = """
[[workload]]
pattern = "incast"
hosts = "1,4,5,8,12,0"
to = 5
size_bytes = "200 MB"
"""
# Host 6 sends to host 9, through the uplink of hosts 4 and 5. No link of its way is congested.
VICTIM = """
[[workload]]
pattern = "incast"
hosts = "6,9"
to = 1
size_bytes = "200 MB"
"""
UNCONTROLLED = "fixed:window_bytes=8000000"


def shares(window: str, marks: str = "mark_full_bytes = 0", more: str = "") -> dict[str, float]:
    """Sender -> its rate, as a share of a link, over the second half of the run."""
    text = REST.format(window=window) + INCAST + more
    made = scenario(NETWORK.format(marks=marks), text)
    half, whole = (run(made, changes={"limit_ns": at}) for at in (LIMIT_NS // 2, LIMIT_NS))
    assert whole.summary()["dropped"] == 0
    sent = whole.ports["bytes"] - half.ports["bytes"]
    return {
        made.network.node_names[port["from"]]: float(count) / (RATE * LIMIT_NS / 2e9)
        for port, count in zip(whole.ports, sent, strict=True)
        if port["from"] < made.network.hosts
    }


def test_pfc__a_port_of_its_own_gets_more_than_a_shared_one() -> None:
    """Leaf 0 has two ports with traffic: host 1 gets half; the spine shares its half likewise."""
    found = shares(UNCONTROLLED)
    expected = {"host1": 1 / 2, "host8": 1 / 6, "host12": 1 / 6, "host4": 1 / 12, "host5": 1 / 12}
    assert found["host1"] == pytest.approx(expected["host1"], rel=0.05)
    for name, share in expected.items():
        assert found[name] == pytest.approx(share, rel=0.1), found
    assert sum(found[name] for name in expected) == pytest.approx(1, rel=0.02)


def test_pfc__a_flow_that_crosses_no_congested_link_suffers() -> None:
    """Pauses of the spine stop leaf 1's uplink, where the victim's packets wait in the same queue.

    It gets as much as each of the two that share the uplink with it: a twelfth of a link.
    """
    found = shares(UNCONTROLLED, more=VICTIM)
    assert found["host6"] == pytest.approx(found["host4"], rel=0.1)
    assert found["host6"] < 0.12


def test_pfc__congestion_control_spares_the_victim() -> None:
    marks = "mark_from_bytes = 20_000\nmark_full_bytes = 60_000"
    found = shares("dctcp:fabric", marks, VICTIM)
    assert found["host6"] > 0.6, found
    assert sum(found[f"host{each}"] for each in (1, 4, 5, 8, 12)) > 0.9
