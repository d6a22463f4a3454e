"""Tests that the XDP program takes weft's datagrams only, and that no frame harms a process."""

import random
import socket
import struct
from collections.abc import Callable

import pytest

from tests.waiting import PATIENCE_S, until
from tests.xdp.support import V4, V6, Wire
from tests.xdp.talk import begin, finish

pytestmark = pytest.mark.namespaces

BYSTANDER = 9999  # a port that weft does not have
ETHERTYPE_IPV4 = 0x0800


def udp_echo(wire: Wire, family: int, to: str, payload: bytes) -> bytes:
    """Sends a datagram from host 0 to a plain socket on host 1; returns what arrives."""
    there = wire.call(1, lambda: socket.socket(family, socket.SOCK_DGRAM))
    here = wire.call(0, lambda: socket.socket(family, socket.SOCK_DGRAM))
    with there, here:
        there.settimeout(PATIENCE_S)
        there.bind((to, BYSTANDER))
        here.sendto(payload, (to, BYSTANDER))
        return there.recv(65_536)


def ping(wire: Wire) -> None:
    """Sends an ICMP echo request to host 1, and waits for the reply of its kernel."""
    with wire.call(
        0, lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    ) as one:
        one.settimeout(PATIENCE_S)
        request = struct.pack("!BBHHH", 8, 0, 0, 77, 1)
        sums = sum(struct.unpack("!4H", request))
        request = struct.pack("!BBHHH", 8, 0, ~(sums + (sums >> 16)) & 0xFFFF, 77, 1)
        one.sendto(request, (V4[1], 0))

        def replied() -> bool:
            packet = one.recv(1000)
            return packet[20] == 0 and packet[24:26] == struct.pack("!H", 77)

        until(replied, "no reply to a ping")


def bound_ports(wire: Wire, host: int) -> list[int]:
    """The UDP ports that are bound to the host's address."""

    def read() -> list[int]:
        with open("/proc/thread-self/net/udp") as table:
            rows = [line.split()[1] for line in table.readlines()[1:]]
        address = struct.pack("<I", struct.unpack("!I", socket.inet_aton(V4[host]))[0]).hex()
        found = [row.split(":") for row in rows]
        return [int(port, 16) for at, port in found if at.lower() == address]

    return wire.call(host, read)


def checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data[: len(data) // 2 * 2]))
    total += data[-1] << 8 if len(data) % 2 else 0
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def frame(wire: Wire, port: int, payload: bytes, **wrong: int) -> bytes:
    """A frame from host 0 to a port of host 1; `wrong` replaces fields of its headers."""
    to, source = (bytes.fromhex(wire.mac(host).replace(":", "")) for host in (1, 0))
    total = wrong.get("total", 28 + len(payload))
    fragment = wrong.get("fragment", 0x4000)
    start = struct.pack("!BBHHHBBH", wrong.get("first", 0x45), 0, total, 0, fragment, 64, 17, 0)
    ends = socket.inet_aton(V4[0]) + socket.inet_aton(V4[1])
    ip_sum = wrong.get("ip_sum", checksum(start + ends))
    header = start[:10] + struct.pack("!H", ip_sum) + ends
    length = wrong.get("length", 8 + len(payload))
    udp = struct.pack("!HHHH", 5555, port, length, 0)
    pseudo = ends + struct.pack("!BBH", 0, 17, length)
    udp_sum = wrong.get("udp_sum", checksum(pseudo + udp + payload) or 0xFFFF)
    udp = udp[:6] + struct.pack("!H", udp_sum)
    return to + source + struct.pack("!H", ETHERTYPE_IPV4) + header + udp + payload


def test_steering__leaves_other_traffic_to_the_kernel(wire: Wire) -> None:
    ends = begin(wire, hold=True)
    assert wire.program(0) > 0
    assert wire.program(1) > 0
    assert udp_echo(wire, socket.AF_INET, V4[1], b"four") == b"four"
    assert udp_echo(wire, socket.AF_INET6, V6[1], b"six") == b"six"
    fragmented = random.Random(1).randbytes(9000)
    assert udp_echo(wire, socket.AF_INET, V4[1], fragmented) == fragmented
    ping(wire)
    before = bound_ports(wire, 1)
    assert before, "weft's UDP sockets own its ports"
    finish(*ends)


def test_steering__hostile_frames_are_refused(wire: Wire) -> None:
    ends = begin(wire, hold=True)
    ports = bound_ports(wire, 1)
    chance = random.Random(7)
    payload = chance.randbytes(100)
    hostile: list[Callable[[int], bytes]] = [
        lambda port: frame(wire, port, payload),  # well formed, but not weft's
        lambda port: frame(wire, port, b""),
        lambda port: frame(wire, port, payload, total=60_000),
        lambda port: frame(wire, port, payload, total=20),
        lambda port: frame(wire, port, payload, length=60_000),
        lambda port: frame(wire, port, payload, length=3),
        lambda port: frame(wire, port, payload, ip_sum=1),
        lambda port: frame(wire, port, payload, udp_sum=1),
        lambda port: frame(wire, port, payload, fragment=0x2001),
        lambda port: frame(wire, port, payload, first=0x46),
        lambda port: frame(wire, port, payload)[:42],
        lambda port: frame(wire, port, payload)[:30],
    ]

    def send() -> int:
        sent = 0
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
            raw.bind(("eth0", 0))
            for port in ports:
                for make in hostile:
                    raw.send(make(port))
                    sent += 1
                for _ in range(10):
                    noisy = bytearray(frame(wire, port, payload))
                    for _ in range(5):
                        noisy[chance.randrange(12, len(noisy))] = chance.randrange(256)
                    raw.send(bytes(noisy))
                    sent += 1
        return sent

    assert wire.call(0, send) > len(hostile)
    server, client = finish(*ends)
    assert server["malformed"] > 0
    assert client["bypass_received"] > 0
