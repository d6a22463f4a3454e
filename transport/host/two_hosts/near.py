"""The end that tests: connects to the waiting end, measures, and judges."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

from transport import Connection, Endpoint
from transport.errors import ConnectionClosedError, PeerDeadError, TimedOutError, WeftError
from transport.ground.addresses import is_own
from transport.ground.text import printable
from transport.host.finding import PORTS_TRIED, Finding
from transport.host.two_hosts import blocked, channel, judge
from transport.host.two_hosts.blocked import Tried
from transport.host.two_hosts.busy import BusyWatch
from transport.host.two_hosts.channel import Channel, DataPathChannel, TcpChannel
from transport.host.two_hosts.ends import (
    OVER_THE_NETWORK,
    End,
    back_socket,
    open_end,
    why_unreached,
)
from transport.host.two_hosts.every_port import ALL_PORTS_S, batches, listen, send, used
from transport.host.two_hosts.facts import (
    HANDLE_BYTES,
    FactError,
    Hello,
    NicFact,
    PairStep,
    PortsStep,
    SideFacts,
    Verdict,
    bytes_of,
    check_hello,
    check_side,
    nic_pairs,
)
from transport.host.two_hosts.paths import (
    DIAL_FAILED,
    STRANDED,
    PairFacts,
    busy_text,
    unreached_messages,
    untried_control_ports,
)
from transport.host.two_hosts.reach import (
    leads_to_this_host,
    offered,
    only_loopback,
    own_text,
    stranded,
)
from transport.host.two_hosts.talk import Budget, hear, host_of, pieces
from transport.host.two_hosts.traffic import PathWatch, heard, measure, probe, probe_further
from transport.host.two_hosts.view import OTHER, THIS, seen_by_tester

CONNECT_S = 12.0  # longer than the handshake timeout, whose error says more
SILENCE_S = 10.0  # without an answer on any data path
BUSY_S = 240.0  # the other end may serve another host first
SESSION_S = 180.0
REPORT_S = 90.0
SAY_S = 10.0

ENDED = (ConnectionClosedError, PeerDeadError)  # the other end has ended the test
OnProgress = Callable[[str, float], None]


def examine(
    host: str, port: int, progress: OnProgress, *, all_ports: bool = False
) -> list[Finding]:
    """Tests the network to a host on which `weft doctor --serve` runs; bounded in time.

    all_ports: tries every port of both hosts' ranges, too.
    """
    return seen_by_tester(_examine(host, port, progress, all_ports))


def _examine(host: str, port: int, progress: OnProgress, all_ports: bool) -> list[Finding]:
    """As examine(); the findings have the marks of view.py."""
    with Endpoint(**OVER_THE_NETWORK) as endpoint, ExitStack() as stack:
        own = [one.address for one in endpoint.devices]
        if only_loopback(own) and not leads_to_this_host(host):
            before = judge.not_connected("not tried")
            return judge.stranded(before, THIS, own_text(own))
        progress(f"connecting to port {port}, in {CONNECT_S:.0f} s at most", 0.0)
        watch = BusyWatch()
        try:
            front = stack.enter_context(endpoint.connect(host, port, timeout_s=CONNECT_S))
        except WeftError as error:
            found = judge.unreachable(host, port, error)
            is_late = isinstance(error, TimedOutError)
            busy = busy_text(THIS, watch.waited_percent) if is_late else ""
            return judge.doubted(found, busy)
        end = open_end(stack, endpoint, [])
        theirs = offered(endpoint)
        if only_loopback(theirs) and not is_own(host_of(front)):
            before = judge.connected(end.hello)
            return judge.stranded(before, OTHER, ", ".join(sorted(theirs)))
        back_port = back_socket(stack, end.hello.devices[0].address)
        end = replace(end, hello=replace(end.hello, back_port=back_port))
        over_tcp = channel.connect(host_of(front), port)
        if over_tcp is None:
            test = _over_data_paths(endpoint, front, end, (host, port), progress)
        else:
            test = _over_tcp(endpoint, front, end, stack.enter_context(over_tcp), progress)
        return test.run(progress, all_ports=all_ports) if isinstance(test, _Test) else test


def _over_tcp(
    endpoint: Endpoint, front: Connection, end: End, talk: TcpChannel, progress: OnProgress
) -> _Test | list[Finding]:
    """The test whose messages go over TCP, so that both ends learn what no data path carries.

    The findings instead if it does not begin; so does _over_data_paths().
    """
    progress("waiting for the other host, which may serve another one", 0.0)
    try:
        talk.say(end.hello, SAY_S)
        far = check_hello(talk.hear(Hello, timeout_s=BUSY_S))
    except FactError as error:
        findings = judge.unlike(str(error), end.hello)
        with suppress(WeftError):
            talk.say(Verdict(tuple(findings)), SAY_S)
        return findings
    except TimedOutError:
        return [*judge.connected(end.hello), *judge.busy(BUSY_S)]
    except WeftError as error:
        return [*judge.connected(end.hello), *judge.ended(error)]
    return _Test(endpoint, front, end, far, talk, Budget(SESSION_S), {0: host_of(front)})


def _over_data_paths(
    endpoint: Endpoint, front: Connection, end: End, place: tuple[str, int], progress: OnProgress
) -> _Test | list[Finding]:
    """The test whose messages go over data paths, as no TCP port for messages is reached."""
    watch = PathWatch(endpoint, front)
    try:
        far = _greet(front, end.hello, watch, progress)
    except FactError as error:
        return judge.unlike(str(error), end.hello)
    except WeftError as error:
        received = endpoint.counters().datagrams_received
        return _not_greeted(*place, error, watch, received, end.hello)
    talk, budget = DataPathChannel(front), Budget(SESSION_S)
    unreached = tuple(channel.message_ports(place[1]))
    return _Test(endpoint, front, end, far, talk, budget, {0: host_of(front)}, unreached)


def _greet(front: Connection, hello: Hello, watch: PathWatch, progress: OnProgress) -> Hello:
    """Exchanges hellos; waits while data paths answer, as the other end may be busy."""
    silent_until_s = time.monotonic() + SILENCE_S

    def goes_on() -> bool:
        if watch.look():
            progress("waiting for the other host, which may serve another one or run a job", 0.0)
            return True
        progress(f"waiting for an answer on a data path, {SILENCE_S:.0f} s at most", 0.0)
        return time.monotonic() < silent_until_s

    greeting = [front.isend(part) for part in pieces(hello)]
    far = hear(front, Hello, timeout_s=BUSY_S, goes_on=goes_on)
    for part in greeting:
        part.wait(SAY_S)
    return check_hello(far)


def _not_greeted(
    host: str, port: int, error: WeftError, watch: PathWatch, received: int, hello: Hello
) -> list[Finding]:
    """The findings if the other end sent no hello: data paths, another process, or its end.

    A server that heard nothing closes the connection and listens on; one that ended does not.
    """
    has_ended = isinstance(error, ENDED)
    if has_ended and not watch.answered and why_unreached(host, port):
        return [*judge.connected(hello), *judge.ended(error)]
    if watch.answered or (has_ended and not watch.is_silent):
        return judge.no_doctor(host, port, has_ended=has_ended, near=hello)
    message_port = next(iter(channel.message_ports(port)), port)
    return judge.silent(watch.engines, watch.paths, received, hello, message_port)


def _pairs(near: int, far: int) -> list[PairStep]:
    """Each device of both ends in at least one pair, as the ranks of two like hosts use them."""
    return [PairStep(one % near, one % far) for one in range(max(near, far))]


def _phases(progress: OnProgress, title: str, share: float) -> Callable[[str], None]:
    return lambda what: progress(f"{title}: {what}", share)


@dataclass(frozen=True, slots=True)
class _Test:
    """A test whose ends know each other. addresses: of the other host, by its device. unreached:
    the TCP ports for messages, if none is reached. further: the further pairs of NICs of joined
    devices, by number, between which probes passed."""

    endpoint: Endpoint
    front: Connection
    end: End
    far: Hello
    talk: Channel
    budget: Budget
    addresses: dict[int, str]
    unreached: tuple[int, ...] = ()
    further: set[tuple[PairStep, int]] = field(default_factory=set)

    def run(self, progress: OnProgress, *, all_ports: bool) -> list[Finding]:
        """Tests each pair of devices, and tells the other end what was found."""
        near, far = self.end.hello, self.far
        findings = judge.greeted(near, far)
        if self.unreached:
            findings.append(unreached_messages(near, far, self.unreached))
        findings += untried_control_ports(near, far, has_messages=not self.unreached)
        pairs = _pairs(len(near.devices), len(far.devices))
        for number, pair in enumerate(pairs):
            title = judge.title(pair, near, far)
            on_phase = _phases(progress, title, (number + 0.5) / (len(pairs) + 1))
            lost = None
            try:
                near_facts, far_facts, lost = self._pair(pair, on_phase)
            except ENDED as error:
                return [*findings, *judge.ended(error, self._untested(pair, len(pairs)))]
            except (WeftError, FactError) as error:
                near_facts, far_facts = SideFacts(failed=str(error)), SideFacts()
            if lost is not None and isinstance(self.talk, TcpChannel):
                # Its end, and no fault of the network, silenced what was measured meanwhile.
                return [*findings, *judge.ended(lost, self._untested(pair, len(pairs)))]
            facts = PairFacts(pair, near, far, near_facts, far_facts)
            findings += judge.pair(facts, alone=len(pairs) == 1)
            if lost is not None:
                return [*findings, *judge.ended(lost, untested=())]
        if all_ports:
            findings = [one for one in findings if not one.subject.startswith(PORTS_TRIED)]
            try:
                findings += self._all_ports(pairs, progress)
            except ENDED as error:
                return [*findings, *judge.ended(error, untested=())]
        with suppress(WeftError):  # the other host prints that the test ended early
            self.talk.say(Verdict(tuple(findings)), SAY_S)
        return findings

    def _untested(self, pair: PairStep, pairs: int) -> list[str]:
        """The subjects of a pair; they name it if there are several."""
        name = "" if pairs == 1 else f" {judge.title(pair, self.end.hello, self.far)}"
        return [f"{one}{name}" for one in judge.REST]

    def _pair(
        self, pair: PairStep, on_phase: Callable[[str], None]
    ) -> tuple[SideFacts, SideFacts, WeftError | None]:
        """Tests one pair of devices; what either end measured, and as _report()."""
        end, device = self.end, self.far.devices[pair.far]
        if stranded(self.front, end.hello.devices[pair.near], device):
            return SideFacts(failed=STRANDED), SideFacts(), None
        self.talk.say(pair, SAY_S)
        handle = bytes_of(device.handle, HANDLE_BYTES, "handle")
        with ExitStack() as stack:  # the connection stays open until the other end has measured
            timeout_s = self.budget.left_s(CONNECT_S)
            try:
                dialled = self.endpoint.connect(handle, device=pair.near, timeout_s=timeout_s)
            except WeftError as error:
                near_facts = SideFacts(failed=f"{DIAL_FAILED}: {error}")
            else:
                connection = stack.enter_context(dialled)
                self.addresses[pair.far] = host_of(connection)
                near_facts = self._measure(pair, connection, on_phase)
            on_phase("what the other host measured")
            return near_facts, *self._report()

    def _measure(
        self, pair: PairStep, connection: Connection, on_phase: Callable[[str], None]
    ) -> SideFacts:
        """What this end measures on the connection of a pair."""
        own, port = self.endpoint.devices[pair.near], self.end.ports[pair.near]
        on_phase("loss, reordering, MTU and clock of the idle network")
        before, far_port, watch = heard(port), self.far.devices[pair.far].udp_port, BusyWatch()
        mtu_bytes = self.end.hello.devices[pair.near].mtu_bytes
        probes = probe(port, connection, far_port, self.far.token, mtu_bytes)
        near, far = self.end.hello.devices[pair.near], self.far.devices[pair.far]
        pairs, ports = nic_pairs(near, far)[1:], self.end.ports_of(pair.near)
        also = probe_further(
            [ports[one] for one, _ in pairs],
            [(near.nics[one], far.nics[two]) for one, two in pairs],
            connection,
            self.far.token,
            answers=False,
        )
        passed = (at for at, one in enumerate(also, 1) if one is not None and one.answered)
        self.further.update((pair, at) for at in passed)
        overflows = watch.dropped
        found = measure(
            self.endpoint, connection, own, probes, self.budget, sends_first=True, on_phase=on_phase
        )
        return replace(
            found,
            heard=heard(port) - before,
            waited_percent=watch.waited_percent,
            overflows=overflows,
            also=also,
        )

    def _report(self) -> tuple[SideFacts, WeftError | None]:
        """What the other end measured, or why it did not report; the error if it has ended."""
        try:
            told = self.talk.hear(SideFacts, timeout_s=self.budget.left_s(REPORT_S))
            return check_side(told), None
        except ENDED as error:
            return SideFacts(failed="it did not report"), error
        except (WeftError, FactError) as error:
            return SideFacts(failed=str(error)), None

    def _all_ports(self, pairs: Sequence[PairStep], progress: OnProgress) -> list[Finding]:
        """Tries every port of both hosts' ranges between each pair of devices."""
        budget, findings, failed = Budget(ALL_PORTS_S), list[Finding](), ""
        every = [(pair, number) for pair in pairs for number in range(len(self._nics(pair)))]
        for pair, number in every:
            near, far = self._nics(pair)[number]
            name = f"{near.name}>{printable(far.name)}"
            for protocol in ("UDP", "TCP"):
                directions = []
                for to_far in (True, False):
                    hello = self.far if to_far else self.end.hello
                    tried = Tried(to_far, used(hello, udp=protocol == "UDP"), why_left=failed)
                    if not failed:
                        on_phase = _phases(progress, f"{name}: every {protocol} port", 0.5)
                        failed = self._direction((pair, number), protocol, tried, budget, on_phase)
                    directions.append(tried)
                found = blocked.finding(protocol, directions)
                subject = f"{found.subject} {name}" if len(every) > 1 else found.subject
                findings.append(replace(found, subject=subject))
        return findings

    def _nics(self, pair: PairStep) -> list[tuple[NicFact, NicFact]]:
        """The pairs of NICs of a pair of devices, one if no device is joined."""
        near, far = self.end.hello.devices[pair.near], self.far.devices[pair.far]
        return [(near.nics[one], far.nics[two]) for one, two in nic_pairs(near, far)]

    def _direction(
        self,
        at: tuple[PairStep, int],
        protocol: str,
        tried: Tried,
        budget: Budget,
        on_phase: Callable[[str], None],
    ) -> str:
        """Tries the ports of one host; why it ended early, which ends the rest as well.

        at: the pair of devices, and the number of the pair of their NICs.
        """
        pair, number = at
        if pair.far not in self.addresses:
            tried.why_left = "the pair has no connection"
            return ""
        own, target = self.endpoint.devices[pair.near].address, self.addresses[pair.far]
        if number:
            near, far = self._nics(pair)[number]
            own, target = near.address, far.address
            if at not in self.further:
                tried.why_left = f"nothing passes between {own} and {target}"
                return ""
        for batch in batches(tried.of_range):
            way = "to the other host" if tried.to_far else "from the other host"
            on_phase(f"{batch[0]}-{batch[-1]} {way}")
            is_udp = protocol == "UDP"
            step = PortsStep(pair.near, pair.far, number, is_udp, tried.to_far, batch[0], batch[-1])
            try:
                self.talk.say(step, budget.left_s(SAY_S))
                if tried.to_far:
                    found = send(self.talk, step, self.far, (own, target), budget)
                else:
                    found = listen(self.talk, step, self.end.hello, own, budget)
            except ENDED:
                raise
            except (WeftError, FactError, OSError) as error:
                tried.why_left = str(error)
                return str(error)
            tried.add(step.ports, found)
        return ""
