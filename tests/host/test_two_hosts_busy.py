"""Tests what a busy host changes in the report on two hosts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.host.sample import HELLO, PATHS, PROBES, SIDE, paired
from transport.host.two_hosts import Finding, busy
from transport.host.two_hosts.busy import BusyWatch
from transport.host.two_hosts.facts import PairStep, SideFacts
from transport.host.two_hosts.paths import BUSY_PERCENT, PairFacts
from transport.host.two_hosts.traffic import LATE

BUSY: dict[str, Any] = {"waited_percent": BUSY_PERCENT}


def judged(here: SideFacts, there: SideFacts = SIDE) -> dict[str, Finding]:
    facts = PairFacts(PairStep(0, 0), HELLO, HELLO, here, there)
    return {one.subject: one for one in paired(facts, alone=True)}


def test_busy__loss_that_the_hosts_caused_is_no_fault_of_the_network() -> None:
    """A hundred datagrams are lost; the hosts counted that many, or fewer."""
    lossy = replace(SIDE, probes=replace(PROBES, arrived=900, answered=900))
    assert judged(replace(lossy, overflows=99))["loss"].state == "BROKEN"
    for here, there in ((100, 0), (40, 60)):
        found = judged(replace(lossy, overflows=here), replace(SIDE, overflows=there))["loss"]
        assert found.state == "not judged"
        assert "try again" in found.remedy


def test_busy__messages_that_are_late_on_a_busy_host_are_not_judged() -> None:
    late = replace(SIDE, failed=LATE)
    assert judged(late)["data paths"].state == "BROKEN"
    found = judged(late, replace(SIDE, **BUSY))["data paths"]
    assert found.state == "not judged"
    assert found.remedy.startswith("the other host was busy (a thread waited 20 % of the time")


def test_busy__a_fault_stays_one_and_says_that_the_host_was_busy() -> None:
    silent = replace(PATHS[0], rtt_ns=0, usable=False, probes=30)
    found = judged(replace(SIDE, paths=(silent, *PATHS[1:]), **BUSY))
    assert found["data paths"].state == "BROKEN"
    assert "this host was busy" in found["data paths"].remedy
    assert found["data paths"].remedy.endswith("try again when it is idle")
    assert (found["MTU"].state, found["MTU"].remedy) == ("ok", "")


def test_busy__the_kernel_counts_what_this_process_waited_for_and_dropped() -> None:
    watch = BusyWatch()
    assert 0 <= watch.waited_percent <= 100
    assert watch.dropped >= 0
    assert busy._waited_ns()  # of the threads of this process


def test_busy__a_host_that_does_not_say_is_not_called_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    monkeypatch.setattr(busy, "read_text", lambda path: "")
    watch = BusyWatch()
    assert (watch.waited_percent, watch.dropped) == (0, 0)
