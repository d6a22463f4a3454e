"""Tries every port of a range in one direction, for `weft doctor --peer --all-ports`.

The end whose ports are tried opens a batch of them, and the other end sends to each. Over UDP a
port passes once a datagram has arrived there; over TCP, once a connection is complete. An ICMP
error (RFC 792, RFC 4443) or a reset tells a firewall that rejects from one that drops.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
import struct
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, suppress

from transport.host.two_hosts.channel import Channel
from transport.host.two_hosts.datagrams import resolved
from transport.host.two_hosts.facts import (
    PORTS_MAX,
    TOKEN_BYTES,
    Hello,
    PortsFact,
    PortsStep,
    bytes_of,
    check_ports,
)
from transport.host.two_hosts.icmp import hears_errors, icmp_errors
from transport.host.two_hosts.talk import Budget

MAGIC = b"WFDP"
DATAGRAM = struct.Struct("!4s16sH")  # magic, token of the end that listens, port
# Loss may cost some of the tries; a port that misses all of them counts as blocked.
UDP_ROUNDS, EACH = 4, 2
TCP_ROUNDS, TCP_S = 3, 1.5  # Linux sends a SYN at 0 and 1 s
ALL_PORTS_S = 180.0  # of all ranges together
PASS_MIN = 32  # if none of so many passes in a round, no later one does
SETTLE_S = 0.3  # without a datagram, after which a round is over
ROUND_S = 10.0  # longest round, if strangers keep sending
BURST, BURST_S = 64, 0.001
ANSWER_S = 30.0  # of the other end, which may be busy
SPARE_FILES = 128
UNREACHABLE = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM}


def batches(ports: range) -> Iterator[range]:
    """The range in parts that the descriptors of this process allow."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else SPARE_FILES
    size = max(1, min(PORTS_MAX, soft - used - SPARE_FILES))
    return (ports[at : at + size] for at in range(0, len(ports), size))


def pairs_of(ports: Iterable[int]) -> tuple[int, ...]:
    """Ports as first and last ones of ranges, in turn."""
    found: list[int] = []
    for one in sorted(ports):
        if found and found[-1] == one - 1:
            found[-1] = one
        else:
            found += [one, one]
    return tuple(found)


def ports_of(pairs: Collection[int]) -> set[int]:
    """The reverse of pairs_of()."""
    numbers = list(pairs)
    found: set[int] = set()
    for first, last in zip(numbers[::2], numbers[1::2], strict=True):
        found |= set(range(first, last + 1))
    return found


def listen(talk: Channel, step: PortsStep, near: Hello, address: str, budget: Budget) -> PortsFact:
    """Opens the ports of a step at an address of this host; returns what passed them.

    near: of this end. OSError if the address is none of this host.
    """
    with ExitStack() as stack:
        opened = _opened(stack, step, address)
        busy = set(step.ports) - opened.keys()
        talk.say(PortsFact(busy=pairs_of(busy)), budget.left_s(ANSWER_S))
        missing = set(opened)
        token = bytes_of(near.token, TOKEN_BYTES, "token")
        while True:
            told = _told(talk, budget)
            if told.is_last:
                return told
            _gather(opened, missing, token)
            talk.say(PortsFact(blocked=pairs_of(missing)), budget.left_s(ANSWER_S))


def send(
    talk: Channel, step: PortsStep, far: Hello, addresses: tuple[str, str], budget: Budget
) -> PortsFact:
    """Sends to the ports of a step; returns which did not pass, as the other end does.

    far: of the end that listens. addresses: of this end and of that one.
    """
    busy = ports_of(_told(talk, budget).busy)
    wanted = set(step.ports) - busy
    if step.udp:
        token = bytes_of(far.token, TOKEN_BYTES, "token")
        blocked, rejected, by = _send_udp(talk, wanted, token, addresses, budget)
    else:
        blocked, rejected, by = _connect_all(wanted, addresses, budget)
    found = PortsFact(
        busy=pairs_of(busy),
        blocked=pairs_of(blocked),
        rejected=pairs_of(rejected & blocked),
        by=by,
        is_last=True,
    )
    talk.say(found, budget.left_s(ANSWER_S))
    return found


def _told(talk: Channel, budget: Budget) -> PortsFact:
    return check_ports(talk.hear(PortsFact, timeout_s=budget.left_s(ANSWER_S)))


def _opened(stack: ExitStack, step: PortsStep, address: str) -> dict[int, socket.socket]:
    """A socket at each port that is free."""
    found = {}
    for port in step.ports:
        family, place = resolved(address, port)
        kind = socket.SOCK_DGRAM if step.udp else socket.SOCK_STREAM
        one = stack.enter_context(socket.socket(family, kind))
        with suppress(OSError):
            if not step.udp:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(place)
            if not step.udp:
                one.listen()
            one.setblocking(False)
            found[port] = one
    return found


def _gather(opened: dict[int, socket.socket], missing: set[int], token: bytes) -> None:
    """Removes the ports whose datagrams have arrived, until none is missing or none arrives."""
    poll = select.poll()
    by_descriptor = {opened[port].fileno(): port for port in missing}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    end_s = time.monotonic() + ROUND_S
    while missing and time.monotonic() < end_s:
        ready = poll.poll(SETTLE_S * 1_000)
        if not ready:
            return
        for descriptor, _ in ready:
            port = by_descriptor[descriptor]
            try:
                data = opened[port].recv(DATAGRAM.size + 1)
            except OSError:
                continue
            if data == DATAGRAM.pack(MAGIC, token, port):
                missing.discard(port)
                poll.unregister(descriptor)


def _send_udp(
    talk: Channel, wanted: set[int], token: bytes, addresses: tuple[str, str], budget: Budget
) -> tuple[set[int], set[int], str]:
    """Ports that no datagram reached, those of them with an ICMP error, and who sent it."""
    own, target = addresses
    family, place = resolved(own, 0)
    missing, rejected, by = set(wanted), set[int](), ""
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        hears_errors(one)
        one.bind(place)
        one.setblocking(False)
        for _ in range(UDP_ROUNDS):
            for at, port in enumerate(sorted(missing) * EACH):
                if at % BURST == 0:
                    time.sleep(BURST_S)
                for _ in range(2):  # the first call may report an error of an earlier datagram
                    try:
                        one.sendto(DATAGRAM.pack(MAGIC, token, port), resolved(target, port)[1])
                        break
                    except PermissionError:  # of a firewall of this host
                        rejected.add(port)
                        by = own
                    except OSError:
                        continue
            talk.say(PortsFact(), budget.left_s(ANSWER_S))
            told = _told(talk, budget)
            missing &= ports_of(told.blocked)
            for port, source in icmp_errors(one):
                rejected.add(port)
                by = by or source
            if not missing or (missing == wanted and len(wanted) >= PASS_MIN):
                break
    return missing, rejected, by


def _connect_all(
    wanted: set[int], addresses: tuple[str, str], budget: Budget
) -> tuple[set[int], set[int], str]:
    """Ports that no connection reached, those of them that were refused, and by whom.

    The connections of a round have one source port, as a firewall may drop the answers to some:
    the next round takes another one if none has passed.
    """
    missing, rejected, source = set(wanted), set[int](), 0
    for _ in range(TCP_ROUNDS):
        if not missing:
            break
        budget.left_s(TCP_S)
        one_round = _Round(missing, addresses, source)
        source = one_round.source if one_round.passed else 0
        missing -= one_round.passed
        rejected |= one_round.refused
        if one_round.refused == wanted:
            break
    return missing, rejected, ""


class _Round:
    """A connection to each port, for TCP_S at most: which passed, and which were refused."""

    def __init__(self, wanted: set[int], addresses: tuple[str, str], source: int) -> None:
        self.source = source
        self.passed, self.refused = set[int](), set[int]()
        with ExitStack() as stack:
            self._await(dict(self._begun(stack, wanted, addresses)))

    def _begun(
        self, stack: ExitStack, wanted: set[int], addresses: tuple[str, str]
    ) -> Iterator[tuple[int, tuple[int, socket.socket]]]:
        """The connections by descriptor, each with its port."""
        own, target = addresses
        for at, port in enumerate(sorted(wanted)):
            if at % BURST == 0:
                time.sleep(BURST_S)
            family, place = resolved(own, self.source)
            one = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # A reset at the end, as a port that waits for the last packets is not free.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.bind(place)
            self.source = one.getsockname()[1]
            self._note(port, one.connect_ex(resolved(target, port)[1]))
            yield one.fileno(), (port, one)

    def _await(self, pending: dict[int, tuple[int, socket.socket]]) -> None:
        poll = select.poll()
        for descriptor in pending:
            poll.register(descriptor, select.POLLOUT)
        end_s = time.monotonic() + TCP_S
        while pending and (left_s := end_s - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left_s * 1_000):
                port, one = pending.pop(descriptor)
                poll.unregister(descriptor)
                self._note(port, one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def _note(self, port: int, error: int) -> None:
        if error == 0:
            self.passed.add(port)
        elif error in UNREACHABLE:
            self.refused.add(port)


def used(hello: Hello, *, udp: bool) -> range:
    """The ports of which processes of a host take theirs; empty if they are unknown."""
    setting = hello.port_base if udp else hello.control_port
    if udp and setting != "0" and "-" not in setting:
        return range(int(setting), min(65_535, int(setting) + hello.sockets - 1) + 1)
    first, dash, last = (setting if "-" in setting else hello.free_ports).partition("-")
    return range(max(1, int(first)), int(last) + 1) if dash else range(0)
