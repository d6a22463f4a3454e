"""Messages of a test over TCP, which arrive also where no datagram passes.

The waiting end listens on a TCP port of its own, beside the control port, and greets whoever
connects with a line `weft-doctor NONCE`. The testing end answers with HMAC-SHA256 of the nonce
(RFC 2104), whose key is the secret of WEFT_SECRET_FILE, or empty. Then each message is a line.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from transport import Connection
from transport.endpoint import knobs
from transport.errors import ConnectionClosedError, TimedOutError
from transport.host.two_hosts import talk
from transport.host.two_hosts.facts import TEXT_BYTES_MAX, Fact, FactError, decode, encode
from transport.host.two_hosts.ports import port_range

TRIED_MAX = 4  # ports that either end tries
CONNECT_S = 2.0
GREET_S = 8.0  # longer than a busy host takes; only a port of another program costs it
PROVE_S = 2.0  # of one stranger, which keeps others waiting
WAITING_MAX = 16
STEP_S = 0.2
SECRET_BYTES_MAX = 65_536
GREETING = re.compile(rb"weft-doctor ([0-9a-f]{32})\n")
LINE_BYTES_MAX = 80  # of the greeting, and of the answer
ENDED = "the other host ended the test"


class Channel(Protocol):
    """The messages between the two ends of a test."""

    def say(self, fact: Any, timeout_s: float) -> None:
        """Sends the fact. TimedOutError if it does not arrive in time."""

    def hear(
        self, *kinds: type[Fact], timeout_s: float, goes_on: Callable[[], bool] = lambda: True
    ) -> Fact:
        """Receives a fact. TimedOutError if none arrives in time, or once goes_on() is false."""

    def check(self) -> None:
        """Raises a WeftError if the other end has ended or cannot be reached any more."""


class DataPathChannel:
    """Messages over the data paths of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def say(self, fact: Any, timeout_s: float) -> None:
        talk.say(self._connection, fact, timeout_s)

    def hear(
        self, *kinds: type[Fact], timeout_s: float, goes_on: Callable[[], bool] = lambda: True
    ) -> Fact:
        return talk.hear(self._connection, *kinds, timeout_s=timeout_s, goes_on=goes_on)

    def check(self) -> None:
        self._connection.check()


class TcpChannel:
    """Messages over a TCP connection that both ends have proved to belong to the test."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._received = b""

    def __enter__(self) -> TcpChannel:
        return self

    def __exit__(self, *reason: object) -> None:
        self._socket.close()

    def say(self, fact: Any, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)
        try:
            self._socket.sendall(encode(fact) + b"\n")
        except TimeoutError:
            raise TimedOutError("the other host takes no message") from None
        except OSError:
            raise ConnectionClosedError(ENDED) from None

    def hear(
        self, *kinds: type[Fact], timeout_s: float, goes_on: Callable[[], bool] = lambda: True
    ) -> Fact:
        end_s = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            if not goes_on() or not self._receive(end_s - time.monotonic()):
                names = " or ".join(kind.__name__ for kind in kinds)
                raise TimedOutError(f"no message {names} arrived from the other host")
        line, _, self._received = self._received.partition(b"\n")
        return decode(line, *kinds)

    def check(self) -> None:
        self._socket.setblocking(False)
        try:
            if not self._socket.recv(1, socket.MSG_PEEK):
                raise ConnectionClosedError(ENDED)
        except BlockingIOError:
            return
        except OSError:
            raise ConnectionClosedError(ENDED) from None

    def _receive(self, seconds: float) -> bool:
        """Waits a step for more bytes; False if no time is left."""
        if seconds <= 0:
            return False
        self._socket.settimeout(min(seconds, STEP_S))
        try:
            more = self._socket.recv(1 << 16)
        except TimeoutError:
            return True
        except OSError:
            more = b""
        if not more:
            raise ConnectionClosedError(ENDED)
        self._received += more
        if len(self._received) > TEXT_BYTES_MAX:
            raise FactError(f"expected text of at most {TEXT_BYTES_MAX} bytes")
        return True


def message_ports(control_port: int) -> list[int]:
    """The TCP ports of which the waiting end takes the first free one for messages.

    They are the last ones of WEFT_CONTROL_PORT, of which jobs take the first, or those that follow
    the control port.
    """
    of_range = port_range("control_port")
    if of_range:
        return [one for one in reversed(of_range[-TRIED_MAX:]) if one != control_port]
    return [one for one in range(control_port + 1, control_port + 1 + TRIED_MAX) if one <= 65_535]


def connect(address: str, control_port: int) -> TcpChannel | None:
    """The channel to a waiting end; None if it has none that this host reaches."""
    for port in message_ports(control_port):
        try:
            return _of(socket.create_connection((address, port), timeout=CONNECT_S), port)
        except TimeoutError:  # a firewall drops the other ports, too
            return None
        except (OSError, FactError):
            continue
    return None


def _of(connected: socket.socket, port: int) -> TcpChannel:
    """The channel over a connection to a waiting end; FactError if another program listens."""
    try:
        greeting = GREETING.fullmatch(_line(connected, GREET_S))
        if greeting is None:
            raise FactError(f"port {port} is not of weft doctor")
        connected.sendall(_proof(greeting[1]) + b"\n")
    except (OSError, FactError) as error:
        connected.close()
        raise FactError(f"port {port}: {error}") from None
    return TcpChannel(connected)


class ChannelListener:
    """Accepts the channels of testing ends while a test goes on; use it in a `with`.

    port: 0 if none of message_ports() is free. At most WAITING_MAX channels wait.
    """

    def __init__(self, control_port: int) -> None:
        self._socket = next(filter(None, map(_listen, message_ports(control_port))), None)
        self.port: int = self._socket.getsockname()[1] if self._socket is not None else 0
        self._waiting: list[tuple[str, socket.socket]] = []
        self._lock = threading.Lock()
        self._ending = False
        self._thread = threading.Thread(target=self._accept, daemon=True, name="weft-doctor-tcp")
        self._thread.start()

    def __enter__(self) -> ChannelListener:
        return self

    def __exit__(self, *reason: object) -> None:
        self._ending = True
        self._thread.join()
        for one in (self._socket, *(waiting for _, waiting in self._waiting)):
            if one is not None:
                one.close()

    def waits(self, address: str) -> bool:
        """Whether a channel from this address waits."""
        with self._lock:
            return any(plain_address(address) == one for one, _ in self._waiting)

    def take(self, address: str) -> TcpChannel | None:
        """The channel from this address that has waited longest; None if there is none."""
        with self._lock:
            for at, (one, connected) in enumerate(self._waiting):
                if one == plain_address(address):
                    del self._waiting[at]
                    return TcpChannel(connected)
        return None

    def _accept(self) -> None:
        while self._socket is not None and not self._ending:
            try:
                connected, source = self._socket.accept()
            except OSError:  # nobody came, or too few descriptors
                continue
            if not _proves(connected):
                connected.close()
                continue
            with self._lock:
                self._waiting.append((plain_address(source[0]), connected))
                surplus = self._waiting[:-WAITING_MAX]
                del self._waiting[:-WAITING_MAX]
            for _, old in surplus:
                old.close()


def plain_address(address: str) -> str:
    """A numeric address without its zone; an IPv4 address also if it is written as IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(getattr(found, "ipv4_mapped", None) or found)


def _listen(port: int) -> socket.socket | None:
    """Listens at all addresses of this host; None if the port is taken."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        both = family == socket.AF_INET6
        if both and not socket.has_dualstack_ipv6():
            continue
        with suppress(OSError):
            opened = socket.create_server((address, port), family=family, dualstack_ipv6=both)
            opened.settimeout(STEP_S)
            return opened
    return None


def _proves(connected: socket.socket) -> bool:
    """Greets a stranger; whether it has the secret of this host."""
    nonce = secrets.token_hex(16).encode()
    try:
        connected.settimeout(PROVE_S)
        connected.sendall(b"weft-doctor " + nonce + b"\n")
        return hmac.compare_digest(_line(connected, PROVE_S), _proof(nonce) + b"\n")
    except OSError:
        return False


def _proof(nonce: bytes) -> bytes:
    secret, where = b"", knobs.in_force()["secret_file"]
    if where:
        with Path(where).open("rb") as file:
            secret = file.read(SECRET_BYTES_MAX).rstrip(b"\r\n")
    return hmac.new(secret, b"weft doctor " + nonce, hashlib.sha256).hexdigest().encode()


def _line(connected: socket.socket, seconds: float) -> bytes:
    """A short line with its end; OSError if none arrives in time."""
    end_s, line = time.monotonic() + seconds, b""
    while not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
        connected.settimeout(max(0.01, end_s - time.monotonic()))
        more = connected.recv(1)  # not more: a message may follow
        if not more or time.monotonic() > end_s:
            raise OSError("no line arrived")
        line += more
    return line
