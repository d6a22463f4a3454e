"""Tests `weft doctor --peer --all-ports`, which tries every port of the two hosts' ranges."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.host.sample import HELLO
from tests.host.support import PORT, SCRIPT, ended, filtered, found_by, names_range, peer, serving
from tests.waiting import PATIENCE_S
from transport.host.two_hosts import blocked
from transport.host.two_hosts.blocked import Tried
from transport.host.two_hosts.every_port import batches, pairs_of, ports_of, used
from transport.host.two_hosts.facts import (
    PORTS_MAX,
    FactError,
    PortsFact,
    PortsStep,
    check_ports,
    check_step,
)
from transport.host.two_hosts.view import seen_by_server, seen_by_tester
from transport.lab import Lab

RANGES = {"WEFT_PORT_BASE": "20000-24095", "WEFT_CONTROL_PORT": "7117-7148"}


def told(lab: Lab, *more: str, **variables: str) -> dict[str, dict[str, Any]]:
    """The findings of `weft doctor --peer --all-ports` on host0."""
    client = peer(lab, "--all-ports", *more, **variables)
    said, errors = client.communicate(timeout=PATIENCE_S)
    return found_by(said, errors)


@pytest.mark.namespaces
def test_all_ports__blocked_ranges_are_named_with_direction_and_kind(lab: Lab) -> None:
    """One host drops, the other one rejects; either is seen from both ends."""
    with (
        serving(lab, **RANGES) as server,
        filtered(lab, "host1", "udp dport 20100-20199 drop", "tcp dport 7130-7133 drop"),
        filtered(
            lab, "host0", "udp dport 23000-23003 reject", "tcp dport 7140 reject with tcp reset"
        ),
    ):
        found = told(lab, **RANGES)
        said = " ".join(ended(server, reports=1)[1].split())
    udp, tcp = found["every UDP port"], found["every TCP port"]
    assert (udp["state"], tcp["state"]) == ("BROKEN", "BROKEN")
    dropped, refused = (
        "dropped without an error",
        f"rejected by {lab.address('host0')} with an error",
    )
    assert names_range(udp["found"], f"{dropped}) from here to there", 20100, 20199), udp
    assert names_range(udp["found"], f"{refused}) from there to here", 23000, 23003), udp
    assert "let all UDP ports 20000-24095 pass from this host to the other host" in udp["remedy"]
    assert names_range(tcp["found"], f"{dropped}) from here to there", 7130, 7133), tcp
    assert names_range(tcp["found"], "rejected with an error) from there to here", 7140, 7140), tcp
    assert "UDP ports" not in found  # that some were not tried
    assert names_range(said, f"{dropped}) from there to here", 20100, 20199), said
    assert "let all UDP ports 20000-24095 pass from this host to the other host" in said


@pytest.mark.namespaces
def test_all_ports__an_open_network_passes_all_ports_that_are_free(lab: Lab) -> None:
    with serving(lab, **RANGES):
        found = told(lab, **RANGES)
    for subject, count in (("every UDP port", 4_096), ("every TCP port", 32)):
        assert found[subject]["state"] == "ok", found[subject]
        assert found[subject]["found"].count(f" of {count} pass, ") == 2, found[subject]
        assert "are in use there and were not tried" in found[subject]["found"]


@pytest.mark.namespaces
def test_all_ports__ctrl_c_ends_it_and_the_server_goes_on(lab: Lab) -> None:
    with serving(lab, **RANGES) as server:
        client = peer(lab, "--all-ports", **RANGES)
        assert client.stderr is not None
        assert any("every UDP port: 20" in line for line in client.stderr)
        client.send_signal(signal.SIGINT)
        _, errors = client.communicate(timeout=PATIENCE_S)
        assert (client.returncode, errors.splitlines()[-1]) == (130, "weft: interrupted")
        assert server.stdout is not None
        assert "the other host ended the test" in server.stdout.readline()
        assert found_by(*peer(lab, **RANGES).communicate(timeout=PATIENCE_S))


def test_all_ports__goes_with_peer() -> None:
    words = ["-c", SCRIPT, "doctor", "--all-ports"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, "--all-ports goes with --peer" in done.stderr) == (2, True)


def test_all_ports__ranges_are_those_of_the_settings_or_of_the_kernel() -> None:
    assert used(HELLO, udp=True) == used(HELLO, udp=False) == range(32_768, 61_000)
    near = replace(HELLO, port_base="20000", control_port="7000-7007", sockets=8)
    assert used(near, udp=True) == range(20_000, 20_008)
    assert used(near, udp=False) == range(7_000, 7_008)
    assert used(replace(HELLO, free_ports=""), udp=True) == range(0)
    parts = list(batches(range(20_000, 24_096)))
    assert [port for part in parts for port in part] == list(range(20_000, 24_096))
    assert max(map(len, parts)) <= PORTS_MAX


@pytest.mark.parametrize(
    "pairs", [(1,), (0, 1), (5, 4), (1, 2, 2, 3), (1, 2, 3, 4), (1, 65_536), (1, 5) * 2_000]
)
def test_all_ports__ranges_of_a_peer_are_checked(pairs: tuple[int, ...]) -> None:
    assert pairs_of({1, 2, 4}) == (1, 2, 4, 4)
    assert ports_of((1, 2, 4, 4)) == {1, 2, 4}
    assert check_ports(PortsFact(busy=(1, 2, 4, 4))).busy == (1, 2, 4, 4)
    with pytest.raises(FactError):
        check_ports(PortsFact(blocked=pairs))


@pytest.mark.parametrize(("first", "last"), [(0, 5), (5, 4), (65_535, 65_536), (1, PORTS_MAX + 1)])
def test_all_ports__steps_of_a_peer_are_bounded(first: int, last: int) -> None:
    with pytest.raises(FactError):
        check_step(PortsStep(0, 0, 0, True, True, first, last))


def test_all_ports__what_was_not_tried_is_not_judged() -> None:
    some, none = Tried(True, range(100, 200), why_left="it took too long"), Tried(False, range(0))
    some.add(range(100, 150), PortsFact(busy=(100, 101)))
    (found,) = seen_by_tester([blocked.finding("UDP", [some, none])])
    assert found.state == "not judged"
    assert "from here to there: 48 of 100 pass, 2 are in use there and were" in found.found
    assert "50 were not tried: it took too long" in found.found
    assert "from there to here: the range of UDP ports is unknown" in found.found


def test_all_ports__one_icmp_error_tells_what_becomes_of_a_range() -> None:
    one = Tried(True, range(100, 200))
    fact = PortsFact(blocked=(110, 119, 130, 130), rejected=(112, 112), by="10.0.0.9")
    one.add(range(100, 200), fact)
    (found,) = seen_by_server([blocked.finding("TCP", [one])])
    assert "; 110-119 blocked (rejected by 10.0.0.9 with an error) from there to h" in found.found
    assert "; 130 blocked (dropped without an error) from there to here" in found.found
    assert found.remedy.startswith("let all TCP ports 100-199 pass from the other host to this")


def test_all_ports__the_remedy_has_no_holes_where_ports_were_in_use() -> None:
    one = Tried(True, range(100, 200))
    one.add(range(100, 200), PortsFact(busy=(140, 171), blocked=(110, 139, 172, 180)))
    (found,) = seen_by_tester([blocked.finding("UDP", [one])])
    assert "; 110-139, 172-180 blocked" in found.found
    assert found.remedy.startswith("let all UDP ports 100-199 pass from this host to the other")


def test_all_ports__many_ranges_are_counted() -> None:
    one = Tried(True, range(1, 200))
    one.add(
        range(1, 200),
        PortsFact(blocked=tuple(at for port in range(1, 121, 3) for at in (port, port))),
    )
    assert "and 20 more ranges" in blocked.finding("UDP", [one]).found
    assert PORT not in one.blocked
