"""UDP datagrams beside weft's own: the path MTU, reordering, loss and the clocks of two hosts.

weft's counters do not tell these. Each end has one socket, which answers the other end's probes
with packets that are no longer than they are, and only those that carry this test's token.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transport.host.two_hosts.facts import ProbeFacts
from transport.host.two_hosts.icmp import hears_errors, icmp_errors

ASK, ANSWER = 1, 2
TRAIN, SIZES = 1, 2
# magic, kind, train, test, token, number, sent; in answers: arrival, length, time there
HEAD = struct.Struct("<4sBBH16sIqIIq")
MAGIC = b"WFDR"
ASK_BYTES_MIN = 64
assert HEAD.size <= ASK_BYTES_MIN  # an answer is never longer than what asked for it
PACKET_BYTES_MAX = 65_535
TRAIN_PACKETS, TRAIN_BYTES, BURST, BURST_S = 1_024, 1_200, 8, 0.005
# A size counts as too long after this many packets; a pause of a host may cost some of them.
TRIES, TRY_S = 10, 0.25
UNANSWERED_MAX = 64
OPEN_TRIES = 12  # short probes before the first that counts, TRY_S apart
# How long a stalled train waits before it goes on, how often it does, and how long it waits in the
# end. An answer that is still missing then counts as lost: hosts may pause for seconds.
STALL_S, STALLS_MAX, LAST_S = 2.0, 4, 10.0
POLL_S = 0.02
ICMP_TRIES, ICMP_S = 5, 0.1
WAIT_S = 0.2  # how often a wait for answers asks whether the test goes on
USUAL_MTUS = (
    *(9_000, 8_942, 8_192, 4_200, 4_096, 2_048, 1_500, 1_492, 1_480, 1_476, 1_462, 1_450, 1_442),
    *(1_430, 1_420, 1_400, 1_380, 1_350, 1_300, 1_280, 1_024, 576),
)
ROUND_SIZES = 16
TESTS_MAX = 64  # of one peer at one port
# Socket options of Linux that Python 3.11 does not name.
IP_MTU_DISCOVER, IP_MTU, IPV6_MTU_DISCOVER, IPV6_MTU = 10, 14, 23, 24
PMTUDISC_PROBE = 3  # sets DF, and sends packets that are longer than the known path MTU


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a probe. arrival: how many of its train had arrived with it."""

    number: int
    sent_ns: int
    arrival: int
    there_ns: int
    back_ns: int


def headers_bytes(family: int) -> int:
    """The length of IP's and UDP's headers."""
    return 28 if family == socket.AF_INET else 48


def resolved(address: str, port: int) -> tuple[int, Any]:
    """Family and socket address of a numeric address; OSError if it is none."""
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    found = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM, flags=flags)[0]
    return int(found[0]), found[4]


class ProbePort:
    """A UDP socket on one device that answers probes and sends them; use it in a `with`.

    ports: it takes a free one of these, or any if none is. token: of this test, TOKEN_BYTES long;
    only probes that carry it are answered.
    """

    def __init__(self, address: str, ports: range, token: bytes) -> None:
        self._token = token
        family, _ = resolved(address, 0)
        self._family = family
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self._set_options()
            self._bind(address, ports)
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        self._arrived: dict[tuple[int, int], int] = {}
        self._sources: set[str] = set()
        self._answers: dict[tuple[int, int], Answer] = {}
        self._peer_token = b""
        self._test = 0  # tells the answers to this call of probe() from older ones
        self._changed = threading.Condition()
        self._ending = False
        self._thread = threading.Thread(target=self._serve, daemon=True, name="weft-doctor")
        self._thread.start()

    @property
    def heard(self) -> int:
        """Probes of the peer that have arrived here."""
        return sum(self._arrived.copy().values())

    def await_from(self, address: str, seconds: float, goes_on: Callable[[], bool]) -> bool:
        """Waits until a probe of the peer has arrived from this address; whether one has."""
        end_s = time.monotonic() + seconds
        while address.partition("%")[0] not in self._sources:
            if time.monotonic() > end_s or not goes_on():
                return False
            time.sleep(POLL_S)
        return True

    def close(self) -> None:
        """Ends the thread and closes the socket."""
        self._ending = True
        self._thread.join()
        self._socket.close()

    def __enter__(self) -> ProbePort:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def probe(
        self,
        address: str,
        port: int,
        token: bytes,
        mtu_bytes: int,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> ProbeFacts:
        """Probes the peer's port for some seconds. OSError if the address cannot be reached.

        goes_on: False ends it early, as when the peer has ended.
        """
        family, target = resolved(address, port)
        if family != self._family:
            raise OSError(f"{address} is of another family than this host's address")
        with self._changed:
            self._answers.clear()
            self._test = secrets.randbelow(1 << 16)
            self._peer_token = token
        self._open(target, goes_on)
        sent, train = self._train(target, goes_on)
        most = min(mtu_bytes, PACKET_BYTES_MAX)
        carried = self._carried(target, most, goes_on) if train else 0
        order = [one.number for one in sorted(train, key=lambda one: one.arrival)]
        latest, late = -1, 0
        for number in order:
            late += number < latest
            latest = max(latest, number)
        best = min(train, key=lambda one: one.back_ns - one.sent_ns, default=None)
        return ProbeFacts(
            sent=sent,
            arrived=max((one.arrival for one in train), default=0),
            answered=len(train),
            late=late,
            rtt_ns_min=best.back_ns - best.sent_ns if best else 0,
            clock_ahead_ns=best.there_ns - (best.sent_ns + best.back_ns) // 2 if best else 0,
            mtu_bytes=mtu_bytes,
            carried_bytes=carried,
            told_bytes=self._told(target),
            told_by=self._told_by(target, most) if 0 < carried < most else "",
        )

    def _set_options(self) -> None:
        self._forbid_fragments(self._socket)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._socket.settimeout(0.05)

    def _forbid_fragments(self, one: socket.socket) -> None:
        if self._family == socket.AF_INET:
            one.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_PROBE)
        else:
            one.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_PROBE)

    def _bind(self, address: str, ports: range) -> None:
        """Takes the last free port of the range, which weft's data paths take from its start."""
        for port in reversed(ports):
            with contextlib.suppress(OSError):
                self._socket.bind(resolved(address, port)[1])
                return
        self._socket.bind(resolved(address, 0)[1])

    def _send(self, target: Any, train: int, number: int, size: int) -> None:
        about = (MAGIC, ASK, train, self._test, self._peer_token, number)
        head = HEAD.pack(*about, time.time_ns(), 0, 0, 0)
        # A packet longer than the interface's MTU, or a full buffer: as if it were lost.
        with contextlib.suppress(OSError):
            self._socket.sendto(head.ljust(size, b"\0"), target)

    def _await(self, train: int, wanted: set[int], seconds: float) -> set[int]:
        """Waits until all wanted numbers are answered; returns those that are."""

        def there() -> set[int]:
            return {number for kind, number in self._answers if kind == train} & wanted

        with self._changed:
            self._changed.wait_for(lambda: there() == wanted, seconds)
            return there()

    def _open(self, target: Any, goes_on: Callable[[], bool]) -> None:
        """Sends short probes, which count nowhere, until one is answered.

        A stateful firewall (conntrack) of the other end drops what comes before that end has sent
        something itself, and no network lost it.
        """
        number = ASK_BYTES_MIN + headers_bytes(self._family)  # by which an answer is known
        for _ in range(OPEN_TRIES):
            self._send(target, SIZES, number, ASK_BYTES_MIN)
            if self._await(SIZES, {number}, TRY_S) or not goes_on():
                return

    def _train(self, target: Any, goes_on: Callable[[], bool]) -> tuple[int, list[Answer]]:
        """Sends the train; the number of packets sent, and the answers.

        Few packets are unanswered at a time, so that a host that pauses has room for all of them.
        """
        given_up, stalls, numbers = 0, 0, range(TRAIN_PACKETS)
        for number in numbers:
            if number % BURST == 0:
                time.sleep(BURST_S)
                if not self._await_count(number - given_up - UNANSWERED_MAX, STALL_S, goes_on):
                    given_up = number - self._count()
                    stalls += 1
                    if stalls == STALLS_MAX or not goes_on():  # enough is lost to judge
                        numbers = range(number)
                        break
            self._send(target, TRAIN, number, TRAIN_BYTES - headers_bytes(self._family))
        if self._count():
            self._await_count(len(numbers), LAST_S, goes_on)
        with self._changed:
            found = [one for (kind, _), one in self._answers.items() if kind == TRAIN]
        return len(numbers), found

    def _count(self) -> int:
        return sum(kind == TRAIN for kind, _ in self._answers)

    def _await_count(self, count: int, seconds: float, goes_on: Callable[[], bool]) -> bool:
        """Waits until this many packets of the train are answered; False if they are not."""
        end_s = time.monotonic() + seconds
        while True:
            left_s = end_s - time.monotonic()
            with self._changed:
                if self._changed.wait_for(lambda: self._count() >= count, min(left_s, WAIT_S)):
                    return True
            if left_s <= WAIT_S or not goes_on():
                return False

    def _carried(self, target: Any, mtu_bytes: int, goes_on: Callable[[], bool]) -> int:
        """The longest packet up to this one that is answered; 0 if none is."""
        usual = sorted({one for one in USUAL_MTUS if one < mtu_bytes} | {mtu_bytes})
        found = self._longest(target, usual, goes_on)
        above = next((one for one in usual if one > found), 0)
        while found and above > found + 1 and goes_on():
            step = max(1, (above - found) // ROUND_SIZES)
            sizes = list(range(found + step, above, step))
            longer = self._longest(target, sizes, goes_on)
            above = next((size for size in sizes if size > longer), above)
            found = max(found, longer)
        return found

    def _longest(self, target: Any, sizes: list[int], goes_on: Callable[[], bool]) -> int:
        """The largest of these packet sizes that is answered; 0 if none is."""
        answered: set[int] = set()
        for _ in range(TRIES):
            for size in set(sizes) - answered:
                self._send(target, SIZES, size, size - headers_bytes(self._family))
            answered = self._await(SIZES, set(sizes), TRY_S)
            if sizes[-1] in answered or not goes_on():
                break
        return max(answered, default=0)

    def _told(self, target: Any) -> int:
        """The path MTU that the kernel has learned; 0 if it does not say."""
        level, option = socket.IPPROTO_IP, IP_MTU
        if self._family == socket.AF_INET6:
            level, option = socket.IPPROTO_IPV6, IPV6_MTU
        with socket.socket(self._family, socket.SOCK_DGRAM) as asked:
            try:
                asked.connect(target)
                return asked.getsockopt(level, option)
            except OSError:
                return 0

    def _told_by(self, target: Any, size: int) -> str:
        """The address that sent an ICMP error for a packet of this size; "" if none does."""
        payload = bytes(size - headers_bytes(self._family))
        address, _, *scope = self._socket.getsockname()
        with socket.socket(self._family, socket.SOCK_DGRAM) as one, contextlib.suppress(OSError):
            hears_errors(one)
            self._forbid_fragments(one)
            one.bind((address, 0, *scope))
            for _ in range(ICMP_TRIES):
                with contextlib.suppress(OSError):  # the error of an earlier packet
                    one.sendto(payload, target)
                time.sleep(ICMP_S)
                if by := next((by for _, by in icmp_errors(one) if by), ""):
                    return by
        return ""

    def _serve(self) -> None:
        while not self._ending:
            try:
                data, source = self._socket.recvfrom(PACKET_BYTES_MAX)
            except OSError:  # no packet, or an ICMP error of one that was sent
                continue
            if len(data) < HEAD.size:
                continue
            magic, kind, train, test, token, number, sent, *rest = HEAD.unpack_from(data)
            if magic != MAGIC or train not in (TRAIN, SIZES):
                continue
            about = (train, test, number, sent)
            if kind == ASK and secrets.compare_digest(token, self._token):
                self._answer(source, about, len(data))
            elif kind == ANSWER and secrets.compare_digest(token, self._peer_token):
                self._on_answer(about, *rest)

    def _answer(self, source: Any, about: tuple[int, int, int, int], length: int) -> None:
        train, test, number, sent = about
        if length < ASK_BYTES_MIN or len(self._arrived) > TESTS_MAX:
            return
        self._sources.add(source[0].partition("%")[0])
        self._arrived[train, test] = arrival = self._arrived.get((train, test), 0) + 1
        answer = (MAGIC, ANSWER, train, test, self._token, number, sent)
        with contextlib.suppress(OSError):
            self._socket.sendto(HEAD.pack(*answer, arrival, length, time.time_ns()), source)

    def _on_answer(
        self, about: tuple[int, int, int, int], arrival: int, length: int, there_ns: int
    ) -> None:
        train, test, number, sent = about
        whole = train == TRAIN or length + headers_bytes(self._family) == number
        with self._changed:
            if test == self._test and whole:
                found = Answer(number, sent, arrival, there_ns, time.time_ns())
                self._answers.setdefault((train, number), found)
                self._changed.notify_all()
