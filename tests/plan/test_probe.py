"""Tests that probing finds the links that the packets of a flow cross, and says what it missed."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.lab.support import grown, reason_to_skip, udp, unique, weft
from transport.lab import Lab, LabModel
from transport.plan import routes
from transport.plan.hops import Loss, found, order, read_names
from transport.plan.probe import End, Flow, Heard, ProbeError, Seen, grid

NAMESPACES = pytest.mark.namespaces
BASE, PORTS = 20_000, 8
LIMIT = Path("/proc/sys/net/ipv4/icmp_msgs_per_sec")
BURST = LIMIT.with_name("icmp_msgs_burst")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    with Lab(LabModel(), name=unique("probe")) as one:
        yield one


def probe(lab: Lab, out: Path, *options: str, ports: int = PORTS) -> tuple[int, str]:
    """Probes from host0 to host1 with the command line; returns its status and last words."""
    run = weft(
        *("plan", "probe", "--lab", lab.name, "--port-base", str(BASE), "--ports", str(ports)),
        *("--json", "-", "-o", str(out), *options),
    )
    return run.returncode, run.stdout if run.returncode == 0 else run.stderr


def opened(lab: Lab, host: str, port: int) -> socket.socket:
    made = lab.call(host, udp)
    made.bind((lab.address(host), port))
    return made


def send(lab: Lab, ports: tuple[int, int], count: int) -> None:
    with closing(opened(lab, "host0", ports[0])) as made:
        for _ in range(count):
            made.sendto(b"x" * 32, (lab.address("host1"), ports[1]))


@NAMESPACES
def test_probe__agrees_with_the_counters_of_the_links(lab: Lab, tmp_path: Path) -> None:
    """Each 5-tuple sends a number of packets of its own; the links that carry them are counted."""
    status, text = probe(lab, tmp_path / "routes.json")
    assert status == 0, text
    made = routes.read(tmp_path / "routes.json")
    assert json.loads(text)["flows_with_unknown_hops"] == 0
    ends = [ends for ends in made.of if ends[:2] == ("host0", "host1")]
    assert len(ends) == PORTS * PORTS
    spines = set()
    # Otherwise host1 would send ICMP errors for closed ports.
    sinks = [opened(lab, "host1", BASE + at) for at in range(PORTS)]
    for number, one in enumerate(ends, 1):
        links = [made.links[link] for link in made.of[one]]
        growth = grown(lab, partial(send, lab, made.ports[one], 10 + number))
        grew = {name for name, now in growth.items() if now.packets >= 10 + number}
        assert grew == set(links), made.ports[one]
        spines.add(links[1])
    assert len(spines) == 4
    for sink in sinks:
        sink.close()


@NAMESPACES
def test_probe__names_a_sick_link(lab: Lab, tmp_path: Path) -> None:
    lab.set("leaf0-spine2", loss=0.3)
    try:
        status, text = probe(lab, tmp_path / "r.json", "--samples", "8", "--timeout", "0.1")
    finally:
        lab.set("leaf0-spine2", loss=0.0)
    assert status == 0, text
    assert set(json.loads(text)["sick"]) <= {"leaf0>spine2", "spine2>leaf0"}
    assert json.loads(text)["sick"]
    assert routes.read(tmp_path / "r.json").sick


@NAMESPACES
@pytest.mark.long
def test_probe__routers_that_answer_once_a_second_cost_time_only(lab: Lab, tmp_path: Path) -> None:
    # Least ms between two answers to one host; default 1000.
    limit = Path("/proc/sys/net/ipv4/icmp_ratelimit")
    routers = [node for node in lab.plan.nodes if not node.startswith("host")]
    ports = ("--samples", "1")
    assert probe(lab, tmp_path / "fast.json", *ports, ports=5)[0] == 0
    for node in routers:
        lab.call(node, lambda: limit.write_text("1000"))
    try:
        status, text = probe(lab, tmp_path / "slow.json", *ports, ports=5)
    finally:
        for node in routers:
            lab.call(node, lambda: limit.write_text("0"))
    assert status == 0, text
    assert json.loads(text)["flows_with_unknown_hops"] == 0
    assert json.loads(text)["sick"] == []
    ways = [
        {ends: [made.links[link] for link in links] for ends, links in made.of.items()}
        for made in (routes.read(tmp_path / "fast.json"), routes.read(tmp_path / "slow.json"))
    ]
    assert ways[0] == ways[1]


def answers_per_second(lab: Lab, node: str, count: str) -> None:
    lab.call(node, lambda: (LIMIT.write_text(count), BURST.write_text(count)))


@pytest.fixture
def silent() -> Iterator[Lab]:
    """A lab whose routers may send no ICMP, and have sent none yet."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    if not LIMIT.exists():
        pytest.skip("this kernel has no icmp_msgs_per_sec for each namespace")
    with Lab(LabModel(), name=unique("silent")) as one:
        for node in one.plan.nodes:
            answers_per_second(one, node, "0")
        yield one


@NAMESPACES
def test_probe__a_silent_fabric_is_one_line(silent: Lab, tmp_path: Path) -> None:
    status, text = probe(silent, tmp_path / "r.json", "--timeout", "0.05", ports=2)
    assert status == 1, text
    assert text.startswith("weft: no router answered: ")
    assert text.count("\n") == 1
    assert not (tmp_path / "r.json").exists()


@NAMESPACES
def test_probe__a_partly_silent_fabric_is_marked(silent: Lab, tmp_path: Path) -> None:
    for node in ("leaf0", "leaf1", "spine0", "spine1", "spine2"):
        answers_per_second(silent, node, "1000")
    status, text = probe(silent, tmp_path / "r.json", "--timeout", "0.1")
    assert status == 0, text
    document = json.loads(text)
    assert document["flows_with_unknown_hops"] > 0
    assert any("hop 2: no router answered for" in note for note in document["notes"])
    nodes = {way["over"][1] for way in document["ways"]}
    assert nodes == {"spine0", "spine1", "spine2", "?2"}


@NAMESPACES
def test_probe__a_port_in_use_is_one_line(lab: Lab, tmp_path: Path) -> None:
    with closing(opened(lab, "host0", BASE + 1)):
        status, text = probe(lab, tmp_path / "r.json")
    assert status == 1
    assert text.startswith(f"weft: host0: cannot use UDP port {BASE + 1} of 10.0.0.2 ")
    assert text.count("\n") == 1


def heard_of(*routers: tuple[str, ...]) -> Heard:
    """One flow from end 0 to end 1; the routers that answered for each TTL."""
    heard = Heard([Flow(0, 1, 1, 1)])
    for ttl, some in enumerate(routers, 1):
        heard.of[0, ttl] = Seen(3, len(some), list(some))
    heard.hops[0, 1] = len(routers) + 1
    return heard


ENDS = [End("a", "10.0.0.2"), End("b", "10.0.1.2")]


def test_hops__addresses_of_the_last_router_are_one_router() -> None:
    heard = heard_of(("1.0.0.1",), ("2.0.0.1",), ("3.0.0.9", "3.0.0.1"))
    made = found(ENDS, heard, {}).routes
    assert made.links == ("a>1.0.0.1", "1.0.0.1>2.0.0.1", "2.0.0.1>3.0.0.1", "3.0.0.1>b")
    assert made.addresses == {"a": "10.0.0.2", "b": "10.0.1.2"}


def test_hops__a_name_names_all_addresses_of_its_router() -> None:
    heard = heard_of(("1.0.0.1",), ("2.0.0.1",), ("3.0.0.9", "3.0.0.1"))
    made = found(ENDS, heard, {"3.0.0.9": "leaf1", "2.0.0.1": "spine0"}).routes
    assert made.links[1:] == ("1.0.0.1>spine0", "spine0>leaf1", "leaf1>b")


def test_hops__two_routers_of_one_flow_are_no_known_hop() -> None:
    result = found(ENDS, heard_of(("1.0.0.1",), ("2.0.0.1", "2.0.0.2"), ("3.0.0.1",)), {})
    assert "1.0.0.1>?2" in result.routes.links
    assert result.unknown == 1
    assert any("different ways" in note for note in result.notes)


def test_hops__a_way_that_was_not_followed_to_its_end_has_an_unknown_hop() -> None:
    """Otherwise, all routers of the last TTL would count as the one router before the target."""
    heard = Heard([Flow(0, 1, 1, 1), Flow(0, 1, 2, 1)])
    for at, spine in enumerate(("2.0.0.1", "2.0.0.2")):
        heard.of[at, 1] = Seen(1, 1, ["1.0.0.1"])
        heard.of[at, 2] = Seen(1, 1, [spine])
    result = found(ENDS, heard, {})
    assert {"1.0.0.1>2.0.0.1", "1.0.0.1>2.0.0.2", "?3>b"} <= set(result.routes.links)
    assert result.unknown == 2
    assert any("b did not answer" in note for note in result.notes)
    heard.of[0, 3], heard.of[1, 3] = Seen(1, 1, ["3.0.0.1"]), Seen(1, 1, ["3.0.0.2"])
    heard.of[0, 4] = Seen(3)
    assert "3.0.0.1>b" in found(ENDS, heard, {}).routes.links


def test_hops__nothing_heard_is_an_error() -> None:
    heard = Heard([Flow(0, 1, 1, 1)], {(0, 1): Seen(3, 0)}, sent=3)
    with pytest.raises(ProbeError, match="no router answered: 3 probes of 1 flows"):
        found(ENDS, heard, {})


def test_hops__a_few_lost_probes_make_no_link_sick() -> None:
    assert not Loss(0.10, 30, 0.05).sick
    assert not Loss(0.5, 10, 0.01).sick
    assert Loss(0.3, 60, 0.06).sick


def test_grid__every_port_takes_part_first() -> None:
    pairs = grid(range(4), range(10, 14), 6)
    assert pairs == [(0, 10), (1, 11), (2, 12), (3, 13), (0, 11), (1, 12)]
    assert len(set(grid(range(4), range(4), 99))) == 16


def test_names__a_wrong_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "names.toml"
    for text, said in (
        ("spine0 = 1", "spine0: expected a list of addresses"),
        ('"a>b" = ["1.2.3.4"]', "name must not contain >"),
        ("spine0 =", "is not TOML"),
    ):
        file.write_text(text)
        with pytest.raises(ProbeError, match=said):
            read_names(file)
    with pytest.raises(ProbeError, match="No such file"):
        read_names(tmp_path / "none.toml")
    assert order("10.2.0.1") < order("10.10.0.1")
