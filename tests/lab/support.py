"""Helpers of the lab tests: reasons to skip, datagrams between hosts, leftovers of a lab."""

import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.waiting import PATIENCE_S
from transport.lab import Counters, Lab, LabError, LabModel, Link, features, namespace, state

ROOT = Path(__file__).resolve().parents[2]
PORT = 7001
CHUNK = 32
QUIET_S = 1.0  # no packet needs longer to arrive, even on a busy machine
ECT_0, CE = 2, 3
# Constants from Linux headers, which Python 3.11 does not define.
IP_RECVTOS, SO_RCVBUFFORCE, UDP_SEGMENT = 13, 33, 103


def reason_to_skip() -> str:
    """Why this host cannot build a lab; "" if it can."""
    try:
        features.require_rights()
        features.require_kernel(LabModel())
    except LabError as error:
        return str(error)
    return ""


def unique(name: str) -> str:
    return f"test-{name}-{os.getpid()}"


def line(rate_bytes_per_s: int = 125_000_000) -> LabModel:
    """Two hosts and one path, so that all packets take the same links."""
    return LabModel(spines=1, uplinks=Link(rate_bytes_per_s=rate_bytes_per_s))


def left_behind(name: str) -> list[str]:
    """Namespaces and state files that remain after a lab was removed."""
    spaces = [one.name for one in namespace.DIRECTORY.glob(f"weft-{name}-*")]
    files = [str(one) for one in state.directory().glob(f"{name}.*")]
    return spaces + files


def weft(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a child process."""
    script = "import sys; from transport.cli import main; sys.argv[0] = 'weft'; main()"
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
        **options,
    )


@dataclass
class Pair:
    """Datagrams from one host of a lab to another."""

    lab: Lab
    source: str = "host0"
    target: str = "host1"
    senders: list[socket.socket] = field(default_factory=list)
    receiver: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self.receiver = self.lab.call(self.target, udp)
        # A large receive buffer, because a small datagram uses much more of it than its length.
        self.receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
        self.receiver.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
        self.receiver.bind((self.lab.address(self.target), PORT))

    def sender(self, port: int = 0) -> socket.socket:
        """Opens a connected socket, so that send() reports ICMP errors."""
        made = self.lab.call(self.source, udp)
        made.bind((self.lab.address(self.source), port))
        made.connect((self.lab.address(self.target), PORT))
        made.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, ECT_0)
        self.senders.append(made)
        return made

    def pass_on(self, sender: socket.socket, count: int, payload_bytes: int = 64) -> list[int]:
        """Sends numbered datagrams; returns the numbers that arrived intact, in arrival order."""
        arrived: list[int] = []
        for first in range(0, count, CHUNK):
            for number in range(first, min(first + CHUNK, count)):
                sender.send(datagram(number, payload_bytes))
            arrived += [number for number, _ in self.receive(0.0)]
        return arrived + [number for number, _ in self.receive(QUIET_S, count - len(arrived))]

    def receive(self, seconds: float, most: int = 1 << 30) -> list[tuple[int, int]]:
        """Number and ECN bits of each datagram, until none has arrived for `seconds`."""
        found: list[tuple[int, int]] = []
        while len(found) < most and select.select([self.receiver], [], [], seconds)[0]:
            data, ancillary, _, _ = self.receiver.recvmsg(65_536, 64)
            (number,) = struct.unpack_from("<I", data)
            assert data == datagram(number, len(data)), "a corrupt datagram was delivered"
            tos = next(bits[0] for _, kind, bits in ancillary if kind == socket.IP_TOS)
            found.append((number, tos & 3))
        return found

    def close(self) -> None:
        for one in (*self.senders, self.receiver):
            one.close()


def udp() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def datagram(number: int, payload_bytes: int) -> bytes:
    return struct.pack("<I", number) * (payload_bytes // 4)


def grown(lab: Lab, work: Callable[[], object]) -> dict[str, Counters]:
    """Runs `work`; returns how much the counters of each direction grew meanwhile."""
    before = lab.counters()
    work()
    after = lab.counters()
    return {
        name: Counters(**{key: n - vars(before[name])[key] for key, n in vars(after[name]).items()})
        for name in before
    }
