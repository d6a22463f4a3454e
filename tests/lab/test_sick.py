"""Tests that messages arrive intact over bad paths, and if a device is removed and restored.

`python -m bench wan` measures the speed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from bench.lib.wire import ADDRESSES, DEVICE, Wire
from bench.wan import CASES, HEALTHY
from tests.environment import clean_environment
from tests.lab.support import ROOT, reason_to_skip, unique
from tests.sample import sampled
from transport.lab import namespace

pytestmark = pytest.mark.namespaces

MESSAGES, MESSAGE_BYTES = 24, 128 << 10
HANG_S = 150
KNOBS = {"WEFT_INTERFACES": DEVICE, "WEFT_ENGINES": "1", "WEFT_PATHS": "32"}

RECEIVER = """
import hashlib, sys
from transport import Endpoint
with Endpoint() as endpoint, endpoint.listen(port=7000, open=True) as listener:
    print("ready", flush=True)
    with listener.accept(timeout_s=240) as connection:
        for _ in range(int(sys.argv[1])):
            print(hashlib.sha256(connection.recv(int(sys.argv[2]))).hexdigest(), flush=True)
        connection.send(b"all")
"""
SENDER = """
import sys
from transport import Endpoint
with Endpoint() as endpoint, endpoint.connect(sys.argv[3], 7000, timeout_s=240) as connection:
    for index in range(int(sys.argv[1])):
        connection.send(bytes([index]) * int(sys.argv[2]))
        print(index, flush=True)
        if index == 3 and sys.stdin.readline() == "":
            break
    assert connection.recv(10) == b"all"
"""
SUMS = [hashlib.sha256(bytes([i]) * MESSAGE_BYTES).hexdigest() for i in range(MESSAGES)]


@pytest.fixture(autouse=True)
def rights() -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    if not os.path.exists("/dev/net/tun"):
        pytest.skip("this host has no TUN devices: /dev/net/tun")
    if shutil.which("ip") is None:
        pytest.skip("needs ip: apt-get install iproute2")


@contextmanager
def transfer(wire: Wire) -> Iterator[subprocess.Popen[str]]:
    """Yields the sender after its fourth message; then checks that each message arrived once."""
    clean = clean_environment() | KNOBS
    words = [str(MESSAGES), str(MESSAGE_BYTES), ADDRESSES[1]]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    given = {**pipes, "cwd": ROOT, "env": clean}
    there = wire.popen(1, [sys.executable, "-c", RECEIVER, *words], **given)
    assert there.stdout is not None
    assert there.stdout.readline().strip() == "ready"
    here = wire.popen(0, [sys.executable, "-c", SENDER, *words], **given)
    assert here.stdout is not None
    for index in range(4):
        assert here.stdout.readline().strip() == str(index)
    yield here
    here.communicate("go on\n", timeout=HANG_S)
    said, _ = there.communicate(timeout=HANG_S)
    assert (here.returncode, there.returncode) == (0, 0)
    assert said.split() == SUMS


# The cases that run unless LAB_SICK=all is set, which runs all of bench.wan's cases.
CHOSEN = [
    *("1 in 50 passes, both ways", "1 in 50 passes, forward only"),
    "1/100 of the rate, both ways",
    *("flaps every 0.3 s", "bursts of losses", "20 % loss", "25 % overtaken", "jitter of 50 ms"),
]
SICK = list(CASES) if os.environ.get("LAB_SICK") == "all" else CHOSEN


@pytest.mark.parametrize("name", sampled(SICK, SICK, ["1 in 50 passes, both ways", "20 % loss"]))
def test_sick__every_message_arrives(name: str) -> None:
    case = CASES[name]
    wire = Wire(unique("sick"), case.there, back=case.back, mtu_bytes=9_000)
    with wire, transfer(wire):
        pass


def ip(wire: Wire, *words: str) -> None:
    subprocess.run(["ip", "-n", wire.spaces[0], *words], check=True)


CHANGES = ("down", "address", "device")


@pytest.mark.parametrize("what", sampled(CHANGES, CHANGES, ["device"]))
def test_sick__a_device_goes_and_comes_back(what: str) -> None:
    """A transfer survives two seconds without the interface's address, link or device."""
    address = f"{ADDRESSES[0]}/24"
    with Wire(unique("gone"), [HEALTHY] * 4, mtu_bytes=9_000) as wire, transfer(wire) as sender:
        assert sender.stdin is not None
        if what == "down":
            ip(wire, "link", "set", DEVICE, "down")
        elif what == "address":
            ip(wire, "addr", "del", address, "dev", DEVICE)
        else:
            wire.replug(0)
        sender.stdin.write("go on\n")
        sender.stdin.flush()
        time.sleep(2)  # time for which the sender has no interface
        if what == "down":
            ip(wire, "link", "set", DEVICE, "up")
        elif what == "address":
            ip(wire, "addr", "add", address, "dev", DEVICE)
        else:
            wire.replug(0)


def test_sick__paths_fall_ill_one_after_the_other() -> None:
    with Wire(unique("ill"), [HEALTHY] * 4, mtu_bytes=9_000) as wire, transfer(wire) as sender:
        assert sender.stdin is not None
        sender.stdin.write("go on\n")
        sender.stdin.flush()
        for index in range(4):
            wire.change(index, loss=1.0)
            time.sleep(0.7)  # time for which the path loses everything
            wire.change(index, loss=0.0)


def test_wire__leaves_nothing() -> None:
    name = unique("left")
    with Wire(name, [replace(HEALTHY, jitter_ns=1)]) as wire:
        assert all(namespace.exists(space) for space in wire.spaces)
    assert not any(namespace.exists(space) for space in wire.spaces)
