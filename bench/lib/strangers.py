"""Processes without any secret that attack a listener, for the benchmark `strangers`.

They build the frames of docs/PROTOCOL.md without weft's package, so that they have none of its
keys.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
from functools import cache
from multiprocessing.connection import Connection as Pipe

from bench.lib.common import Config

LOCALHOST = "127.0.0.1"
HEADER = struct.Struct("<4sHHII")
HELLO, OPEN, OPEN_REPLY, CONFIRM, REFUSE = 1, 4, 5, 6, 7
FLOWS = 16  # flows of an open frame, each with a peer of its own
OPENS = 64  # maximum number of open frames in a session; each names FLOWS peers: 1,024 in all
HELLOS = 1024  # different hello frames, built before the first one is sent
ADDRESSES = 200  # number of source addresses; used ports of each stay taken for a minute
NEWEST = 7  # the newest version of the control protocol whose frames are built here
FIRST_LOCAL = 7  # the version whose hello and open frames end with a text about shared memory
BATCH = 64


@cache
def _table() -> tuple[int, ...]:
    rows = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        rows.append(byte)
    return tuple(rows)


def frame(kind: int, body: bytes, version: int) -> bytes:
    """A frame with its checksum, CRC-32C."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in body:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return HEADER.pack(b"WFTC", version, kind, len(body), crc ^ 0xFFFFFFFF) + body


def _address(host: str = LOCALHOST) -> bytes:
    return b"\x04" + socket.inet_aton(host) + bytes(12)


def _number() -> int:
    return random.getrandbits(63) | 1


def _local(version: int) -> bytes:
    """The last text of hello and open frames, left empty: shared memory is not proposed."""
    return bytes(2) if version >= FIRST_LOCAL else b""


def hello(version: int) -> bytes:
    """The hello of a new process that begins a new session."""
    body = struct.pack("<QQQQIH", _number(), 0, _number(), 0, 0, 1)
    return frame(HELLO, body + 3 * (_address() + bytes(2)) + bytes(2) + _local(version), version)


def open_frame(dial: int, version: int, words: bytes) -> bytes:
    """A frame that asks for a connection whose flows each name a new, unknown peer."""
    body = struct.pack("<QQIIIIQ?QQ", dial, 0, 0, 0, 1472, 60000, 1 << 20, False, 8192, 16)
    body += struct.pack("<H", 1) + _address() + struct.pack("<H", FLOWS)
    for _ in range(FLOWS):
        body += struct.pack("<HHIQIQ", 0, 0, random.getrandbits(31), _number(), 0, _number())
        body += struct.pack("<H", len(words)) + words
    return frame(OPEN, body + _local(version), version)


def answer(stranger: socket.socket, held: bytearray) -> tuple[int, bytes]:
    """The next frame; (0, b"") if the listener has closed the socket."""
    while len(held) < HEADER.size or len(held) < HEADER.size + HEADER.unpack_from(held)[3]:
        with contextlib.suppress(ConnectionError):
            if piece := stranger.recv(65536):
                held += piece
                continue
        return 0, b""
    _, _, kind, size, _ = HEADER.unpack_from(held)
    body = bytes(held[HEADER.size : HEADER.size + size])
    del held[: HEADER.size + size]
    return kind, body


def version_at(port: int) -> int:
    """The control protocol version that a listener names when it refuses version 1."""
    with socket.create_connection((LOCALHOST, port), timeout=60) as stranger:
        stranger.sendall(frame(HELLO, bytes(8), 1))
        kind, body = answer(stranger, bytearray())
    if kind != REFUSE:
        raise RuntimeError("the listener does not refuse version 1 of the control protocol")
    version = int(struct.unpack_from("<QIH", body)[2])
    if version > NEWEST:
        raise RuntimeError(f"frames of control protocol {version} are unknown to this benchmark")
    return version


def knock(pipe: Pipe, config: Config) -> None:
    """Connects, sends a hello and closes, `rate` times a second, until the pipe has data."""
    port, rate = config["port"], config["rate"]
    hellos = [hello(config["version"]) for _ in range(HELLOS)]
    pipe.send("ready")
    made = 0
    begin = time.perf_counter()
    while not pipe.poll():
        for _ in range(BATCH):
            with contextlib.suppress(OSError), socket.socket() as stranger:
                stranger.bind((f"127.0.1.{made % ADDRESSES + 1}", 0))
                stranger.connect((LOCALHOST, port))
                stranger.sendall(hellos[made % HELLOS])
                made += 1
        ahead_s = made / rate - (time.perf_counter() - begin)
        if ahead_s > 0:
            time.sleep(ahead_s)
    pipe.send({"strangers": made, "seconds": time.perf_counter() - begin})


def _open_all(port: int, version: int, words: bytes, opens: int, held: list[socket.socket]) -> int:
    """Opens and confirms connections in a new session; returns how many."""
    stranger = socket.create_connection((LOCALHOST, port), timeout=60)
    held.append(stranger)
    buffer, opened = bytearray(), 0
    stranger.sendall(hello(version))
    answer(stranger, buffer)
    for dial in range(1, opens + 1):
        stranger.sendall(open_frame(dial, version, words))
        kind = HELLO
        while kind not in (0, OPEN_REPLY, REFUSE):
            kind, _ = answer(stranger, buffer)
        if kind != OPEN_REPLY:
            break
        stranger.sendall(frame(CONFIRM, struct.pack("<Q", dial), version))
        opened += 1
    return opened


def open_much(pipe: Pipe, config: Config) -> None:
    """Opens connections and stays silent.

    All `paths` of each peer lead to one UDP port of this process, which never answers. `opens`: the
    number of connections to open; 0: opens more until the pipe has data.
    """
    held: list[socket.socket] = []
    opened = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind((LOCALHOST, 0))
        words = b"u" + config["paths"] * struct.pack("<H", deaf.getsockname()[1])
        if config["opens"] == 0:
            pipe.send("ready")
        begin = time.perf_counter()
        while not pipe.poll() and (config["opens"] == 0 or opened < config["opens"]):
            left = config["opens"] - opened if config["opens"] else OPENS
            before = opened
            with contextlib.suppress(OSError):
                opened += _open_all(
                    config["port"], config["version"], words, min(left, OPENS), held
                )
            if config["opens"] and opened == before:
                raise RuntimeError(f"the listener took {opened} of {config['opens']} opens")
        if config["opens"] != 0:
            pipe.send("ready")
        pipe.recv()
        pipe.send({"strangers": opened, "seconds": time.perf_counter() - begin})
    for each in held:
        each.close()
