"""Runs `weft doctor --serve` and `--peer` on two hosts of a lab."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.environment import clean_environment
from tests.lab.support import ROOT
from tests.waiting import PATIENCE_S, until
from transport.lab import Lab

PORT = 7117
SCRIPT = "import sys; from transport.cli import main; sys.argv[0] = 'weft'; main()"
FINE = {"ok", "limited", "absent"}


def start(lab: Lab, host: str, *words: str, **variables: str) -> subprocess.Popen[str]:
    clean = clean_environment()
    usual = {"WEFT_INTERFACES": "eth0", "WEFT_PATHS": "4", "WEFT_ENGINES": "1"}
    usual["COLUMNS"] = "5000"  # a line of a report is not wrapped
    found: subprocess.Popen[str] = lab.popen(
        host,
        [sys.executable, "-c", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=clean | usual | variables,
    )
    return found


@contextmanager
def serving(lab: Lab, script: str = SCRIPT, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """`weft doctor --serve` on host1, once it listens. script: the command, in Python."""
    server = start(lab, "host1", script, "doctor", "--serve", **variables)
    try:
        assert server.stdout is not None
        address = lab.address("host1")
        said = server.stdout.readline()
        assert f"port {PORT} of all addresses; devices: {address} (eth0)" in said
        assert f"weft doctor --peer {address}:{PORT}" in server.stdout.readline()
        yield server
    finally:
        server.kill()
        server.communicate(timeout=PATIENCE_S)


def ended(
    server: subprocess.Popen[str], number: int = signal.SIGINT, *, reports: int = 0
) -> tuple[int, str, str]:
    """The exit status of the server after a signal, what it still printed, and its errors.

    reports: how many it prints before the signal; the other host may have its report earlier.
    """
    assert server.stdout is not None
    assert server.stderr is not None
    said = ""
    giving_up = threading.Timer(PATIENCE_S, server.kill)
    giving_up.start()
    try:
        while said.count("verdict: ") < reports:
            line = server.stdout.readline()
            assert line, said
            said += line
        server.send_signal(number)
        said, errors = said + server.stdout.read(), server.stderr.read()
        return server.wait(PATIENCE_S), said, errors
    finally:
        giving_up.cancel()


def peer(lab: Lab, *more: str, **variables: str) -> subprocess.Popen[str]:
    """`weft doctor --peer` on host0. more: options."""
    words = ("doctor", "--peer", lab.address("host1"), *more, "--json", "-")
    return start(lab, "host0", SCRIPT, *words, **variables)


@contextmanager
def filtered(lab: Lab, host: str, *rules: str) -> Iterator[None]:
    """A firewall of the host has these rules for packets that arrive."""
    text = (
        "flush ruleset\ntable inet doctor {\nchain arrives {\ntype filter hook input priority 0;\n"
    )
    text += "".join(f"{one}\n" for one in rules) + "}\n}\n"

    def call(ruleset: str) -> int:
        try:
            done = lab.run(
                host,
                ["nft", "-f", "-"],
                input=ruleset.encode(),
                capture_output=True,
                timeout=PATIENCE_S,
            )
        except FileNotFoundError:
            return 1
        return int(done.returncode)

    if call(text):
        pytest.skip("nft cannot set up a firewall here")
    try:
        yield
    finally:
        call("flush ruleset\n")


@contextmanager
def second_nic(lab: Lab) -> Iterator[dict[str, str]]:
    """A second link between the two hosts; yields the settings with which weft uses both."""
    far = lab.plan.namespace(lab.plan.node("host1"))
    words = ["ip", "link", "add", "eth1", "type", "veth", "peer", "name", "eth1", "netns", far]
    assert lab.run("host0", words, timeout=PATIENCE_S).returncode == 0
    for number, host in enumerate(("host0", "host1"), 1):
        for rest in (
            ["address", "add", f"10.201.0.{number}/24", "dev", "eth1"],
            ["link", "set", "eth1", "up"],
        ):
            assert lab.run(host, ["ip", *rest], timeout=PATIENCE_S).returncode == 0

    def is_up(host: str) -> bool:
        shown = ["ip", "-oneline", "link", "show", "eth1"]
        done = lab.run(host, shown, capture_output=True, text=True, timeout=PATIENCE_S)
        return "state UP" in done.stdout

    try:
        until(lambda: is_up("host0") and is_up("host1"), "the second link has no carrier")
        yield {"WEFT_INTERFACES": "eth0,eth1"}
    finally:
        lab.run("host0", ["ip", "link", "del", "eth1"], timeout=PATIENCE_S)


def report(lab: Lab, **variables: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit status of `weft doctor --peer` on host0, and its findings by subject."""
    return report_and_errors(lab, **variables)[:2]


def report_and_errors(lab: Lab, **variables: str) -> tuple[int, dict[str, dict[str, Any]], str]:
    """As report(), and what it said on stderr, which is no terminal."""
    client = peer(lab, **variables)
    said, errors = client.communicate(timeout=PATIENCE_S)
    found = found_by(said, errors)
    broken = any(one["state"] == "BROKEN" for one in found.values())
    assert client.returncode == int(broken)
    assert all(one["remedy"] for one in found.values() if one["state"] in ("BROKEN", "limited"))
    return client.returncode, found, errors


def found_by(said: str, errors: str) -> dict[str, dict[str, Any]]:
    """The findings by subject, as printed with --json. errors: what was said on stderr."""
    assert said, errors
    return {one["subject"]: one for one in json.loads(said)}


def states(found: dict[str, dict[str, Any]], *subjects: str) -> set[str]:
    return {found[one]["state"] for one in subjects}


def names_range(text: str, how: str, first: int, last: int) -> bool:
    """Whether ports of a range are named as blocked. Some of them may be in use by the test itself
    and not tried, so that a part of the range is named."""
    found = re.findall(rf"(\d+)(?:-(\d+))? blocked \({re.escape(how)}", text)
    return any(first <= int(low) <= int(high or low) <= last for low, high in found)
