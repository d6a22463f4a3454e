"""Tests what both ends of `weft doctor --serve` and `--peer` say if a test goes another way."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.host.support import FINE, PORT, SCRIPT, ended, peer, report, serving, start, states
from tests.waiting import PATIENCE_S
from transport.lab import Lab

pytestmark = pytest.mark.namespaces

MEASURES = "loss, reordering"


def await_measuring(client: subprocess.Popen[str]) -> None:
    """Waits until a client measures."""
    assert client.stderr is not None
    assert any(MEASURES in line for line in client.stderr)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_two_hosts__a_tester_that_is_killed_is_named_and_the_next_one_is_served(lab: Lab) -> None:
    with serving(lab) as server:
        client = peer(lab)
        await_measuring(client)
        client.kill()
        client.communicate(timeout=PATIENCE_S)
        assert "the other host ended the test" in line_of(server)
        _, found = report(lab)
        assert states(found, "control port", "data paths") <= FINE, found
        assert "tested; its report:" in line_of(server)


def test_two_hosts__ctrl_c_of_the_server_is_named_at_both_ends(lab: Lab) -> None:
    with serving(lab) as server:
        client = peer(lab)
        await_measuring(client)
        server.send_signal(signal.SIGINT)
        told, errors = server.communicate(timeout=PATIENCE_S)
        assert (server.returncode, errors.splitlines()[-1]) == (130, "weft: interrupted")
        assert f" {lab.address('host0')} (" in told, told
        assert "): ended while it was being tested" in told
        said, _ = client.communicate(timeout=PATIENCE_S)
    found = {one["subject"]: one for one in json.loads(said)}
    assert client.returncode == 1
    assert "weft doctor --serve ended" in found["other host"]["found"], found
    assert "start it again" in found["other host"]["remedy"]
    broken = [name for name, one in found.items() if one["state"] == "BROKEN"]
    assert broken == ["other host"], found
    assert states(found, "data paths", "loss", "MTU", "rate") == {"not judged"}


def test_two_hosts__sigterm_of_the_server_says_which_test_it_ended(lab: Lab) -> None:
    with serving(lab) as server:
        client = peer(lab)
        await_measuring(client)
        server.send_signal(signal.SIGTERM)
        told, _ = server.communicate(timeout=PATIENCE_S)
        assert (server.returncode, "ended while it was being tested" in told) == (0, True), told
        client.communicate(timeout=PATIENCE_S)


def test_two_hosts__a_host_that_comes_in_the_middle_waits_and_is_served(lab: Lab) -> None:
    """Both come from one address, so that only their order tells their connections apart."""
    with serving(lab) as server:
        clients = [peer(lab)]
        await_measuring(clients[0])
        clients.append(peer(lab))
        assert clients[1].stderr is not None
        assert any("waiting for the other host, which may" in one for one in clients[1].stderr)
        for client in clients:
            said, _ = client.communicate(timeout=PATIENCE_S)
            found = {one["subject"]: one for one in json.loads(said)}
            assert states(found, "control port", "data paths", "MTU") <= FINE, found
        assert ended(server, reports=2)[1].count("tested; its report:") == 2


def test_two_hosts__a_secret_at_one_host_alone_is_said_at_both(lab: Lab, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    secret.chmod(0o600)
    with serving(lab, WEFT_SECRET_FILE=str(secret)) as server:
        _, found = report(lab)
        assert "only one of the two ends has" in found["secret"]["found"], found
        assert "WEFT_SECRET_FILE" in found["secret"]["remedy"]
        _, found = report(lab, WEFT_SECRET_FILE=str(secret))
        assert states(found, "secret", "data paths") <= FINE, found
        _, said, errors = ended(server, reports=1)
    why = f"{lab.address('host0')} port \\d+: it does not have WEFT_SECRET_FILE set"
    assert re.search(why, errors), errors
    assert "tested; its report:" in said


# A fake of a weft doctor of another version, whose first message has other fields.
OTHER_VERSION = """
import socket, sys, time
from transport import Endpoint
from transport.host.two_hosts import channel
with Endpoint() as endpoint, endpoint.connect(sys.argv[1], 7117, timeout_s=240) as connection:
    with channel.connect(sys.argv[1], 7117) as talk:
        talk._socket.sendall(b'{"Hello": {"version": "9.9.9", "more": 1}}\\n')
        talk._socket.settimeout(240)
        print(talk._socket.recv(9_000)[:9], flush=True)
"""


def test_two_hosts__another_version_of_the_tester_is_said_at_both_ends(lab: Lab) -> None:
    with serving(lab) as server:
        other = start(lab, "host0", OTHER_VERSION, lab.address("host1"))
        assert "Hello of weft 9.9.9: expected the fields" in (said := line_of(server)), said
        assert "this host has weft " in said
        assert "install the same version of weft on both hosts" in said
        told, errors = other.communicate(timeout=PATIENCE_S)
        assert told == "b'{\"Hello\":'\n", errors  # so the other end sees this one's version
        _, found = report(lab)
        assert states(found, "control port", "data paths") <= FINE, found


def test_two_hosts__a_server_to_which_nobody_comes_says_why(lab: Lab) -> None:
    script = f"from transport.cli import doctor_peer; doctor_peer.IDLE_S = 0.0; {SCRIPT}"
    with serving(lab, script) as server:
        assert f"a firewall drops TCP port {PORT}" in line_of(server)
        report(lab)
        assert "tested; its report:" in line_of(server)
