"""Tests that messages pass whole through AF_XDP sockets, over both families and all lengths."""

import pytest

from tests.xdp.support import V6, Wire, reason_to_skip, wired
from tests.xdp.talk import Told, talk

pytestmark = pytest.mark.namespaces


def assert_bypassed(ends: list[Told]) -> None:
    """Both ends sent and received almost everything past the kernel, and refused nothing."""
    for end in ends:
        assert end["bypass_sent"] > end["datagrams_sent"] // 2
        assert end["bypass_received"] > end["datagrams_received"] // 2
        assert end["malformed"] == end["bad_crc"] == 0


def test_messages__over_ipv4(wire: Wire) -> None:
    assert_bypassed(talk(wire))


def test_messages__over_ipv6(wire: Wire) -> None:
    assert_bypassed(talk(wire, to=V6[1], WEFT_FAMILY="ipv6"))


@pytest.mark.parametrize("mtu_bytes", [3400, 9000])
def test_messages__of_long_packets(mtu_bytes: int) -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    with wired(mtu_bytes) as wire:
        assert_bypassed(talk(wire))


def test_messages__of_one_chunk_where_packets_may_be_longer() -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    with wired(9000) as wire:
        assert_bypassed(talk(wire, WEFT_SEGMENT_BYTES="3778"))


def test_messages__with_more_engines_than_queues() -> None:
    """What an engine without a queue sends and receives passes through the kernel."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    with wired(queues=1) as wire:
        server, client = talk(wire, WEFT_ENGINES="2", WEFT_PATHS="4")
    for end in (server, client):
        assert "2 engines divide the queues of each NIC" in end.errors
        assert end["malformed"] == end["bad_crc"] == 0


def test_messages__of_engines_that_divide_the_queues() -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    with wired(queues=2) as wire:
        server, client = talk(wire, WEFT_ENGINES="2", WEFT_PATHS="4")
    for end in (server, client):
        assert end["bypass_sent"] > end["datagrams_sent"] // 2
        assert end["malformed"] == end["bad_crc"] == 0


def test_messages__over_several_queues() -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    with wired(queues=4) as wire:
        assert_bypassed(talk(wire))


def test_messages__with_faults_injected(wire: Wire) -> None:
    fault = "loss=0.02,reorder=0.02,duplicate=0.01,corrupt=0.01,seed=5"
    ends = talk(wire, WEFT_FAULT=fault)
    assert sum(end["resent"] for end in ends) > 0
    assert all(end["bypass_received"] > 0 for end in ends)


def test_messages__to_an_end_that_uses_udp_sockets(wire: Wire) -> None:
    server, client = talk(wire, client={"WEFT_DATAPATH": "udp"})
    assert server["bypass_sent"] > 0
    assert server["bypass_received"] > 0
    assert client["bypass_sent"] == client["bypass_received"] == 0
