"""Tests transfers while long packets are dropped: on one path or all, in one direction or both."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.environment import clean_environment
from tests.lab.support import ROOT, reason_to_skip, unique
from tests.sample import sampled
from tests.waiting import PATIENCE_S
from transport.lab import Lab, LabModel

pytestmark = pytest.mark.namespaces

MESSAGE_BYTES = 1 << 20
MESSAGES = 16
SHORT = 1_500  # length of the longest IP packet that passes: a datagram of 1,472 bytes
# Each line on the client's stdin starts a round: 16 messages to the server, one message back.
SERVER = f"""
from transport import Endpoint
with Endpoint() as endpoint, endpoint.listen(port=7000, open=True) as listener:
    print("ready", flush=True)
    with listener.accept(timeout_s=240) as connection:
        while True:
            for number in range({MESSAGES}):
                data = connection.recv({MESSAGE_BYTES})
                if len(data) == 1:
                    raise SystemExit
                assert data == bytes([number]) * {MESSAGE_BYTES}
            connection.send(b"x" * {MESSAGE_BYTES})
"""
CLIENT = f"""
import sys
from transport import Endpoint
with Endpoint() as endpoint, endpoint.connect(sys.argv[1], 7000, timeout_s=240) as connection:
    for line in sys.stdin:
        handles = [
            connection.isend(bytes([n]) * {MESSAGE_BYTES}) for n in range({MESSAGES})
        ]
        handles[{MESSAGES} // 4].wait(timeout_s=240)
        print("under way", flush=True)
        for handle in handles:
            handle.wait(timeout_s=240)
        assert connection.recv({MESSAGE_BYTES}) == b"x" * {MESSAGE_BYTES}
        print("done", flush=True)
    connection.send(b"e")
"""


@pytest.fixture
def lab() -> Iterator[Lab]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    with Lab(LabModel(), name=unique("size")) as one:
        yield one


class Transfers:
    """A client at host0 and a server at host1; a round moves 16 MB there and 1 MB back."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.server = self.start("host1", SERVER)
        assert self.line(self.server) == "ready"
        self.client = self.start("host0", CLIENT, lab.address("host1"))

    def start(self, host: str, script: str, *words: str) -> "subprocess.Popen[str]":
        clean = clean_environment()
        return self.lab.popen(
            host,
            [sys.executable, "-c", script, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=clean | {"WEFT_INTERFACES": "eth0", "WEFT_PATHS": "8", "WEFT_ENGINES": "1"},
        )

    @staticmethod
    def line(process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def begin(self) -> None:
        assert self.client.stdin is not None
        self.client.stdin.write("go\n")
        self.client.stdin.flush()
        assert self.line(self.client) == "under way"

    def end(self) -> None:
        assert self.line(self.client) == "done"

    def close(self) -> None:
        for one in (self.client, self.server):
            one.kill()
            one.communicate(timeout=PATIENCE_S)


@pytest.fixture
def transfers(lab: Lab) -> Iterator[Transfers]:
    made = Transfers(lab)
    yield made
    made.close()


def payload_of(lab: Lab, transfers: Transfers) -> tuple[int, float]:
    """Runs one round; returns the bytes sent on host0's link, and their mean packet length."""
    before = lab.counters()["host0>leaf0"]
    transfers.begin()
    transfers.end()
    after = lab.counters()["host0>leaf0"]
    sent = after.bytes - before.bytes
    return sent, sent / (after.packets - before.packets)


def await_long(lab: Lab, transfers: Transfers) -> int:
    """Runs rounds until long datagrams are sent (10 to 20 s); returns the last round's bytes."""
    until = time.monotonic() + 120
    sent, mean = payload_of(lab, transfers)
    while mean < 4_000 and time.monotonic() < until:
        time.sleep(2)  # the ends look for a longer datagram after some seconds
        sent, mean = payload_of(lab, transfers)
    assert mean > 4_000
    return sent


WAYS = ("up", "down", "both")


@pytest.mark.parametrize("ways", sampled(WAYS, WAYS, ["up"]))
def test_size__long_packets_vanish_on_all_paths(lab: Lab, transfers: Transfers, ways: str) -> None:
    _, mean = payload_of(lab, transfers)
    assert mean > 4_000  # the ends have negotiated long datagrams
    before = lab.counters()["host0>leaf0"].bytes
    transfers.begin()
    up, down = ways in ("up", "both"), ways in ("down", "both")
    lab.set("host0-leaf0", up_bytes_max=SHORT * up, down_bytes_max=SHORT * down)
    transfers.end()
    sent = lab.counters()["host0>leaf0"].bytes - before
    assert sent < 4 * MESSAGES * MESSAGE_BYTES
    if not up:
        return
    _, mean = payload_of(lab, transfers)
    assert mean < 2 * SHORT  # on a slow machine a round contains attempts to send long ones again
    lab.set("host0-leaf0", up_bytes_max=0, down_bytes_max=0)
    await_long(lab, transfers)


def test_size__long_packets_vanish_on_one_path(lab: Lab, transfers: Transfers) -> None:
    transfers.begin()
    lab.set("leaf0-spine1", up_bytes_max=SHORT, down_bytes_max=SHORT)
    transfers.end()
    # Wait until the other paths carry long datagrams. A process that did not run for a moment may
    # have concluded that no path does.
    sent = await_long(lab, transfers)
    assert sent < 2 * MESSAGES * MESSAGE_BYTES
