"""Sends UDP datagrams whose TTL expires at a router, and notes which routers report that.

A probe has the addresses and ports of a flow, so routers send it where they send the flow. Routers
answer with ICMP time exceeded, which the kernel hands to the socket (IP_RECVERR).
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from transport.errors import InvalidArgumentError

# Linux, linux/in.h and linux/errqueue.h; Python 3.11 does not define them.
IP_RECVERR, MSG_ERRQUEUE = 11, 0x2000
ORIGIN_ICMP, UNREACHABLE, TIME_EXCEEDED = 2, 3, 11
ERROR = struct.Struct("=IBBBBII4xI")  # sock_extended_err, then the start of a sockaddr_in
MARK = struct.Struct("!4sII")  # payload: magic, number of the round, TTL
MAGIC, ECHO = b"weft", b"echo"
TTL_MAX = 255
BURST = 16  # probes sent before answers are read
STALE_S = 2.5  # retries at a TTL end if no further flow got an answer for this long
SILENT_MAX = 3  # after this many TTLs without any answer, probing ends


class ProbeError(InvalidArgumentError):
    """Nothing can be probed, or nothing was found; the message says why."""


@dataclass(frozen=True)
class End:
    """A NIC that is probed from or to.

    open_socket: opens a UDP socket in the network namespace of the NIC's host; None: in that of
    this process.
    """

    name: str
    address: str
    open_socket: Callable[[], socket.socket] | None = None


@dataclass(frozen=True)
class Flow:
    """One 5-tuple; source and target are indexes of ends."""

    source: int
    target: int
    source_port: int
    target_port: int


@dataclass(frozen=True)
class Limits:
    """Bounds on the work: probes per second, tries of an unanswered probe, the longest way.

    samples: probes of each flow and TTL, from which the loss of links is counted.
    """

    rate_per_s: int = 800
    tries: int = 3
    samples: int = 1
    timeout_s: float = 0.5
    hops_max: int = 8
    seconds: float = 60.0


@dataclass
class Seen:
    """The answers to the probes of one flow and TTL."""

    sent: int = 0
    answered: int = 0
    routers: list[str] = field(default_factory=list)  # address of each answer
    reached: bool = False  # the target itself answered


@dataclass
class Heard:
    """The answers to all probes, by (flow, TTL). hops: pair of ends -> TTL to reach the target."""

    flows: list[Flow]
    of: dict[tuple[int, int], Seen] = field(default_factory=dict)
    hops: dict[tuple[int, int], int] = field(default_factory=dict)
    sent: int = 0
    timed_out: bool = False  # the limit of time ended the probing


def grid(ports: Sequence[int], far_ports: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Pairs of ports, at most `most`: those of equal index first, so that all ports take part."""
    count = min(most, len(ports) * len(far_ports))
    found = []
    for turn in range(len(far_ports)):
        for at, near in enumerate(ports):
            found.append((near, far_ports[(at + turn) % len(far_ports)]))
            if len(found) == count:
                return found
    return found


class Prober:
    """Probes flows between ends. Use it in a `with`, which closes its sockets."""

    def __init__(self, ends: Sequence[End], flows: Sequence[Flow], limits: Limits) -> None:
        self._ends, self._limits = ends, limits
        self.heard = Heard(list(flows))
        self._sockets: dict[tuple[int, int], socket.socket] = {}
        self._owner: dict[int, tuple[int, int]] = {}  # descriptor -> source end and its port
        self._flow_of = {
            (one.source, one.source_port, ends[one.target].address, one.target_port): at
            for at, one in enumerate(flows)
        }
        self._poll = select.poll()
        self._round = int.from_bytes(os.urandom(3), "big")
        self._next_s = 0.0
        self._deadline_s = 0.0

    def __enter__(self) -> Prober:
        for flow in self.heard.flows:
            key = flow.source, flow.source_port
            if key not in self._sockets:
                self._sockets[key] = self._opened(*key)
        return self

    def __exit__(self, *reason: object) -> None:
        for one in self._sockets.values():
            one.close()

    def _opened(self, source: int, port: int) -> socket.socket:
        end = self._ends[source]
        made = (end.open_socket or udp_socket)()
        try:
            made.setblocking(False)
            made.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            made.bind((end.address, port))
        except OSError as error:
            made.close()
            raise ProbeError(
                f"{end.name}: cannot use UDP port {port} of {end.address} ({error.strerror}): "
                "probe while no job uses the ports, or give another --port-base"
            ) from None
        self._poll.register(made, select.POLLIN | select.POLLERR)
        self._owner[made.fileno()] = source, port
        return made

    def run(self, progress: Callable[[int], None] | None = None) -> Heard:
        """Probes TTL by TTL, until every target is reached or no router answers any more."""
        self._deadline_s = time.monotonic() + self._limits.seconds
        self._measure_lengths()
        silent = 0
        for ttl in range(1, self._limits.hops_max + 1):
            flows = self._under_way(ttl)
            if not flows or silent == SILENT_MAX or self._late():
                break
            if progress is not None:
                progress(ttl)
            self._probe(ttl, flows)
            answered = any(self.heard.of[one, ttl].answered for one in flows)
            silent = 0 if answered else silent + 1
        self.heard.timed_out = self._late()
        return self.heard

    def _late(self) -> bool:
        return time.monotonic() >= self._deadline_s

    def _ends_of(self, flow: int) -> tuple[int, int]:
        one = self.heard.flows[flow]
        return one.source, one.target

    def _measure_lengths(self) -> None:
        """Finds how many hops the targets are away, with one flow for each pair of ends."""
        first: dict[tuple[int, int], int] = {}
        for one in range(len(self.heard.flows)):
            first.setdefault(self._ends_of(one), one)
        for ttl in range(1, self._limits.hops_max + 1):
            flows = [one for ends, one in first.items() if ends not in self.heard.hops]
            if not flows or self._late():
                break
            for one in flows:
                self.heard.of[one, ttl] = Seen()
            self._send_all(ttl, flows)
        self.heard.of.clear()

    def _under_way(self, ttl: int) -> list[int]:
        """The flows whose targets are more than `ttl` hops away, as far as known."""
        return [one for one in range(len(self.heard.flows)) if not self._is_behind(one, ttl)]

    def _is_behind(self, flow: int, ttl: int) -> bool:
        return ttl >= self.heard.hops.get(self._ends_of(flow), TTL_MAX + 1)

    def _probe(self, ttl: int, flows: list[int]) -> None:
        """Probes the flows at one TTL: each until it is answered, then the further samples."""
        for one in flows:
            self.heard.of[one, ttl] = Seen()
        waiting, tries, known, known_s = flows, 0, 0, time.monotonic()
        while waiting and not self._late():
            self._send_all(ttl, waiting)
            waiting = self._open(ttl, flows)
            tries += 1
            answered = sum(bool(self.heard.of[one, ttl].answered) for one in flows)
            # Routers limit their answers per second: retry as long as further flows get an answer.
            if answered == 0 and tries >= self._limits.tries:
                break
            if answered > known:
                known, known_s = answered, time.monotonic()
            elif tries >= self._limits.tries and time.monotonic() > known_s + STALE_S:
                break
        for _ in range(1, self._limits.samples):
            again = [one for one in flows if self.heard.of[one, ttl].answered]
            again = [one for one in again if not self._is_behind(one, ttl)]
            if not again or self._late():
                break
            self._send_all(ttl, again)

    def _open(self, ttl: int, flows: list[int]) -> list[int]:
        """The flows that need another probe.

        One answer is enough for the first router from a NIC, and for the last one to a NIC.
        """
        answered = [one for one in flows if self.heard.of[one, ttl].answered]
        sources = {self.heard.flows[one].source for one in answered} if ttl == 1 else set()
        last = {
            ends for ends in map(self._ends_of, answered) if self.heard.hops.get(ends) == ttl + 1
        }
        return [
            one
            for one in flows
            if not self.heard.of[one, ttl].answered
            and not self._is_behind(one, ttl)
            and self.heard.flows[one].source not in sources
            and self._ends_of(one) not in last
        ]

    def _send_all(self, ttl: int, flows: Iterable[int]) -> None:
        """Sends one probe of each flow and waits for the answers."""
        self._round = (self._round + 1) & 0xFFFF_FFFF
        payload = MARK.pack(MAGIC, self._round, ttl)
        for one in self._sockets.values():
            one.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
        left = set()
        for count, flow in enumerate(flows):
            if self._is_behind(flow, ttl):
                continue  # an answer of this round has shown that this TTL reaches the target
            self._pace()
            self._send(flow, payload)
            self.heard.of[flow, ttl].sent += 1
            left.add(flow)
            if count % BURST == BURST - 1:
                self._read(0.0, ttl, payload, left)
        until_s = min(time.monotonic() + self._limits.timeout_s, self._deadline_s)
        while left and (rest_s := until_s - time.monotonic()) > 0:
            self._read(rest_s, ttl, payload, left)
            left = {one for one in left if not self._is_behind(one, ttl)}

    def _pace(self) -> None:
        now_s = time.monotonic()
        if self._next_s > now_s + 0.002:  # a shorter sleep would last longer than requested
            time.sleep(self._next_s - now_s)
        self._next_s = max(self._next_s, now_s - 0.01) + 1 / self._limits.rate_per_s
        self.heard.sent += 1

    def _send(self, flow: int, payload: bytes) -> None:
        one = self.heard.flows[flow]
        to = self._ends[one.target].address, one.target_port
        opened = self._sockets[one.source, one.source_port]
        for _ in range(4):
            try:
                opened.sendto(payload, to)
                return
            except OSError:
                continue  # sendto() reported an earlier ICMP error of the socket: send again

    def _read(self, wait_s: float, ttl: int, payload: bytes, left: set[int]) -> None:
        for descriptor, ready in self._poll.poll(max(int(wait_s * 1_000), 1) if wait_s else 0):
            source, port = self._owner[descriptor]
            opened = self._sockets[source, port]
            if ready & select.POLLIN:
                self._receive(opened, source, port, ttl)
            while True:
                try:
                    quoted, control, _, to = opened.recvmsg(512, 512, MSG_ERRQUEUE)
                except OSError:
                    break
                flow = self._flow_of.get((source, port, to[0], to[1]))
                # ICMP errors of some routers do not quote the payload: count them for this round.
                mine = len(quoted) < MARK.size or quoted[: MARK.size] == payload
                for level, kind, data in control:
                    if (level, kind) != (socket.IPPROTO_IP, IP_RECVERR) or flow is None or not mine:
                        continue
                    if self._note(flow, ttl, data):
                        left.discard(flow)

    def _receive(self, opened: socket.socket, source: int, port: int, ttl: int) -> None:
        """Echoes probes that reached this end, and notes echoes of the probes that it sent."""
        for _ in range(4 * BURST):
            try:
                data, sender = opened.recvfrom(512)
            except OSError:
                return
            if len(data) != MARK.size:
                continue
            magic, number, sent_ttl = MARK.unpack(data)
            if magic == MAGIC:
                opened.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, TTL_MAX)
                with suppress(OSError):
                    opened.sendto(MARK.pack(ECHO, number, sent_ttl), sender)
                opened.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
            flow = self._flow_of.get((source, port, *sender))
            if magic == ECHO and flow is not None and (flow, sent_ttl) in self.heard.of:
                self._reach(flow, sent_ttl)

    def _reach(self, flow: int, ttl: int) -> None:
        ends = self._ends_of(flow)
        self.heard.of[flow, ttl].reached = True
        self.heard.hops[ends] = min(ttl, self.heard.hops.get(ends, ttl))

    def _note(self, flow: int, ttl: int, data: bytes) -> bool:
        """Notes an answer. False if it answers no open probe of this flow and TTL."""
        if len(data) < ERROR.size:
            return False
        _, origin, kind, _, _, _, _, number = ERROR.unpack_from(data)
        if origin != ORIGIN_ICMP or kind not in (UNREACHABLE, TIME_EXCEEDED):
            return False
        router = socket.inet_ntoa(struct.pack("=I", number))
        seen = self.heard.of[flow, ttl]
        if seen.sent == seen.answered:
            return False  # an ICMP error for an earlier round, without the payload
        seen.answered += 1
        ends = self._ends_of(flow)
        if router == self._ends[ends[1]].address:
            self._reach(flow, ttl)
        elif kind == TIME_EXCEEDED:
            seen.routers.append(router)
        return True


def udp_socket() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
