"""Tests that a lab treats datagrams as configured: paths, rates, loss, marks, cuts."""

import socket
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.lab.support import (
    CE,
    ECT_0,
    PORT,
    QUIET_S,
    UDP_SEGMENT,
    Pair,
    datagram,
    grown,
    line,
    reason_to_skip,
    unique,
)
from tests.waiting import PATIENCE_S, until
from transport.lab import Lab, LabError, LabModel, Link

pytestmark = pytest.mark.namespaces


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def paths() -> Iterator[Lab]:
    with Lab(LabModel(), name=unique("paths")) as lab:
        yield lab


@pytest.fixture(scope="module")
def one_path() -> Iterator[Lab]:
    with Lab(line(), name=unique("line")) as lab:
        yield lab


@pytest.fixture
def pair(one_path: Lab) -> Iterator[Pair]:
    """Yields a pair of hosts with one path; resets the links after the test."""
    one = Pair(one_path)
    try:
        yield one
    finally:
        one.close()
        for link, now in one_path.current().changed.items():
            if now.cut:
                one_path.heal(link)
            if now.link != one_path.model.link(link):
                one_path.set(link, **vars(one_path.model.link(link)))


def by_spine(lab: Lab, pair: Pair, ports: list[int], count: int) -> list[int]:
    """The number of packets that each spine carried from host0."""

    def send() -> None:
        for port in ports:
            sender = pair.sender(port)
            assert sorted(pair.pass_on(sender, count)) == list(range(count))
            sender.close()

    growth = grown(lab, send)
    return [growth[f"leaf0>spine{i}"].packets for i in range(lab.model.spines)]


def test_traffic__many_ports_take_all_paths(paths: Lab) -> None:
    pair = Pair(paths)
    senders = [pair.sender() for _ in range(256)]
    growth = grown(paths, lambda: [one.send(b"abcd") for one in senders])
    carried = [growth[f"leaf0>spine{i}"].packets for i in range(4)]
    pair.close()
    assert sum(carried) == 256
    assert min(carried) >= 24


def test_traffic__a_flow_stays_on_its_path(paths: Lab) -> None:
    pair = Pair(paths)
    # New sockets with the same ports take the same path, because ports select it, not sockets.
    carried = by_spine(paths, pair, [6001] * 4, 50)
    pair.close()
    assert sorted(carried) == [0, 0, 0, 200]


def test_traffic__rate_is_held(pair: Pair) -> None:
    """A flood fills the queue of a slow link, which passes some of it and drops the rest."""
    pair.lab.set("leaf0-spine0", rate_bytes_per_s=5_000_000, queue_bytes=50_000)
    sender = pair.sender()

    def some_are_dropped() -> bool:
        for _ in range(1_000):
            sender.send(b"abcd" * 300)
        return pair.lab.counters()["leaf0>spine0"].queue_drops > before

    before = pair.lab.counters()["leaf0>spine0"].queue_drops
    growth = grown(pair.lab, lambda: until(some_are_dropped, "the link passes everything"))
    assert growth["leaf0>spine0"].bytes > 0


def test_traffic__every_nth_is_lost(pair: Pair) -> None:
    pair.lab.set("leaf0-spine0", loss_every=10)
    sender = pair.sender()
    arrived: list[int] = []
    growth = grown(pair.lab, lambda: arrived.extend(pair.pass_on(sender, 1000)))
    assert growth["leaf0>spine0"].losses == 100
    assert len(arrived) == 900
    assert growth["spine0>leaf0"].losses == 0  # no packets in this direction
    missing = sorted(set(range(1000)) - set(arrived))
    assert {after - before for before, after in pairwise(missing)} == {10}


@pytest.mark.parametrize("link", ["host0-leaf0", "leaf0-spine0"])
def test_traffic__a_burst_is_lost_datagram_by_datagram(pair: Pair, link: str) -> None:
    # The burst is longer than the token bucket of such a slow link. tbf would drop it whole if it
    # did not split it into datagrams.
    pair.lab.set("host0-leaf0", rate_bytes_per_s=2_000_000)
    pair.lab.set(link, loss_every=10)
    sender = pair.sender()
    sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1000)
    arrived: list[int] = []

    def send() -> None:
        sender.send(b"".join(datagram(number, 1000) for number in range(40)))
        arrived.extend(number for number, _ in pair.receive(QUIET_S, 36))

    assert grown(pair.lab, send)["leaf0>spine0"].packets == 36
    assert len(arrived) == 36


def test_traffic__tcp_crosses_a_corrupting_link(pair: Pair) -> None:
    pair.lab.set("leaf0-spine0", corruption=0.05)
    data = bytes(range(256)) * 8192
    server = pair.lab.call("host1", lambda: socket.create_server(("", PORT)))
    received = bytearray()

    def serve() -> None:
        accepted, _ = server.accept()
        with accepted:
            while part := accepted.recv(1 << 16):
                received.extend(part)

    server.settimeout(60)
    thread = threading.Thread(target=serve)
    thread.start()
    address = (pair.lab.address("host1"), PORT)
    client = pair.lab.call("host0", lambda: socket.create_connection(address, timeout=PATIENCE_S))
    with client, server:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        thread.join(timeout=PATIENCE_S)
    assert received == data
    assert pair.lab.counters()["leaf0>spine0"].corrupted > 0


def test_traffic__one_percent_is_lost(pair: Pair) -> None:
    pair.lab.set("host0-leaf0", loss=0.01)
    sender = pair.sender()
    arrived: list[int] = []
    growth = grown(pair.lab, lambda: arrived.extend(pair.pass_on(sender, 10_000)))
    losses = growth["host0>leaf0"].losses
    assert 40 <= losses <= 160  # 100 are expected; the bounds are six standard deviations away
    assert len(arrived) == 10_000 - losses


def test_traffic__losses_come_in_bursts(pair: Pair) -> None:
    pair.lab.set("leaf0-spine0", burst_enter=0.01, burst_leave=0.2)
    arrived = pair.pass_on(pair.sender(), 10_000)
    missing = sorted(set(range(10_000)) - set(arrived))
    runs = 1 + sum(b - a > 1 for a, b in pairwise(missing))
    assert len(missing) > 100
    assert 2.5 < len(missing) / runs < 8  # bursts have a mean length of 1 / 0.2 = 5 datagrams


def test_traffic__marks_above_the_threshold(pair: Pair) -> None:
    slow = {"rate_bytes_per_s": 5_000_000, "queue_bytes": 400_000, "ecn_bytes": 20_000}
    pair.lab.set("leaf1-spine0", **slow)
    sender = pair.sender()

    def calmly() -> None:
        for number in range(50):
            sender.send(datagram(number, 200))  # a queue of all 50 datagrams is below ecn_bytes

    assert grown(pair.lab, calmly)["spine0>leaf1"].marked == 0
    assert {bits for _, bits in pair.receive(QUIET_S, 50)} == {ECT_0}
    before = pair.lab.counters()["spine0>leaf1"].marked
    for number in range(300):
        sender.send(datagram(number, 1000))
    marked = sum(bits == CE for _, bits in pair.receive(QUIET_S, 300))
    assert marked > 0
    assert pair.lab.counters()["spine0>leaf1"].marked - before == marked


def test_traffic__corruption_is_caught(pair: Pair) -> None:
    pair.lab.set("leaf0-spine0", corruption=0.2)
    sender = pair.sender()
    arrived: list[int] = []
    # Pair.receive drops datagrams with any wrong byte.
    growth = grown(pair.lab, lambda: arrived.extend(pair.pass_on(sender, 1000, 1024)))
    corrupted = growth["leaf0>spine0"].corrupted
    assert 100 <= corrupted <= 300
    assert len(arrived) == 1000 - corrupted


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("link", ["host0-leaf0", "leaf0-spine0", "leaf1-spine0", "host1-leaf1"])
def test_traffic__a_cut_is_silent_and_heals(pair: Pair, link: str, down: bool) -> None:
    sender = pair.sender()
    assert pair.pass_on(sender, 10) == list(range(10))
    pair.lab.cut(link, down=down)
    with pytest.raises(LabError, match="is cut"):
        pair.lab.cut(link)
    assert pair.pass_on(sender, 100) == []  # and send() raised no error
    pair.lab.heal(link)
    assert pair.pass_on(sender, 10) == list(range(10))


def test_traffic__a_cut_counts_what_it_swallows(pair: Pair) -> None:
    sender = pair.sender()
    pair.lab.cut("leaf0-spine0")
    growth = grown(pair.lab, lambda: pair.pass_on(sender, 100))
    assert growth["leaf0>spine0"].cut_drops == 100
    assert growth["leaf0>spine0"].packets == 0


def test_traffic__a_changed_link_keeps_what_it_counted(pair: Pair) -> None:
    sender = pair.sender()
    pair.pass_on(sender, 100)
    before = pair.lab.counters()["leaf0>spine0"]
    pair.lab.set("leaf0-spine0", loss=0.5)
    assert pair.lab.counters()["leaf0>spine0"] == before


def test_traffic__two_labs_side_by_side(one_path: Lab) -> None:
    with Lab(line(), name=unique("other")) as other:
        there, here = Pair(other), Pair(one_path)
        assert here.receiver.getsockname() == there.receiver.getsockname()
        growth = grown(one_path, lambda: there.pass_on(there.sender(), 20))
        assert all(one.packets == 0 for one in growth.values())
        assert here.pass_on(here.sender(), 20) == list(range(20))
        there.close()
        here.close()


def test_traffic__hosts_of_one_leaf() -> None:
    model = LabModel(hosts=3, hosts_per_leaf=2, spines=2, uplinks=Link(mtu_bytes=1500))
    with Lab(model, name=unique("incast")) as lab:
        near = Pair(lab, "host0", "host1")
        growth = grown(lab, lambda: near.pass_on(near.sender(), 20))
        assert growth["leaf0>host1"].packets == 20
        assert growth["leaf0>spine0"].packets + growth["leaf0>spine1"].packets == 0
        near.close()
        far = Pair(lab, "host2", "host1")
        assert far.pass_on(far.sender(), 20) == list(range(20))
        far.close()


def test_traffic__with_offload_a_train_crosses_whole() -> None:
    model = LabModel(spines=1, segmentation_offload=True)
    with Lab(model, name=unique("offload")) as lab:
        pair = Pair(lab)
        sender = pair.sender()
        sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1000)
        arrived: list[int] = []

        def send() -> None:
            sender.send(b"".join(datagram(number, 1000) for number in range(40)))
            arrived.extend(number for number, _ in pair.receive(QUIET_S, 40))

        assert grown(lab, send)["leaf0>spine0"].offered_packets == 1
        assert arrived == list(range(40))
        with pytest.raises(LabError, match="with segmentation_offload each loss would"):
            lab.set("leaf0-spine0", loss=0.01)
        pair.close()
