"""Tests the parts of the test of two hosts: messages, probes, what is judged, the option --peer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import click
import pytest

from tests.host.sample import DEVICE, HELLO, PATHS, PROBES, SIDE, greeted, paired
from transport.cli.doctor_peer import PeerType
from transport.errors import (
    AddressError,
    AuthenticationError,
    InvalidArgumentError,
    PeerDeadError,
    RefusedError,
    TimedOutError,
)
from transport.host.two_hosts import BROKEN, Finding, judge, serve, verdict
from transport.host.two_hosts.facts import (
    FactError,
    Hello,
    PairStep,
    PathFact,
    SideFacts,
    Verdict,
    check_hello,
    check_side,
    decode,
    encode,
)
from transport.host.two_hosts.paths import (
    DIAL_FAILED,
    STRANDED,
    PairFacts,
    unreached_messages,
    untried_control_ports,
)
from transport.host.two_hosts.talk import Budget
from transport.host.two_hosts.traffic import NO_PATH
from transport.host.two_hosts.view import seen_by_tester


def test_facts__what_is_encoded_is_decoded() -> None:
    for fact in (HELLO, PairStep(1, 0), SIDE, Verdict((Finding("a", BROKEN, "b", "c"),))):
        assert decode(encode(fact), type(fact)) == fact
    assert decode(encode(replace(SIDE, probes=None)), SideFacts).probes is None


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"",
            b"\xff\xfe",
            b"[" * 100_000,
            b"1" * 5_000,
            b"null",
            b"[]",
            b"{}",
            b'{"Verdict": {}}',
        ),
        *(b'{"PairStep": {"near": 1}}', b'{"PairStep": {"near": 1, "far": 2, "x": 3}}'),
        *(b'{"PairStep": {"near": true, "far": 0}}', b'{"PairStep": {"near": 1.0, "far": 0}}'),
        *(b'{"PairStep": {"near": null, "far": 0}}', b'{"PairStep": {"near": NaN, "far": 0}}'),
        b'{"PairStep": {"near": 99999999999999999999, "far": 0}}',
    ],
)
def test_facts__anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(FactError):
        decode(data, PairStep)


@pytest.mark.parametrize(
    "fields",
    [
        *(
            {"token": "zz"},
            {"port_base": "1-"},
            {"sockets": 0},
            {"paths": -1},
            {"devices": ()},
            {"devices": (DEVICE,) * 9},
            {"back_port": 70_000},
        ),
        *(
            {"devices": (replace(DEVICE, handle="00"),)},
            {"devices": (replace(DEVICE, udp_port=-1),)},
            {"devices": (replace(DEVICE, speed_mbps=-1),)},
        ),
    ],
)
def test_facts__a_hello_out_of_range_is_refused(fields: dict[str, Any]) -> None:
    assert check_hello(HELLO) == HELLO
    with pytest.raises(FactError):
        check_hello(replace(HELLO, **fields))


CONTRADICTIONS: tuple[dict[str, Any], ...] = (
    {"sent": 0},
    {"arrived": 0},
    {"late": 1_001},
    {"mtu_bytes": -1},
)


@pytest.mark.parametrize(
    "side",
    [
        *(replace(SIDE, segments=-1), replace(SIDE, paths=(PathFact(0, -1, 1, True),))),
        *(replace(SIDE, probes=replace(PROBES, **fields)) for fields in CONTRADICTIONS),
    ],
)
def test_facts__measurements_that_contradict_themselves_are_refused(side: SideFacts) -> None:
    """The judge divides by these numbers of the peer."""
    assert check_side(SIDE) == SIDE
    assert check_side(SideFacts(failed="no dial arrived")).probes is None
    with pytest.raises(FactError):
        check_side(side)


def test_verdict__names_what_is_limited_beside_what_is_not_judged() -> None:
    findings = [Finding("clock", "not judged", ""), Finding("rate", "limited", "")]
    assert verdict(findings).endswith("not judged: clock; limited: rate")


def test_facts__texts_and_lists_are_bounded() -> None:
    for fields in ({"host": "x" * 1_001}, {"devices": (DEVICE,) * 5_000}):
        with pytest.raises(FactError):
            decode(encode(replace(HELLO, **fields)), Hello)


def test_serve__a_tester_that_ends_is_not_waited_for() -> None:
    """The listener and the connection are fakes: one is never dialled, the other has failed."""

    def accept(timeout_s: float) -> None:
        raise TimedOutError("no peer")

    def check() -> None:
        raise PeerDeadError("the peer process is gone")

    server: Any = SimpleNamespace(_listeners=[SimpleNamespace(accept=accept)])
    front: Any = SimpleNamespace(check=check)
    with pytest.raises(PeerDeadError):
        serve.Server._accept(server, front, 0, Budget(240))


def judged(here: SideFacts = SIDE, there: SideFacts = SIDE) -> dict[str, Finding]:
    facts = PairFacts(PairStep(0, 0), HELLO, HELLO, here, there)
    return {one.subject: one for one in paired(facts, alone=True)}


def test_judge__all_is_well() -> None:
    found = judged()
    assert {one.state for one in found.values()} == {"ok"}, found
    assert verdict(list(found.values())) == "verdict: the two hosts can run weft"


def test_judge__a_pair_with_a_loopback_address_is_named() -> None:
    far = replace(HELLO, devices=(replace(DEVICE, name="lo", address="127.0.0.1"),))
    facts = PairFacts(PairStep(0, 0), HELLO, far, SideFacts(STRANDED), SideFacts())
    paths = paired(facts, alone=True)[0]
    assert paths.state == BROKEN
    assert paths.found.endswith("another host: lo 127.0.0.1 of the other host")
    assert paths.remedy.startswith("on the other host: name a NIC")


def test_judge__a_pair_that_the_test_did_not_come_to_is_not_judged() -> None:
    with pytest.raises(TimedOutError) as late:
        Budget(0).left_s(1)
    found = judged(SideFacts(failed=str(late.value)), SideFacts())
    assert {one.state for one in found.values()} == {"not judged"}


def test_judge__without_evidence_nothing_is_ok() -> None:
    found = judged(SideFacts(failed="why"), SideFacts())
    assert found.pop("data paths").state == BROKEN
    assert {one.state for one in found.values()} == {"not judged"}


@pytest.mark.parametrize(
    ("subject", "state", "probes"),
    [
        ("MTU", BROKEN, {"carried_bytes": 1_400}),
        ("MTU", "limited", {"carried_bytes": 1_400, "told_bytes": 1_400}),
        ("MTU", "not judged", {"carried_bytes": 0}),
        ("loss", BROKEN, {"arrived": 900}),
        ("loss", "limited", {"arrived": 990}),
        ("reordering", "limited", {"late": 100}),
        ("clock", "limited", {"clock_ahead_ns": -5_000_000_000}),
    ],
)
def test_judge__probes(subject: str, state: str, probes: dict[str, Any]) -> None:
    side = replace(SIDE, probes=replace(PROBES, **probes))
    found = judged(side)
    if state == "not judged":
        found = judged(side, side)
    assert (found[subject].state, bool(found[subject].remedy)) == (state, True)


def test_judge__what_dropped_long_packets_explain_is_not_blamed_on_ports_or_queues() -> None:
    hole = replace(PROBES, carried_bytes=1_300)
    near = replace(SIDE, probes=hole, lost=2_500)
    here = replace(near, failed="messages did not get through in time")
    found = judged(here)
    assert {name: found[name].state for name in ("data paths", "MTU", "loss")} == {
        "data paths": "limited",
        "MTU": BROKEN,
        "loss": "not judged",
    }
    assert "see MTU" in found["data paths"].remedy
    assert "see MTU" in found["loss"].remedy
    assert judged(replace(here, lost=0))["loss"].state == "ok"
    far = replace(HELLO, devices=(replace(DEVICE, mtu_bytes=9_000),))
    pair = paired(PairFacts(PairStep(0, 0), HELLO, far, here, SIDE), alone=True)
    assert any("alike (1500 here, 9000 there)" in one.remedy for one in pair), pair


def test_judge__paths_that_the_other_end_did_not_report_are_not_judged() -> None:
    silent = SideFacts(failed="it did not report")
    found = judged(there=silent)
    assert found["data paths"].state == "not judged"
    assert "there: it did not report" in found["data paths"].found
    assert found["MTU"].state == "not judged"


def test_judge__silent_paths_are_named_as_ranges() -> None:
    dead = {1, 4, 5, 6}
    paths = tuple(replace(one, usable=one.path not in dead) for one in PATHS)
    found = judged(replace(SIDE, paths=paths))["data paths"]
    assert found.state == BROKEN
    assert "here 4 of 8 answer; silent: paths 1, 4-6; there 8 of 8 answer" in found.found


@pytest.mark.parametrize(
    ("port_base", "ports", "said"),
    [
        ("20000", range(20_000, 20_008), "paths 2-3 (UDP ports 20002-20003); there"),
        ("20000-20100", range(20_099, 20_091, -1), "paths 2-3 (UDP ports 20096-20097); there"),
        ("20000-20100", [0] * 8, "paths 2-3; there"),
        ("0", range(40_000, 40_008), "paths 2-3; there"),
    ],
)
def test_judge__the_ports_of_silent_paths_are_named_if_they_are_known(
    port_base: str, ports: Sequence[int], said: str
) -> None:
    paths = tuple(
        replace(one, usable=one.path not in {2, 3}, port=ports[one.path]) for one in PATHS
    )
    hello = replace(HELLO, port_base=port_base)
    facts = PairFacts(PairStep(0, 0), hello, hello, replace(SIDE, paths=paths), SIDE)
    found = paired(facts, alone=True)[0]
    assert said in found.found
    assert ("one of its two ports" in found.remedy) == ("UDP ports" in said)


@pytest.mark.parametrize(
    ("arrived", "probes", "state"),
    [
        (1_000, 30, BROKEN),  # nothing is lost
        (900, 30, BROKEN),  # one of thirty would have passed
        (160, 30, "limited"),
        (900, 1, "limited"),
        (900, 0, "limited"),  # nothing was tried
    ],
)
def test_judge__a_path_that_never_answered_has_a_closed_port_unless_loss_explains_it(
    arrived: int, probes: int, state: str
) -> None:
    lossy = replace(SIDE, probes=replace(PROBES, arrived=arrived, answered=arrived))
    silent = replace(PATHS[0], rtt_ns=0, usable=False, probes=probes)
    found = judged(replace(lossy, paths=(silent, *PATHS[1:])))
    assert found["data paths"].state == state
    assert ("see loss" in found["data paths"].remedy) == (state == "limited")


@pytest.mark.parametrize(
    ("to", "back", "said"),
    [
        (0, 0, "let UDP ports 32768-60999 (net.ipv4.ip_local_port_range), or a range that WEFT_"),
        (9, 9, "pass between eth0 (10.0.0.1) of this host and eth1 (10.1.0.1) of the other host"),
        (9, 0, "pass from eth1 (10.1.0.1) of the other host to eth0 (10.0.0.1) of this host"),
        (0, 9, "pass from eth0 (10.0.0.1) of this host to eth1 (10.1.0.1) of the other host"),
    ],
)
def test_judge__a_pair_without_an_answer_names_nics_and_direction(
    to: int, back: int, said: str
) -> None:
    far = replace(HELLO, devices=(replace(DEVICE, name="eth1", address="10.1.0.1"),))
    paths = tuple(replace(one, rtt_ns=0, usable=False) for one in PATHS)
    here, there = (SideFacts(NO_PATH, 1, paths, heard=heard) for heard in (back, to))
    found = paired(PairFacts(PairStep(0, 0), HELLO, far, here, there), alone=False)[0]
    assert (found.state, said in found.remedy) == (BROKEN, True), found


def test_judge__paths_that_passed_packets_are_not_silent() -> None:
    lossy = replace(SIDE, probes=replace(PROBES, arrived=400, answered=160))
    paths = tuple(replace(one, usable=one.path > 6, probes=30) for one in PATHS)
    failed = replace(lossy, paths=paths, failed="messages did not get through in time")
    found = judged(failed, failed)
    assert (found["loss"].state, found["data paths"].state) == (BROKEN, "limited")


def test_judge__unanswered_probes_get_the_remedy_of_their_cause() -> None:
    unheard = replace(SIDE, probes=None)
    assert "let UDP ports 32768-60999" in judged(unheard, unheard)["MTU"].remedy
    full = replace(HELLO, port_base="20000-20003")
    facts = PairFacts(PairStep(0, 0), full, HELLO, unheard, unheard)
    (mtu,) = (one for one in paired(facts, alone=True) if one.subject == "MTU")
    assert "a larger range" in mtu.remedy
    untested = judged(SideFacts(failed="a dial by handle failed: refused"), SideFacts())
    assert untested["MTU"].remedy == "mend what is broken first"


def test_judge__a_failed_dial_by_handle_names_the_control_ports_of_both_hosts() -> None:
    near, far = replace(HELLO, control_port="7000-7007"), replace(HELLO, control_port="8000-8007")
    here = SideFacts(failed=f"{DIAL_FAILED}: port 8001: no answer")
    facts = PairFacts(PairStep(0, 0), near, far, here, SideFacts())
    assert paired(facts, alone=True)[0].remedy.startswith(
        "let TCP ports 7000-7007 (WEFT_CONTROL_PORT) of this host and "
        "TCP ports 8000-8007 (WEFT_CONTROL_PORT) of the other host pass"
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "let TCP ports 32768-60999 (net.ipv4.ip_local_port_range), or a range that WEFT_"),
        ({"free_ports": ""}, "let all TCP ports, or a range that WEFT_CONTROL_PORT gives on both"),
        ({"control_port": "7000"}, "or a range that WEFT_CONTROL_PORT gives on both hosts, pass"),
        ({"control_port": "7000-7007"}, "let TCP ports 7000-7007 (WEFT_CONTROL_PORT) pass"),
    ],
)
def test_judge__a_blocked_way_back_names_ports_that_stay_the_same(
    fields: dict[str, Any], said: str
) -> None:
    near = replace(HELLO, back_port=44_715, **fields)
    (_, control, *_) = greeted(near, replace(HELLO, back="no answer"))
    assert (control.state, said in control.remedy) == (BROKEN, True), control
    assert "44715" not in control.remedy


def test_judge__a_low_rate_is_limited_and_an_unknown_link_not_judged() -> None:
    slow = replace(SIDE, rate_bytes_per_s=100_000_000)
    assert judged(slow)["rate"].state == "limited"
    assert "800 Mb/s to the peer, 8 Gb/s from" in judged(slow)["rate"].found
    for kind in ("veth", "NIC+veth"):
        veth = replace(HELLO, devices=(replace(DEVICE, kind=kind),))
        rate = paired(PairFacts(PairStep(0, 0), HELLO, veth, SIDE, SIDE), alone=True)[4]
        assert (rate.state, "a veth device has no" in rate.found) == ("not judged", True), rate
    facts = PairFacts(
        PairStep(0, 0), HELLO, replace(HELLO, devices=(replace(DEVICE, speed_mbps=0),)), SIDE, SIDE
    )
    assert paired(facts, alone=True)[4].state == "not judged"
    assert paired(facts, alone=False)[4].subject == "rate eth0>eth0"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("host-b", "host-b", 0),
        ("10.0.0.1:7117", "10.0.0.1", 7117),
        ("fe80::1%eth0", "fe80::1%eth0", 0),
        ("[fd00::1]", "fd00::1", 0),
        ("[fd00::1]:70", "fd00::1", 70),
    ],
)
def test_peer__host_and_port(text: str, host: str, port: int) -> None:
    assert PeerType().convert(text, None, None) == (host, port)


@pytest.mark.parametrize("text", ["", ":7", "a:0", "a:x", "a:70000", "[]:7"])
def test_peer__malformed_values_are_refused(text: str) -> None:
    with pytest.raises(click.UsageError):
        PeerType().convert(text, None, None)


@pytest.mark.parametrize(
    "text", ["a:" + "7" * 5_000, "caf\udce9", "x" * 300, "[::1", "[::1:7117", "a" * 70 + ".org"]
)
def test_peer__what_no_host_is_called_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError):
        PeerType().convert(text, None, None)


@pytest.mark.parametrize(
    ("error", "subject", "remedy"),
    [
        (
            AddressError("cannot resolve 'h': Name or service not known"),
            "control port",
            "DNS, or h",
        ),
        (AddressError("h port 7: No route to host"), "control port", "ip route get h"),
        (AddressError("Address family for hostname not supported"), "control port", "WEFT_FAMILY"),
        (
            RefusedError("the two ends use different address families"),
            "control port",
            "WEFT_FAMILY",
        ),
        (TimedOutError("no answer: the handshake failed"), "control port", "is not weft"),
        (TimedOutError("timed out"), "control port", "a firewall drops TCP port 7"),
        (
            TimedOutError("no answer from h within the handshake timeout; h port 7: no answer"),
            "control port",
            "a firewall drops TCP port 7",
        ),
        (TimedOutError("h port 7 accepts but does not answer"), "control port", "is stopped"),
        (
            AuthenticationError("h refused: it accepts only peers that have a handle of one"),
            "control port",
            "the port that weft doctor --serve prints",
        ),
        (AddressError("all UDP ports from 1 to 2 are in use"), "data paths", "larger range"),
    ],
)
def test_judge__an_unreachable_host_gets_the_remedy_of_its_reason(
    error: Exception, subject: str, remedy: str
) -> None:
    (found,) = (one for one in judge.unreachable("h", 7, error) if one.state == BROKEN)
    assert found.subject == subject
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("fields", "said", "remedy"),
    [
        ({}, "eth0 here, eth0 there", ""),
        ({"down": "eth7"}, "eth0 here, eth0 there; eth7 there is down and not used", ""),
        ({"paths": 16}, "8 paths here, 16 there: connections use 8", "the same WEFT_PATHS"),
        (
            {"devices": (DEVICE, DEVICE)},
            "eth0 here, eth0, eth0 there; a device without",
            "is a NIC",
        ),
    ],
)
def test_judge__hosts_that_are_not_alike_are_limited(
    fields: dict[str, Any], said: str, remedy: str
) -> None:
    (devices,) = (
        one for one in greeted(HELLO, replace(HELLO, **fields)) if one.subject == "devices"
    )
    assert said in devices.found
    assert remedy in devices.remedy
    assert devices.state == ("limited" if remedy else "ok")


def test_judge__names_the_last_port_of_a_single_number() -> None:
    hello = replace(HELLO, port_base="20000", sockets=32)
    dead = replace(SIDE, paths=tuple(replace(one, usable=False) for one in PATHS))
    facts = PairFacts(PairStep(0, 0), hello, hello, dead, SIDE)
    remedy = paired(facts, alone=True)[0].remedy
    assert remedy.startswith("let UDP ports 20000-20031 (WEFT_PORT_BASE=20000) pass in both")


def test_judge__names_the_ports_that_a_firewall_must_let_pass() -> None:
    hello = replace(HELLO, port_base="20000-24095")
    dead = replace(SIDE, paths=tuple(replace(one, usable=False) for one in PATHS))
    facts = PairFacts(PairStep(0, 0), hello, HELLO, dead, SIDE)
    (paths,) = (one for one in paired(facts, alone=True) if one.subject == "data paths")
    assert paths.remedy.startswith(
        "let UDP ports 20000-24095 (WEFT_PORT_BASE) of this host and UDP ports 32768-60999 (net"
    )


@pytest.mark.parametrize(
    ("last", "ports", "said"),
    [
        (24_095, 20_000, "9 of 4096 tried here, 9 of 4096 tried there"),
        (24_095, 0, "at most 9 of 4096 tried here, at most 9 of 4096 tried there"),
        (20_008, 20_000, ""),
    ],
)
def test_judge__says_how_many_ports_of_a_range_were_tried(last: int, ports: int, said: str) -> None:
    """Eight paths, which have the first ports (0: unknown), and the port of probes."""
    device = replace(DEVICE, udp_port=20_008)
    hello = replace(HELLO, port_base=f"20000-{last}", devices=(device,))
    side = replace(
        SIDE, paths=tuple(replace(one, port=ports and ports + one.path) for one in PATHS)
    )
    found = paired(PairFacts(PairStep(0, 0), hello, hello, side, side), alone=True)
    tried = [one for one in found if one.subject == "UDP ports"]
    assert [(one.state, one.found) for one in tried] == ([("not judged", said)] if said else [])
    note = f"; note: UDP ports ({said})" if said else ""
    assert verdict(found) == f"verdict: the two hosts can run weft{note}"
    unknown = Finding("clock", "not judged", "no probe was answered")
    assert verdict([unknown, *found]).startswith("verdict: nothing is broken; not judged: clock")


@pytest.mark.parametrize(
    ("last", "has_messages", "said"),
    [
        (7_099, True, ["1 of 100 tried here, 3 of 100 tried there"]),
        (7_099, False, ["1 of 100 tried here, 2 of 100 tried there"]),
        (7_001, True, ["1 of 2 tried here"]),
        (7_000, False, []),
    ],
)
def test_judge__says_how_many_tcp_ports_of_a_range_were_tried(
    last: int, has_messages: bool, said: list[str]
) -> None:
    setting = f"7000-{last}" if last > 7_000 else "0"
    hello = replace(HELLO, control_port=setting, back_port=last)
    made = untried_control_ports(hello, hello, has_messages=has_messages)
    found = seen_by_tester(made)
    assert [one.found for one in found] == said
    assert all((one.subject, one.state) == ("TCP ports", "not judged") for one in found)
    assert verdict(found).startswith("verdict: the two hosts can run weft")


def test_judge__warns_of_a_port_for_messages_that_is_not_reached() -> None:
    hello = replace(HELLO, control_port="7000-7010")
    (found,) = seen_by_tester([unreached_messages(hello, hello, [7_010, 7_009])])
    assert (found.subject, found.state) == ("message port", "limited")
    assert "TCP 7009-7010;" in found.found
    assert "TCP ports 7000-7010" in found.remedy


def test_judge__a_little_loss_under_load_is_no_limit() -> None:
    for lost, state in ((80, "ok"), (200, "limited")):
        assert judged(replace(SIDE, lost=lost))["loss"].state == state


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("7010", "one port, and a test takes one for itself"),
        ("7010-7011", ""),
    ],
)
def test_serve__says_how_many_ports_it_needs(
    monkeypatch: pytest.MonkeyPatch, setting: str, said: str
) -> None:
    asked: list[int] = []

    def listen(port: int, **_: bool) -> str:
        asked.append(port)
        if port == 7010:
            raise AddressError("in use")
        return "listener"

    endpoint: Any = SimpleNamespace(listen=listen)
    monkeypatch.setenv("WEFT_CONTROL_PORT", setting)
    if said:
        with pytest.raises(InvalidArgumentError, match=said):
            serve.open_listener(endpoint, 0)
    else:
        assert str(serve.open_listener(endpoint, 0)) == "listener"
        assert asked == [7010, 7011]
