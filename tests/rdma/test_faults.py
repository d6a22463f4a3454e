"""Tests transfers during which queue pairs, ports, devices or the peer fail.

Runs in the guest only (tests/rdma/README.md).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

if os.environ.get("RDMA_GUEST") != "1":
    pytest.skip("only in the guest of `python -m tests.rdma.guest`", allow_module_level=True)

from tests.environment import clean_environment
from tests.rdma.conftest import restore_links
from tests.rdma.pair import PATIENCE_S, paired
from transport import Endpoint
from transport.errors import TimedOutError, WeftError

ROOT = Path(__file__).resolve().parents[2]
LARGE_BYTES = 4 << 20
TIMEOUT = {"silence": "3s"}
# Time limit of an error: the allowed silence plus the delays of an emulated processor.


def run(*words: str) -> None:
    subprocess.run(words, check=True)


@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_faults__time_to_reestablish_a_queue_pair(mode: str) -> None:
    # One of 500 bursts finds its queue pair in error; a round of messages has about 100 bursts.
    with paired(mode, fault={"qp_error": 0.002}, paths=16) as pair:
        for seed in range(1, 60):
            assert pair.begin(60, 256 << 10, seed).finish() == 0
            found = pair.there.counters()
            if found.paths_broken > 0 and found.paths_reestablished >= found.paths_broken:
                break
        else:
            pytest.fail(
                f"of {found.paths_broken} broken paths only {found.paths_reestablished} work again"
            )
    longest_ms = found.reestablish_ns_max / 1e6
    print(f"{mode}: {found.paths_broken} broken, re-established within {longest_ms:.1f} ms")
    assert found.reestablish_ns_max > 0


@pytest.fixture
def links() -> Iterator[None]:
    """Restores links after a test that takes them down."""
    yield
    restore_links()


@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_faults__a_port_that_comes_back_goes_on(links: None, mode: str) -> None:
    with paired(mode) as pair:
        under_way = pair.begin(100, LARGE_BYTES)
        under_way.await_some()
        run("ip", "link", "set", "va", "down")
        time.sleep(1)  # time for which the port is down
        restore_links()
        assert under_way.finish() == 0


@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_faults__a_port_that_stays_down_ends_the_connection(links: None, mode: str) -> None:
    with paired(mode, peer_timeout=TIMEOUT) as pair:
        under_way = pair.begin(100, LARGE_BYTES)
        under_way.await_some()
        run("ip", "link", "set", "va", "down")
        begun_s = time.monotonic()
        for handle in (under_way.sends[-1], under_way.receives[-1]):
            with pytest.raises(WeftError) as caught:
                handle.wait(timeout_s=PATIENCE_S)
            assert not isinstance(caught.value, TimedOutError)
            print(f"{mode}: after {time.monotonic() - begun_s:.1f} s: {caught.value}")


@pytest.fixture
def second_ports() -> Iterator[None]:
    """A second pair of connected devices, rxec and rxed."""
    lines = [
        "link add vc mtu 4200 address 02:00:00:00:00:03 type veth"
        " peer name vd mtu 4200 address 02:00:00:00:00:04",
        *("address add 198.51.100.1/24 dev vc", "address add 198.51.100.2/24 dev vd"),
        *("link set vc up", "link set vd up"),
        "neigh replace 198.51.100.2 lladdr 02:00:00:00:00:04 dev vc nud permanent",
        "neigh replace 198.51.100.1 lladdr 02:00:00:00:00:03 dev vd nud permanent",
    ]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
    for device, link in (("rxec", "vc"), ("rxed", "vd")):
        run("rdma", "link", "add", device, "type", "rxe", "netdev", link)
    yield
    for device in ("rxec", "rxed"):
        # The command cannot be killed while a process has the device open; then wait() fails the
        # test.
        subprocess.Popen(["rdma", "link", "delete", device], stderr=subprocess.DEVNULL).wait(30)
    run("ip", "link", "delete", "vc")


@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_faults__other_ports_carry_on(second_ports: None, mode: str) -> None:
    with paired(mode, "rxea+rxec", "rxeb+rxed") as pair:
        under_way = pair.begin(100, LARGE_BYTES)
        under_way.await_some()
        run("ip", "link", "set", "vc", "down")
        begun_s = time.monotonic()
        assert under_way.finish() == 0
        print(f"{mode}: the rest in {time.monotonic() - begun_s:.1f} s")
        paths = pair.sending.counters().paths
        assert all(path.bytes_sent > 0 for path in paths[::2])


def carry_while_removed(device: str) -> subprocess.Popen[bytes]:
    """Starts to remove the device during a transfer; returns the command, which may still wait."""
    with paired("uc", "rxec", "rxed") as pair:
        under_way = pair.begin(30, 1 << 20)
        under_way.await_some()
        removal = subprocess.Popen(["rdma", "link", "delete", device])
        assert under_way.finish() == 0
        # The kernel waits until no process has the Soft-RoCE device open.
        assert removal.poll() is None
    return removal


def test_faults__a_device_goes_when_its_last_user_does(second_ports: None) -> None:
    removal = carry_while_removed("rxec")
    assert removal.wait(30) == 0
    assert not Path("/sys/class/infiniband/rxec").exists()


@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_faults__a_peer_that_is_killed(mode: str) -> None:
    knobs = {"datapath": "verbs", "rdma": f"mode={mode}", "engines": "1"}
    clean = clean_environment()
    clean |= {f"WEFT_{name.upper()}": value for name, value in knobs.items()}
    with (
        Endpoint(rdma_devices="rxea", peer_timeout=TIMEOUT, **knobs) as endpoint,
        endpoint.listen(open=True) as listener,
    ):
        words = ["send", str(listener.port), "1000", str(LARGE_BYTES), "1"]
        with subprocess.Popen(
            [sys.executable, "-m", "tests.rdma.transfer", *words],
            cwd=ROOT,
            env=clean | {"WEFT_RDMA_DEVICES": "rxeb"},
        ) as peer:
            try:
                with listener.accept(timeout_s=PATIENCE_S) as connection:
                    memory = [bytearray(LARGE_BYTES) for _ in range(20)]
                    receives = [connection.irecv_into(buffer) for buffer in memory]
                    receives[5].wait(timeout_s=PATIENCE_S)
                    peer.kill()
                    begun_s = time.monotonic()
                    with pytest.raises(WeftError) as caught:
                        receives[-1].wait(timeout_s=PATIENCE_S)
            finally:
                peer.kill()
        print(f"{mode}: after {time.monotonic() - begun_s:.2f} s: {caught.value}")
        assert not isinstance(caught.value, TimedOutError)
