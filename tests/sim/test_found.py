"""Runs minimised scenarios that a swarm found, each of which once ended late or never."""

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
    "both ends probe a path whose round trip is longer than they think": """
        seed = 612
        limit_ns = 10_000_000_000

        [network]
        topology = "fat_tree"
        rate = 33_088_159_149
        delay_ns = 17_463
        queue_bytes = 330_881
        mark_full_bytes = 0
        hosts = 2
        hosts_per_leaf = 3
        spines = 6
        ecmp = "even"
        trim = false
        priority = true

        [[workload]]
        pattern = "all_reduce_ring"
        hosts = [0, 1]
        repeats = 1
        channels = 1
        size_bytes = 6_959

        [[workload]]
        pattern = "permutation"
        size_bytes = 0
        start_ns = 161_379_003

        [hosts]
        segment_bytes = 4_160
        rto_ns_min = 31_262
        rto_ns_max = 5_372_433
        ahead = 182
        rtt_ns = 4_123
        ack_bytes = 30_996
        ack_delay_ns = 0
        window_bytes_max = 1_173_172
        peer_silence_ns = 3_804_790_710
        speculative_bytes = 21
        paths = 2

        [policies]
        window = "cubic"
        path = "plb:marked_share=0.6017"
        loss = "sleek:segments_min=8"

        [[events]]
        at_ns = 38_189
        link = "leaf0-spine4"
        up = false
        until_ns = 205_990
    """,
}


@pytest.mark.parametrize("name", FOUND)
def test_found__ends_and_breaks_nothing(name: str) -> None:
    result = run(parse(FOUND[name]), check=True)
    assert result.good, result.violation or result.policy_failure or "it did not end"
