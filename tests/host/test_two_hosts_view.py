"""Tests that each host reads the report on two hosts from its own side."""

from __future__ import annotations

from dataclasses import replace

from tests.host.sample import DEVICE, HELLO, PATHS, PROBES, SIDE
from transport.host.two_hosts import Finding, judge
from transport.host.two_hosts.facts import PairStep, SideFacts
from transport.host.two_hosts.paths import PairFacts
from transport.host.two_hosts.traffic import NO_PATH
from transport.host.two_hosts.view import FROM, HERE, seen_by_server, seen_by_tester


def test_view__each_host_reads_the_report_from_its_own_side() -> None:
    far = replace(HELLO, host="b", devices=(replace(DEVICE, name="eth1", address="10.1.0.1"),))
    paths = tuple(replace(one, rtt_ns=0, usable=False) for one in PATHS)
    here, there = (SideFacts(NO_PATH, 1, paths, heard=heard) for heard in (9, 0))
    facts = PairFacts(PairStep(0, 0), HELLO, far, here, there)
    neutral = [*judge.greeted(HELLO, far), *judge.pair(facts, alone=False)]
    near, turned = seen_by_tester(neutral), seen_by_server(neutral)
    assert near[0].found == "here a (10.0.0.1); there b (10.1.0.1)"
    assert turned[0].found == "there a (10.0.0.1); here b (10.1.0.1)"
    assert {one.subject.partition(" eth")[2] for one in turned[5:]} == {"1>eth0"}
    from_a_to_b = "pass from eth0 (10.0.0.1) of {} host to eth1 (10.1.0.1) of {} host"
    assert from_a_to_b.format("this", "the other") in near[5].remedy
    assert from_a_to_b.format("the other", "this") in turned[5].remedy
    assert not any("{" in str(one) for one in (*near, *turned))


def test_view__directions_and_the_clock_turn_with_the_host() -> None:
    slow = replace(SIDE, probes=replace(PROBES, arrived=900), rate_bytes_per_s=100_000_000)
    found = judge.pair(PairFacts(PairStep(0, 0), HELLO, HELLO, slow, SIDE), alone=True)
    by_subject = {one.subject: one.found for one in seen_by_server(found)}
    assert by_subject["loss"].startswith("idle: from the peer 10.00 %, to the peer 0 %")
    assert by_subject["rate"].startswith("800 Mb/s from the peer, 8 Gb/s to the peer")
    assert by_subject["clock"].startswith("the clock of this host is 5 us ahead")
    assert seen_by_tester([Finding(HERE, "ok", FROM)]) == [Finding("here", "ok", "from the peer")]
