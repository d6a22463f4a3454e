"""Tests `weft doctor --serve` and `--peer` between two hosts of a lab."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.host.support import (
    FINE,
    PORT,
    SCRIPT,
    ended,
    filtered,
    report,
    report_and_errors,
    second_nic,
    serving,
    start,
    states,
)
from tests.waiting import PATIENCE_S, until
from transport.host.two_hosts.ports import FREE_PORTS
from transport.lab import Lab

pytestmark = pytest.mark.namespaces

# Dials by host and port, as the command does, and sends what no command sends.
STRANGER = """
import sys
from transport import Endpoint
with Endpoint() as endpoint, endpoint.connect(sys.argv[1], 7117, timeout_s=240) as connection:
    connection.send(sys.argv[2].encode(), timeout_s=240)
"""


@contextmanager
def dropped(lab: Lab, *selector: str) -> Iterator[None]:
    """The router drops the packets that a rule selects, without a word."""

    def call(verb: str) -> int:
        words = ["ip", "rule", verb, *selector, "blackhole"]
        done = lab.run("spine0", words, capture_output=True, timeout=PATIENCE_S)
        return done.returncode

    if call("add"):
        pytest.skip("ip rule cannot select packets by protocol here")
    try:
        yield
    finally:
        call("del")


def test_two_hosts__all_is_well_and_strangers_do_no_harm(lab: Lab) -> None:
    def garbage() -> None:
        with socket.create_connection((lab.address("host1"), PORT), timeout=PATIENCE_S) as sent:
            sent.sendall(bytes(range(256)) * 16)
            with suppress(ConnectionResetError):
                assert sent.recv(1) == b""  # the server ends the connection

    with serving(lab) as server:
        assert server.stdout is not None
        lab.call("host0", garbage)
        for text, answer in (("[" * 9_999, "not JSON"), ('{"Hello": 1}', "expected the fields")):
            stranger = start(lab, "host0", STRANGER, lab.address("host1"), text)
            assert answer in server.stdout.readline()
            stranger.communicate(timeout=PATIENCE_S)
        _, found, errors = report_and_errors(lab)
        phases = [line.partition(": ")[2] for line in errors.splitlines()]
        here = lab.address("host1")
        assert phases[0].startswith(f"{here}: connecting to port {PORT}"), errors
        for what in ("loss, reordering", "does each data path answer", "rate"):
            assert any(one.startswith(f"{here}: eth0>eth0: {what}") for one in phases), errors
        # What depends on how busy this machine is, is only measured: loss, rate and times.
        sure = ("control port", "versions", "data paths", "MTU", "reordering", "round trip")
        assert states(found, *sure) <= FINE, found
        assert "4 of 4 answer; there 4 of 4 answer" in found["data paths"]["found"]
        assert "to the peer 1500 bytes" in found["MTU"]["found"]
        assert found["secret"]["state"] == "absent"
        assert "idle: to the peer" in found["loss"]["found"]
        assert "the clock of the other host is" in found["clock"]["found"]
        assert "over one connection" in found["rate"]["found"]
        status, said, _ = ended(server, reports=1)
    assert status == 130
    assert "tested" in said
    assert "verdict: " in said
    assert "4 of 4 answer" in said
    # Each end reads the one report from its own side.
    assert f"here {socket.gethostname()} ({lab.address('host0')}); there" in found["hosts"]["found"]
    words = " ".join(said.split())
    assert f"here {socket.gethostname()} ({lab.address('host1')})" in words, said
    assert "from the peer 1500 bytes, as the interface; to the peer 1500 bytes" in words, said
    assert "the other host connected to this host, and back" in words, said


def no_messages(lab: Lab) -> AbstractContextManager[None]:
    """The router drops the TCP ports of which --serve takes one for messages."""
    return dropped(lab, "ipproto", "tcp", "dport", f"{PORT + 1}-{PORT + 4}")


def test_two_hosts__without_udp_each_host_says_what_both_saw(lab: Lab) -> None:
    with serving(lab) as server, dropped(lab, "ipproto", "udp"):
        status, found = report(lab)
        said = " ".join(ended(server, reports=1)[1].split())
    paths = found["data paths"]
    assert (status, paths["state"], found["control port"]["state"]) == (1, "BROKEN", "ok")
    hosts = [f"eth0 ({lab.address(host)})" for host in ("host0", "host1")]
    between = "nothing arrives between {} of {} host and {} of {} host, in either direction"
    assert between.format(hosts[0], "this", hosts[1], "the other") in paths["found"]
    assert f"between {hosts[0]} of the other host and {hosts[1]} of this host" in said, said
    assert "verdict: broken: data paths" in said
    assert states(found, "MTU", "loss", "reordering", "rate", "clock") == {"not judged"}


def test_two_hosts__no_udp_is_a_broken_data_path(lab: Lab) -> None:
    with serving(lab) as server, dropped(lab, "ipproto", "udp"), no_messages(lab):
        status, found = report(lab)
        assert server.stdout is not None
        assert "no datagram of it arrived: let UDP ports " in server.stdout.readline()
        assert ended(server, signal.SIGTERM)[0] == 0
    assert (status, found["control port"]["state"]) == (1, "ok")
    assert found["data paths"]["state"] == "BROKEN"
    assert "0 of 4 answer: no UDP packet of the peer arrived" in found["data paths"]["found"]
    assert f"as TCP port {PORT + 1} of it is not reached either" in found["data paths"]["found"]
    assert states(found, "MTU", "loss", "reordering", "rate", "clock") == {"not judged"}


@pytest.mark.parametrize("hello_s", ["8.0", "15.0"])
def test_two_hosts__a_firewall_of_the_server_is_named_whoever_gives_up_first(
    lab: Lab, hello_s: str
) -> None:
    """A server that waits shorter closes the connection before the testing end has judged."""
    script = f"from transport.host.two_hosts import serve; serve.HELLO_S = {hello_s}; {SCRIPT}"
    ports = {"WEFT_PORT_BASE": "20000-24095"}
    with (
        serving(lab, script, **ports) as server,
        filtered(lab, "host1", "udp dport 20000-24095 drop"),
        no_messages(lab),
    ):
        status, found = report(lab, **ports)
        assert server.stdout is not None
        said = server.stdout.readline()
    assert "no datagram of it arrived: let UDP ports 20000-24095 (WEFT_PORT_BASE) pass fr" in said
    assert (status, found["data paths"]["state"]) == (1, "BROKEN")
    assert "0 of 4 answer: UDP packets to the peer are dropped" in found["data paths"]["found"]
    assert "let UDP ports 20000-24095 (WEFT_PORT_BASE) pass" in found["data paths"]["remedy"]
    assert "other host" not in found


def test_two_hosts__udp_of_one_direction_is_named_at_both_ends(lab: Lab) -> None:
    back = ("ipproto", "udp", "from", lab.address("host1"))
    with serving(lab) as server, dropped(lab, *back):
        _, found = report(lab)
        said = " ".join(ended(server, reports=1)[1].split())
    there, here = (f"eth0 ({lab.address(host)})" for host in ("host1", "host0"))
    one_way = f"what {there} of the other host sends does not arrive at {here} of this host"
    assert one_way in found["data paths"]["found"], found
    assert f"pass from {there} of the other host to {here} of this" in found["data paths"]["remedy"]
    assert f"what {there} of this host sends does not arrive at {here} of the other" in said, said


def test_two_hosts__udp_of_one_direction_is_named_without_messages(lab: Lab) -> None:
    back = ("ipproto", "udp", "from", lab.address("host1"))
    with serving(lab) as server, dropped(lab, *back), no_messages(lab):
        _, found = report(lab)
        assert server.stdout is not None
        assert "pass from this host to it; UDP from it" in server.stdout.readline()
    assert "those from the peer to this host are dropped" in found["data paths"]["found"]


def test_two_hosts__a_port_that_drops_is_no_stopped_server(lab: Lab) -> None:
    with serving(lab), dropped(lab, "ipproto", "tcp", "dport", f"{PORT}-{PORT}"):
        _, found = report(lab)
    assert "a firewall drops TCP port" in found["control port"]["remedy"]


def test_two_hosts__a_blocked_port_of_a_dial_by_handle_is_named(lab: Lab) -> None:
    ports = {"WEFT_CONTROL_PORT": f"{PORT}-{PORT + 7}"}
    with serving(lab, **ports), dropped(lab, "ipproto", "tcp", "dport", f"{PORT + 1}-{PORT + 1}"):
        _, found = report(lab, **ports)
    paths = found["data paths"]
    assert (paths["state"], f"port {PORT + 1}" in paths["found"]) == ("BROKEN", True), paths
    assert f"let TCP ports {PORT}-{PORT + 7} (WEFT_CONTROL_PORT" in paths["remedy"]


# A job listens for dials by handle only.
JOB = """
from transport import Endpoint
with Endpoint() as endpoint, endpoint.listen(port=7117) as listener:
    print("listens", flush=True)
    listener.accept(timeout_s=240)
"""


def test_two_hosts__a_port_of_a_job_is_named(lab: Lab) -> None:
    job = start(lab, "host1", JOB)
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "listens\n"
        _, found = report(lab)
    finally:
        job.kill()
        job.communicate(timeout=PATIENCE_S)
    assert "a job holds port 7117" in found["control port"]["found"]
    assert found["secret"]["state"] == "not judged"


# Accepts whoever reaches the port, as a job with open listeners does, and never answers.
OPEN_JOB = """
import time
from transport import Endpoint
with Endpoint() as endpoint, endpoint.listen(port=7117, open=True) as listener:
    print("listens", flush=True)
    with listener.accept(timeout_s=240):
        time.sleep(240)
"""


def test_two_hosts__a_job_that_accepts_whoever_comes_is_no_doctor(lab: Lab) -> None:
    job = start(lab, "host1", OPEN_JOB)
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "listens\n"
        words = ("doctor", "--peer", lab.address("host1"), "--json", "-")
        client = start(lab, "host0", SCRIPT, *words)
        assert client.stderr is not None
        assert any("which may serve another one or run a job" in one for one in client.stderr)
    finally:
        job.kill()
        job.communicate(timeout=PATIENCE_S)
    said, _ = client.communicate(timeout=PATIENCE_S)
    found = {one["subject"]: one for one in json.loads(said)}
    process = f"the process at {lab.address('host1')} port {PORT}"
    assert f"{process} ended the connection" in found["other host"]["found"]
    assert "a job's, not weft doctor --serve" in found["other host"]["found"]
    assert "use the port that weft doctor --serve printed" in found["other host"]["remedy"]
    assert states(found, "data paths", "MTU") == {"not judged"}


def test_two_hosts__the_end_of_either_end_is_named(lab: Lab) -> None:
    words = (SCRIPT, "doctor", "--peer", lab.address("host1"), "--json", "-")
    with serving(lab) as server:
        client = start(lab, "host0", *words)
        await_phase(client)
        client.kill()
        client.communicate(timeout=PATIENCE_S)
        assert server.stdout is not None
        assert "10." in server.stdout.readline()
        # What the server has not said of this client yet keeps the next one waiting.
        with dropped(lab, "ipproto", "udp"):
            client = start(lab, "host0", *words)
            await_phase(client)
            server.kill()
            said, _ = client.communicate(timeout=PATIENCE_S)
    found = {one["subject"]: one for one in json.loads(said)}
    assert client.returncode == 1
    assert "weft doctor --serve ended" in found["other host"]["found"]
    assert states(found, "data paths", "MTU") == {"not judged"}


def test_two_hosts__hosts_of_two_families_get_the_variable(lab: Lab) -> None:
    off = Path("/proc/sys/net/ipv6/conf/eth0/disable_ipv6")
    try:
        lab.call("host1", lambda: off.write_text("0"))
    except OSError as error:
        pytest.skip(f"cannot turn on IPv6 here: {error}")
    lab.run("host1", ["ip", "address", "add", "fd00:77::2/64", "dev", "eth0", "nodad"])
    server = start(lab, "host1", SCRIPT, "doctor", "--serve", WEFT_FAMILY="ipv6")
    try:
        assert server.stdout is not None
        assert "listening" in server.stdout.readline()
        _, found = report(lab)
    finally:
        server.kill()
        server.communicate(timeout=PATIENCE_S)
        lab.call("host1", lambda: off.write_text("1"))
    assert found["control port"]["state"] == "BROKEN", found
    assert "different address families" in found["control port"]["found"]
    assert "WEFT_FAMILY" in found["control port"]["remedy"]


def test_two_hosts__a_host_that_offers_only_loopback_is_named(lab: Lab) -> None:
    lo = {"WEFT_INTERFACES": "lo"}
    status, found = report(lab, **lo)
    paths = found["data paths"]
    assert (status, paths["state"], found["control port"]["state"]) == (1, "BROKEN", "not judged")
    assert "this host offers only loopback addresses: 127.0.0.1 (WEFT_INT" in paths["found"], paths
    assert "on this host: name a NIC" in paths["remedy"]
    server = start(lab, "host1", SCRIPT, "doctor", "--serve", **lo)
    try:
        assert server.stdout is not None
        assert "listening" in server.stdout.readline()
        assert "no address that another host can reach" in server.stdout.readline()
        _, found = report(lab)
        assert "this host offers only 127.0.0.1 (WEFT_INT" in server.stdout.readline()
    finally:
        server.kill()
        server.communicate(timeout=PATIENCE_S)
    assert "the other host offers only loopback" in found["data paths"]["found"], found
    assert "on the other host: name a NIC" in found["data paths"]["remedy"]


def test_two_hosts__a_blocked_second_nic_is_named_with_the_direction(lab: Lab) -> None:
    with (
        second_nic(lab) as both,
        serving(lab, **both),
        filtered(lab, "host1", "iif eth1 meta l4proto udp drop"),
    ):
        _, found = report(lab, **both)
    assert found["data paths eth0>eth0"]["state"] in FINE, found
    paths = found["data paths eth1>eth1"]
    assert paths["state"] == "BROKEN", paths
    near, far = "eth1 (10.201.0.1) of this host", "eth1 (10.201.0.2) of the other host"
    assert f"what {near} sends does not arrive at {far}" in paths["found"], paths
    assert f"pass from {near} to {far}" in paths["remedy"]
    assert found["rate eth1>eth1"]["state"] == "not judged"


def test_two_hosts__a_nic_without_a_partner_and_other_paths_are_limited(lab: Lab) -> None:
    with second_nic(lab):
        prefix = lab.address("host1").rsplit(".", 1)[0].rsplit(".", 1)[0]
        near = {"WEFT_INTERFACES": "eth0"}
        far = {"WEFT_INTERFACES": f"{prefix}.0.0/16,10.201.0.0/24", "WEFT_PATHS": "8"}
        with serving(lab, **far):
            _, found = report(lab, **near)
    devices = found["devices"]
    assert devices["state"] == "limited", devices
    assert "eth0 here, eth0, eth1 there; a device without a partner" in devices["found"]
    assert "4 paths here, 8 there: connections use 4" in devices["found"]
    assert "WEFT_INTERFACES" in devices["remedy"]


def test_two_hosts__a_nic_that_is_down_is_named(lab: Lab) -> None:
    with second_nic(lab):
        lab.run("host1", ["ip", "link", "set", "eth1", "down"], timeout=PATIENCE_S)
        with serving(lab, WEFT_INTERFACES=""):
            _, found = report(lab)
    assert "eth0 here, eth0 there; eth1 there is down" in found["devices"]["found"], found


# Prints the ports that its paths have, by engine and path.
PORTS = """
import sys
from transport import Endpoint
from transport.host.two_hosts.sockets import path_ports
with Endpoint() as endpoint, endpoint.connect(sys.argv[1], 7117, timeout_s=240) as connection:
    print(sorted(path_ports(endpoint.devices[0].address, 3).items()))
"""


def test_two_hosts__the_ports_of_paths_are_those_of_their_setting(lab: Lab) -> None:
    """With a single number, engine e has path i at the port WEFT_PORT_BASE + e * paths + i."""
    with serving(lab):
        client = start(
            lab, "host0", PORTS, lab.address("host1"), WEFT_ENGINES="3", WEFT_PORT_BASE="20000"
        )
        said, errors = client.communicate(timeout=PATIENCE_S)
    expected = [
        ((engine, path), 20_000 + 4 * engine + path) for engine in (0, 1, 2) for path in range(4)
    ]
    assert said.strip() == str(expected), errors


def test_two_hosts__dropped_ports_of_a_range_are_named(lab: Lab) -> None:
    """The range has a port for each path and one for probes; which path has which differs."""
    settings = {"WEFT_PORT_BASE": "20000-20008", "WEFT_PATHS": "8"}
    dropped_ports = {20_001, 20_004, 20_005}
    rule = f"udp dport {{ {', '.join(map(str, sorted(dropped_ports)))} }} drop"
    with serving(lab, **settings), filtered(lab, "host1", rule):
        _, found = report(lab, **settings)
    paths = found["data paths"]
    assert paths["state"] == "BROKEN", paths
    (there,) = re.findall(r"there .*\(UDP ports ([0-9, -]+)\)", paths["found"])
    ranges = [one.partition("-") for one in there.split(", ")]
    named = {port for a, _, b in ranges for port in range(int(a), int(b or a) + 1)}
    assert named <= dropped_ports, paths
    assert len(named) >= len(dropped_ports) - 1  # a dropped one may be the port for probes
    assert "let UDP ports 20000-20008 (WEFT_PORT_BASE) pass" in paths["remedy"]


@pytest.mark.long
def test_two_hosts__a_silent_path_is_named(lab: Lab) -> None:
    ports = {"WEFT_PORT_BASE": "20000"}
    with serving(lab, **ports), dropped(lab, "ipproto", "udp", "dport", "20002-20002"):
        status, found = report(lab, **ports)
    assert status == 1
    assert found["data paths"]["state"] == "BROKEN"
    assert "3 of 4 answer; silent: paths 2 (UDP ports 20002)" in found["data paths"]["found"]
    assert "let UDP ports 20000-20003 (WEFT_PORT_BASE=20000)" in found["data paths"]["remedy"]
    assert states(found, "MTU", "round trip") <= FINE


def test_two_hosts__a_blocked_port_of_the_testing_host_is_named(lab: Lab) -> None:
    ports = {"WEFT_CONTROL_PORT": f"{PORT}-{PORT + 20}"}
    closed = ("ipproto", "tcp", "dport", f"{PORT + 20}-{PORT + 20}")
    with serving(lab, **ports), dropped(lab, *closed):
        status, found = report(lab, **ports)
    assert (status, found["control port"]["state"]) == (1, "BROKEN")
    assert f"back, to TCP port {PORT + 20} of this host: " in found["control port"]["found"]
    assert f"let TCP ports {PORT}-{PORT + 20} (WEFT" in found["control port"]["remedy"]
    assert states(found, "data paths", "MTU") <= FINE


def test_two_hosts__a_blocked_way_back_names_the_range_of_free_ports(lab: Lab) -> None:
    with serving(lab), filtered(lab, "host0", "tcp flags & (syn | ack) == syn drop"):
        _, found = report(lab)
    ports = "-".join(lab.call("host0", Path(FREE_PORTS).read_text).split())
    control = found["control port"]
    assert (control["state"], f"let TCP ports {ports} (net.ipv4" in control["remedy"]) == (
        "BROKEN",
        True,
    ), control
    assert "WEFT_CONTROL_PORT" in control["remedy"]


@contextmanager
def uplink(lab: Lab, **defect: Any) -> Iterator[None]:
    """The link between the first leaf and the spine has a defect."""
    lab.set("leaf0-spine0", **defect)
    try:
        yield
    finally:
        lab.set("leaf0-spine0", **dict.fromkeys(defect, 0))


def test_two_hosts__dropped_long_packets_are_named_and_the_server_goes_on(lab: Lab) -> None:
    """GSO makes one long packet of several messages, so a firewall of a host drops these, too."""
    rule = "meta l4proto udp meta length > 1300 drop"
    with serving(lab) as server:
        with filtered(lab, "host0", rule), filtered(lab, "host1", rule):
            status, found = report(lab)
        assert (status, found["MTU"]["state"]) == (1, "BROKEN"), found
        assert "to the peer 1300 of the interface's 1500 bytes" in found["MTU"]["found"]
        assert "from the peer 1300 of the interface's 1500" in found["MTU"]["found"]
        assert "filters of long packets" in found["MTU"]["remedy"]
        assert found["data paths"]["state"] in FINE, found
        assert "other host" not in found
        assert server.stdout is not None
        assert "tested; its report:" in server.stdout.readline()
        _, found = report(lab)
        assert states(found, "data paths", "MTU") <= FINE, found


@pytest.mark.long
def test_two_hosts__loss_is_measured(lab: Lab) -> None:
    with uplink(lab, loss=0.15), serving(lab):
        for _ in range(4):
            status, found = report(lab)
            if found["loss"]["state"] != "not judged":
                break
            # Losses may end the test itself. It says so, and is repeated, as its remedy says.
            assert "repeat the test" in found["other host"]["remedy"], found
    assert (status, found["loss"]["state"]) == (1, "BROKEN"), found
    assert "% of" in found["loss"]["found"]


def test_two_hosts__an_mtu_black_hole_is_measured(lab: Lab) -> None:
    with uplink(lab, up_bytes_max=1_400), serving(lab):
        status, found = report(lab)
    assert (status, found["MTU"]["state"]) == (1, "BROKEN"), found
    assert "to the peer 1400 of the interface's 1500 bytes" in found["MTU"]["found"]
    assert "no router reports it" in found["MTU"]["found"]


def test_two_hosts__another_secret_is_said(lab: Lab, tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("a", "b")]
    for name, secret in zip(files, ("s" * 32, "t" * 32), strict=True):
        Path(name).write_text(secret)
        Path(name).chmod(0o600)
    here, there = ({"WEFT_SECRET_FILE": name} for name in files)
    with serving(lab, **there):
        for settings, text in ((here, "the secrets"), ({}, "only one of the two ends has")):
            status, found = report(lab, **settings)
            assert (status, found["secret"]["state"]) == (1, "BROKEN"), found
            assert text in found["secret"]["found"]
            assert found["secret"]["found"].count(f"port {PORT}") == 1, found
            assert states(found, "data paths", "MTU", "rate") == {"not judged"}


def test_two_hosts__nothing_listens(lab: Lab) -> None:
    status, found = report(lab)
    assert (status, found["control port"]["state"]) == (1, "BROKEN")
    assert "weft doctor --serve" in found["control port"]["remedy"]
    assert states(found, "versions", "secret", "data paths") == {"not judged"}


def await_phase(client: subprocess.Popen[str]) -> None:
    """Waits until a client has connected, and says what it does next."""
    assert client.stderr is not None
    assert any("connecting to port" not in one for one in client.stderr)


def await_connection(lab: Lab) -> None:
    """Waits until a client has connected to the server."""
    table = Path("/proc/thread-self/net/tcp")
    want = f":{PORT:04X} "
    until(
        lambda: any(
            want in line and line.split()[3] == "01"  # established
            for line in lab.call("host1", table.read_text).splitlines()[1:]
        ),
        "the client has not connected",
    )


def test_two_hosts__ctrl_c_ends_the_testing_end(lab: Lab) -> None:
    with dropped(lab, "ipproto", "udp"), serving(lab) as server:  # the test waits for data paths
        client = start(lab, "host0", SCRIPT, "doctor", "--peer", lab.address("host1"))
        assert server.stdout is not None
        await_connection(lab)
        client.send_signal(signal.SIGINT)
        _, errors = client.communicate(timeout=PATIENCE_S)
        assert (client.returncode, errors.splitlines()[-1]) == (130, "weft: interrupted")
        assert "10." in server.stdout.readline()
        assert ended(server)[0] == 130
