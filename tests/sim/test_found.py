"""What a swarm once found, kept small: each of these did not end, or was late in virtual time."""

import pytest

from tests.sim.support import needs_fabric
from transport.sim import parse, run

pytestmark = needs_fabric

FOUND = {
    "messages overtake a lost one by rounds of what is ahead": """
        limit_ns = "10 s"
        [network]
        hosts = 4
        loss = 0.05
        [hosts]
        ahead = 4
        paths = 4
        [[workload]]
        size_bytes = 8
        repeats = 300
    """,
    "probes wait in a host's own port, and nothing else is to be sent": """
        limit_ns = "10 s"
        [network]
        hosts = 4
        rate = "200 Mb/s"
        delay_ns = 100
        [hosts]
        paths = 32
        rto_ns_max = "50 ms"
        [[workload]]
        size_bytes = 100
    """,
    "trimmed headers alone fill the last link": """
        limit_ns = "1 s"
        [network]
        hosts = 4
        rate = 1_443_877_602
        trim = true
        [hosts]
        segment_bytes = 192
        [[workload]]
        pattern = "incast"
    """,
    "the last pod has leaves without a host": """
        [network]
        hosts = 5
        hosts_per_leaf = 1
        spines = 2
        tiers = 3
        pods = 2
        [[workload]]
        size_bytes = 1_000
    """,
}


@pytest.mark.parametrize("name", FOUND)
def test_found__ends_and_breaks_nothing(name: str) -> None:
    result = run(parse(FOUND[name]), check=True)
    assert result.good, result.violation or result.policy_failure or "it did not end"
