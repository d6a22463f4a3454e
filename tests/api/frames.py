"""Control frames of an unauthenticated peer, for tests of bad handshakes and opens.

They follow docs/PROTOCOL.md and do not use weft's encoder, so that they test the encoder, too.
"""

import socket
import struct
from collections.abc import Sequence
from functools import cache

VERSION = 7
HELLO, HELLO_REPLY, OPEN, OPEN_REPLY, CONFIRM, REFUSE, PING, PONG, VERDICT = (1, 2, *range(4, 11))
HEADER = struct.Struct("<4sHHII")


@cache
def _table() -> tuple[int, ...]:
    rows = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        rows.append(byte)
    return tuple(rows)


def crc32c(data: bytes) -> int:
    """CRC-32C, bit by bit as in RFC 3720."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def frame(kind: int, body: bytes, version: int = VERSION) -> bytes:
    """A complete frame with a given type and body."""
    return HEADER.pack(b"WFTC", version, kind, len(body), crc32c(body)) + body


def _address(host: str, port: int | None = None) -> bytes:
    packed = bytes([4]) + socket.inet_aton(host).ljust(16, b"\0")
    return packed if port is None else packed + struct.pack("<H", port)


def hello(
    *, node: int = 77, target: int = 0, session: int = 5, joined: int = 0, control: int = 0
) -> bytes:
    """A hello frame from the address 127.0.0.1."""
    body = struct.pack("<QQQQIH", node, target, session, joined, 0, 1)
    ends = [_address("127.0.0.1", port) for port in (0, 0, control)]
    return frame(HELLO, body + b"".join(ends) + struct.pack("<HH", 0, 0))


def open_frame(
    dial: int,
    *,
    listener: int = 0,
    address: str = "127.0.0.1",
    peer: int = 0,
    peers: int = 1,
    ports: Sequence[int] = range(40_000, 40_008),
) -> bytes:
    """An open frame that offers `peers` flows over eight paths, each of its own peer."""
    body = struct.pack("<QQIIIIQ?QQ", dial, listener, 0, 0, 1472, 65000, 1 << 20, True, 8192, 16)
    words = b"u" + struct.pack(f"<{len(ports)}H", *ports)
    flows = b"".join(
        struct.pack("<HHIQIQH", 0, 0, each, 11 + each, 0, 13, len(words)) + words
        for each in range(peer, peer + peers)
    )
    addresses = struct.pack("<H", 1) + _address(address)
    return frame(OPEN, body + addresses + struct.pack("<H", peers) + flows + struct.pack("<H", 0))


def refuse(text: bytes, *, dial: int = 0, status: int = 7) -> bytes:
    """A refuse frame with any text."""
    return frame(REFUSE, struct.pack("<QIHH", dial, status, VERSION, len(text)) + text)


def confirm(dial: int) -> bytes:
    """The confirm frame, with which a dialler confirms an open."""
    return frame(CONFIRM, struct.pack("<Q", dial))


def ping(number: int) -> bytes:
    """A ping, which the control thread answers."""
    return frame(PING, struct.pack("<Q", number))


def verdict(status: int, text: bytes = b"") -> bytes:
    """The frame that ends a session."""
    return frame(VERDICT, struct.pack("<IH", status, len(text)) + text)


def read_frames(peer: socket.socket, count: int) -> list[tuple[int, bytes]]:
    """Reads up to `count` frames; fewer at the end of the stream or the socket's timeout."""
    found: list[tuple[int, bytes]] = []
    buffer = b""
    while len(found) < count:
        try:
            piece = peer.recv(65536)
        except (TimeoutError, ConnectionResetError):
            break
        if not piece:
            break
        buffer += piece
        while len(buffer) >= HEADER.size:
            _, _, kind, size, _ = HEADER.unpack_from(buffer)
            if len(buffer) < HEADER.size + size:
                break
            found.append((kind, buffer[HEADER.size : HEADER.size + size]))
            buffer = buffer[HEADER.size + size :]
    return found
