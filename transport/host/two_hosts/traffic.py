"""Traffic of one pair of devices over weft's data paths, and what weft's counters say of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from transport import Connection, Device, Endpoint, Request
from transport.errors import TimedOutError, WeftError
from transport.host.two_hosts.datagrams import ProbePort
from transport.host.two_hosts.facts import (
    TOKEN_BYTES,
    NicFact,
    PathFact,
    ProbeFacts,
    SideFacts,
    bytes_of,
)
from transport.host.two_hosts.sockets import path_ports
from transport.host.two_hosts.talk import Budget, alive, host_of
from transport.telemetry.page import Page, PageError, PeerRow, read_page

MESSAGE_BYTES, IN_FLIGHT = 256 << 10, 16
READY = b"ready"
LATE = "messages did not get through in time"
NO_PATH = "no data path answers"
SEND_S = 1.0
SILENT_S = 4.0  # an answer takes milliseconds; a connection that ended earlier had too little time
PATHS_S = 15.0  # in which each path has been probed several times
HEARD_S = 12.0  # the other end may still wait for answers of the pair before
WAIT_S = 15.0  # longest wait for one message
POLL_S = 0.05
RECOVER_S = 3.0


def paths_to(endpoint: Endpoint, connection: Connection) -> tuple[int, tuple[PathFact, ...]]:
    """The number of engines, and the paths of each engine to the other end's address.

    Without a telemetry page the paths of all engines are counted as those of one.
    """
    where, address = endpoint.telemetry_page, host_of(connection)
    try:
        page = read_page(where) if where is not None else None
    except PageError:
        page = None
    if page is not None:
        found = [
            PathFact(
                engine=int(peer.state["engine"]),
                path=number,
                rtt_ns=path.counters["rtt_ns"],
                usable=path.counters["usable"] == 1,
                probes=path.counters["probes_sent"],
            )
            for peer in _newest(page, address)
            for number, path in enumerate(peer.paths)
        ]
        if found:
            return len(page.engines), tuple(found)
    merged = connection.counters().paths
    return 1, tuple(
        PathFact(
            engine=0,
            path=number,
            rtt_ns=path.rtt_ns,
            usable=path.usable > 0,
            probes=path.probes_sent,
        )
        for number, path in enumerate(merged)
    )


def _newest(page: Page, address: str) -> list[PeerRow]:
    """The peers at this address that carry the connection to it that was opened last.

    A dial by handle has other peers, with paths of their own, than a dial by host and port.
    """
    peers = {one.index: one for one in page.peers if one.state["address"] == address}
    flows = [one.state for one in page.flows if one.state["peer"] in peers]
    newest = max((int(one["connection"]) for one in flows), default=0)
    return [
        peer
        for index, peer in peers.items()
        if any(one["peer"] == index and one["connection"] == newest for one in flows)
    ]


def answered(one: PathFact) -> bool:
    """Whether a path carried packets there and back, and still does."""
    return one.rtt_ns > 0 and one.usable


class PathWatch:
    """The paths of a connection as last seen, which stay known after the connection has ended."""

    def __init__(self, endpoint: Endpoint, connection: Connection) -> None:
        self._endpoint, self._connection = endpoint, connection
        self._began_s = time.monotonic()
        self.engines, self.paths = paths_to(endpoint, connection)

    @property
    def answered(self) -> bool:
        """Whether a path answered when they were last seen."""
        return any(map(answered, self.paths))

    @property
    def is_silent(self) -> bool:
        """Whether no path answers, although there was time for it."""
        return not self.answered and time.monotonic() > self._began_s + SILENT_S

    def look(self) -> bool:
        """Sees the paths again while the connection lasts; returns `answered`."""
        engines, paths = paths_to(self._endpoint, self._connection)
        if alive(self._connection):
            self.engines, self.paths = engines, paths
        return self.answered


def await_paths(
    endpoint: Endpoint, connection: Connection, budget: Budget
) -> tuple[int, tuple[PathFact, ...]]:
    """Waits until every path has answered, the connection fails, or PATHS_S are over.

    Returns paths_to() then.
    """
    end_s = time.monotonic() + budget.left_s(PATHS_S)
    while True:
        engines, paths = paths_to(endpoint, connection)
        done = bool(paths) and all(map(answered, paths))
        if done or not alive(connection) or time.monotonic() > end_s:
            return engines, paths
        time.sleep(POLL_S)


def await_receiver(connection: Connection, budget: Budget) -> None:
    """Waits until the other end receives: its probes of a network that drops long packets take
    seconds longer than this end's, which would count as time of the messages."""
    connection.recv(len(READY), timeout_s=budget.left_s(WAIT_S + PATHS_S))


def send_for(connection: Connection, budget: Budget) -> int:
    """Keeps messages in flight for SEND_S; returns the rate in bytes per second."""
    message, sent = bytes(MESSAGE_BYTES), 0
    requests = [connection.isend(message) for _ in range(IN_FLIGHT)]
    began_s = time.monotonic()
    while time.monotonic() < began_s + SEND_S:
        requests[sent % IN_FLIGHT].wait(budget.left_s(WAIT_S))
        requests[sent % IN_FLIGHT] = connection.isend(message)
        sent += 1
    for request in requests:
        request.wait(budget.left_s(WAIT_S))
    took_s = time.monotonic() - began_s
    connection.send(b"end", timeout_s=budget.left_s(WAIT_S))
    return int((sent + IN_FLIGHT) * MESSAGE_BYTES / took_s)


def receive_all(connection: Connection, budget: Budget) -> Request:
    """Takes messages until a short one says that it was the last.

    Returns the receive that the next message completes: others are still posted.
    """
    buffers = [bytearray(MESSAGE_BYTES) for _ in range(IN_FLIGHT)]
    requests = [connection.irecv_into(buffer) for buffer in buffers]
    while True:
        for at, buffer in enumerate(buffers):
            # The first message may come as late as the other end's probes of its paths end.
            if requests[at].wait(budget.left_s(WAIT_S + PATHS_S)) < MESSAGE_BYTES:
                return requests[(at + 1) % IN_FLIGHT]
            requests[at] = connection.irecv_into(buffer)


def probe(
    port: ProbePort | None, connection: Connection, far_port: int, token: str, mtu_bytes: int
) -> ProbeFacts | None:
    """What probes of the other end's UDP port found; None if it has none, or this end has none."""
    if port is None or far_port == 0:
        return None
    try:
        proof = bytes_of(token, TOKEN_BYTES, "token")
        host = host_of(connection)
        return port.probe(host, far_port, proof, mtu_bytes, lambda: alive(connection))
    except OSError:
        return None


def probe_further(
    ports: Sequence[ProbePort | None],
    nics: Sequence[tuple[NicFact, NicFact]],
    connection: Connection,
    token: str,
    *,
    answers: bool,
) -> tuple[ProbeFacts | None, ...]:
    """What probes found between further pairs of NICs, of this end and of the other one.

    ports: of this end's NICs. answers: sends to no address from which no probe has come, as a
    stranger may have named it.
    """

    def goes_on() -> bool:
        return alive(connection)

    found: list[ProbeFacts | None] = []
    for port, (own, other) in zip(ports, nics, strict=True):
        found.append(None)
        if port is None or other.udp_port == 0:
            continue
        if answers and not port.await_from(other.address, HEARD_S, goes_on):
            continue
        with suppress(OSError):
            proof = bytes_of(token, TOKEN_BYTES, "token")
            found[-1] = port.probe(other.address, other.udp_port, proof, own.mtu_bytes, goes_on)
    return tuple(found)


def heard(port: ProbePort | None) -> int:
    """Probes that have arrived at this port; 0 without one."""
    return 0 if port is None else port.heard


def with_ports(
    endpoint: Endpoint, address: str, engines: int, paths: tuple[PathFact, ...]
) -> tuple[PathFact, ...]:
    """The paths with the UDP ports that they have at this device's address, if these are known.

    A plan of paths (WEFT_PLAN) pairs ports in its own order.
    """
    plain = endpoint.summary().startswith("udp,")
    ports = path_ports(address, engines) if plain else {}
    return tuple(replace(one, port=ports.get((one.engine, one.path), 0)) for one in paths)


def _still_usable(
    endpoint: Endpoint, connection: Connection, paths: tuple[PathFact, ...]
) -> tuple[PathFact, ...]:
    """The paths, of which those that died under load are down. Round trips stay as they were.

    A path that load only delayed answers a probe within RECOVER_S.
    """
    end_s = time.monotonic() + RECOVER_S
    while True:
        down = {
            (one.engine, one.path)
            for one in paths_to(endpoint, connection)[1]
            if not one.usable and one.rtt_ns > 0
        }
        if not down or not alive(connection) or time.monotonic() > end_s:
            break
        time.sleep(POLL_S)
    return tuple(replace(one, usable=(one.engine, one.path) not in down) for one in paths)


def measure(
    endpoint: Endpoint,
    connection: Connection,
    device: Device,
    probes: ProbeFacts | None,
    budget: Budget,
    *,
    sends_first: bool,
    on_phase: Callable[[str], None] = lambda what: None,
) -> SideFacts:
    """Sends and receives on the pair's connection; both ends call it, one of them sends first.

    on_phase: is told what is measured now.
    """
    on_phase("does each data path answer")
    engines, paths = await_paths(endpoint, connection, budget)
    paths = with_ports(endpoint, device.address, engines, paths)
    drops, failed, rate = endpoint.counters().host_drops, "", 0
    if paths and not any(one.rtt_ns for one in paths):  # no message would arrive
        return SideFacts(failed=NO_PATH, engines=engines, paths=paths, probes=probes)
    on_phase("rate, loss under load")
    try:
        if sends_first:
            await_receiver(connection, budget)
        else:
            connection.send(READY, timeout_s=budget.left_s(WAIT_S + PATHS_S))
            after = receive_all(connection, budget)
        rate = send_for(connection, budget)
        if sends_first:
            receive_all(connection, budget)
            connection.send(READY, timeout_s=budget.left_s(WAIT_S))
        else:  # closes the connection next, which would fail receives that have not begun
            after.wait(budget.left_s(WAIT_S))
    except TimedOutError:
        failed = LATE
    except WeftError as error:
        failed = str(error)[:500]
    found = connection.counters()
    return SideFacts(
        failed=failed,
        engines=engines,
        paths=_still_usable(endpoint, connection, paths),
        rate_bytes_per_s=rate,
        segments=found.segments_sent,
        lost=max(0, found.segments_lost - found.spurious_resends),
        arrived=found.segments_received + found.segments_duplicate,
        host_drops=endpoint.counters().host_drops - drops,
        probes=probes,
    )
