"""Tests that an obstacle to queue pairs is reported in one line with its remedy.

Runs in the guest only (tests/rdma/README.md).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

if os.environ.get("RDMA_GUEST") != "1":
    pytest.skip("only in the guest of `python -m tests.rdma.guest`", allow_module_level=True)

from tests.environment import clean_environment
from tests.rdma.conftest import restore_links
from tests.rdma.transfer import exchange

ROOT = Path(__file__).resolve().parents[2]
# Runs a program as root without capabilities, which cannot open devices of other users.
NO_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
NOBODY = 65_534
PATIENCE_S = 120

# The program sends a message to itself, so that late errors occur, and prints the datapath.
PROGRAM = """
from transport import Endpoint
with Endpoint() as here, Endpoint() as there:
    with here.listen() as listener, there.connect(listener.handle) as sending:
        with listener.accept(timeout_s=60) as receiving:
            handle = sending.isend(b"x" * 100_000)
            assert receiving.recv(100_000) == b"x" * 100_000
            handle.wait(timeout_s=60)
    print(here.summary().split(",")[0])
"""


def attempt(
    datapath: str, prefix: Sequence[str] = (), **knobs: str
) -> subprocess.CompletedProcess[str]:
    clean = clean_environment()
    clean |= {"WEFT_DATAPATH": datapath, "WEFT_RDMA_DEVICES": "rxea", "WEFT_ENGINES": "1"}
    # Sockets must use lo, because packets from the interface va to its own address do not arrive.
    clean |= {"WEFT_INTERFACES": "lo"}
    return subprocess.run(
        [*prefix, sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=clean | knobs,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def refused(prefix: Sequence[str] = (), **knobs: str) -> str:
    """Runs the program with WEFT_DATAPATH=verbs; returns its error line."""
    done = attempt("verbs", prefix, **knobs)
    assert done.returncode != 0, done.stdout
    line = done.stderr.strip().splitlines()[-1]
    print(line)
    return line


def fallen_back(prefix: Sequence[str] = (), **knobs: str) -> str:
    """Runs the program with WEFT_DATAPATH=auto; returns the log line about the use of sockets."""
    done = attempt("auto", prefix, **knobs)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "udp"
    lines = [line for line in done.stderr.splitlines() if "using UDP sockets instead" in line]
    assert lines, done.stderr
    print(lines[0])
    return lines[0]


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"WEFT_RDMA_DEVICES": "mlx5_9"}, ["mlx5_9", "there is rxea:1, rxeb:1"]),
        ({"WEFT_RDMA_DEVICES": "rxea:1@77"}, ["rxea:1 has no GID 77"]),
        ({"WEFT_RDMA_DEVICES": "rxea:x"}, ["device:port@gid"]),
        ({"WEFT_RDMA_DEVICES": "rxea", "WEFT_FAMILY": "ipv6"}, ["no address"]),
    ],
)
def test_refusals__a_setting(knobs: dict[str, str], words: list[str]) -> None:
    said = refused(**knobs)
    for word in words:
        assert word in said


# Locked-memory limits: the first is too low for any use, the second for default settings.
@pytest.mark.parametrize("limit_bytes", [64 << 10, 4 << 20])
def test_refusals__locked_memory(limit_bytes: int) -> None:
    prefix = ("prlimit", f"--memlock={limit_bytes}:{limit_bytes}", *NO_RIGHTS)
    for said in (refused(prefix), fallen_back(prefix)):
        assert f"limit of locked memory is {limit_bytes >> 10} KiB" in said
        assert "ulimit -l" in said


@pytest.fixture
def closed_devices() -> Iterator[None]:
    """Makes another user the owner of the RDMA devices during the test."""
    devices = list(Path("/dev/infiniband").glob("uverbs*"))
    before = [(device, device.stat()) for device in devices]
    for device in devices:
        os.chown(device, NOBODY, NOBODY)
        device.chmod(0o600)
    yield
    for device, status in before:
        os.chown(device, status.st_uid, status.st_gid)
        device.chmod(status.st_mode & 0o777)


def test_refusals__permission(closed_devices: None) -> None:
    for said in (refused(NO_RIGHTS), fallen_back(NO_RIGHTS)):
        assert "rxea cannot be opened: Permission denied" in said
        assert "give this user /dev/infiniband" in said


@pytest.fixture
def links_down() -> Iterator[None]:
    subprocess.run(["ip", "link", "set", "va", "down"], check=True)
    yield
    restore_links()


@pytest.mark.parametrize("devices", ["rxea", ""])
def test_refusals__port_down(links_down: None, devices: str) -> None:
    for said in (refused(WEFT_RDMA_DEVICES=devices), fallen_back(WEFT_RDMA_DEVICES=devices)):
        assert "rxea:1 (not active)" in said
        assert "ip link set" in said


@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_refusals__ends_agree_on_the_smaller_mtu(mode: str) -> None:
    small = {"WEFT_RDMA": "mtu=1024"}
    for receiver, sender in ((small, {}), ({}, small)):
        found = exchange(mode, 60, 128 << 10, receiver=receiver, sender=sender)
        assert found.wrong == 0
        payload = found.sender["connection"]["bytes_sent"] / found.sent
        assert payload < 1024


def test_refusals__doctor_names_devices_gids_and_modes() -> None:
    words = [sys.executable, "-c", "from transport.cli import main; main()", "doctor"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    print(done.stdout)
    for word in ("rxea:1", "rxeb:1", "192.0.2.1 RoCE v2", "192.0.2.2 RoCE v2", "UC RC UD"):
        assert word in done.stdout
