"""The end that waits: serves one testing host after another."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

from transport import Connection, Endpoint, Listener
from transport.errors import (
    AddressError,
    ConnectionLostError,
    InvalidArgumentError,
    TimedOutError,
    WeftError,
)
from transport.ground.addresses import is_own
from transport.ground.text import printable
from transport.host.finding import STATES, Finding
from transport.host.two_hosts import every_port
from transport.host.two_hosts.busy import BusyWatch
from transport.host.two_hosts.channel import (
    Channel,
    ChannelListener,
    DataPathChannel,
    TcpChannel,
)
from transport.host.two_hosts.ends import (
    OVER_THE_NETWORK,
    End,
    open_end,
    open_listeners,
    why_unreached,
)
from transport.host.two_hosts.every_port import ALL_PORTS_S
from transport.host.two_hosts.facts import (
    FactError,
    Hello,
    PairStep,
    PortsStep,
    SideFacts,
    Verdict,
    check_hello,
    check_step,
    nic_pairs,
)
from transport.host.two_hosts.ports import DOCTOR_PORT, data_ports, usual_ports
from transport.host.two_hosts.reach import only_loopback, own_text
from transport.host.two_hosts.talk import Budget, host_of
from transport.host.two_hosts.traffic import PathWatch, heard, measure, probe, probe_further
from transport.host.two_hosts.view import seen_by_server

HELLO_S = 15.0  # more than SILENCE_S of the other end, which then judges by what it saw
SESSION_S = 180.0  # longest test of one host, with its eight pairs of devices at most
STEP_S = 60.0
SAY_S = 10.0
ANSWER_S = 8.0
STEPS_MAX = 10_000  # 65,535 ports of each protocol and direction, for eight pairs
ACCEPT_S = 0.2  # how often a wait for a dial looks at the first connection
PAUSE_S = 1.0

NO_ANSWER = (
    "its first message arrived, and none of this host's: let {} pass from this host to it; UDP "
    "from it to this host arrives"
)
NO_REPORT = (
    "what this host measured did not get through to it: UDP from this host to it is lost: "
    "see what it printed"
)
UNLIKE = "install the same version of weft on both hosts; or it is not weft doctor"
LOOPBACK = "name a NIC in WEFT_INTERFACES that has a routed address, or unset it"


def open_listener(endpoint: Endpoint, port: int) -> Listener:
    """The listener that other hosts dial by port: the given one, or the first free usual one."""
    ports = [port] if port else usual_ports()
    if len(ports) == 1 and not port and ports[0] != DOCTOR_PORT:
        raise InvalidArgumentError(
            f"WEFT_CONTROL_PORT={ports[0]} is one port, and a test takes one for itself and one "
            f"for each device: give a range such as {ports[0]}-{ports[0] + 7}, or --port"
        )
    for at, one in enumerate(ports):
        try:
            return endpoint.listen(port=one, open=True)
        except AddressError as error:
            if at + 1 == len(ports):
                raise AddressError(f"{error}; --port N takes another one") from None
    raise AssertionError("there is a port at least")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The test of one host. failed: why it ended early; findings: of the whole test, in
    the words of this host."""

    peer: str
    host: str = ""
    failed: str = ""
    findings: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        """The address of the host, with its name if it is known."""
        return f"{self.peer} ({self.host})" if self.host else self.peer


class Server:
    """Accepts hosts that run `weft doctor --peer`; use it in a `with`.

    port: 0 takes the first free one of WEFT_CONTROL_PORT, or DOCTOR_PORT. A host without the
    secret, if WEFT_SECRET_FILE is set, is refused by weft itself; any other process that reaches
    the port is bounded in time and bytes, and one is served at a time.
    """

    def __init__(self, port: int = 0) -> None:
        self._stack = ExitStack()
        with ExitStack() as stack:
            self.endpoint = stack.enter_context(Endpoint(**OVER_THE_NETWORK))
            self._open = stack.enter_context(open_listener(self.endpoint, port))
            self._listeners = open_listeners(stack, self.endpoint)
            self._channels = stack.enter_context(ChannelListener(self._open.port))
            self._stack = stack.pop_all()
        self.port, self.message_port = self._open.port, self._channels.port
        self.testing = ""  # the host whose test goes on; stays if Ctrl-C or SIGTERM ends it

    def close(self) -> None:
        """Stops listening; a test that is under way ends."""
        self._stack.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def serve_one(self, timeout_s: float) -> Outcome | None:
        """Waits for a host and is its other end; None if none came in time."""
        try:
            front = self._open.accept(timeout_s=timeout_s)
        except TimedOutError:
            return None
        except WeftError as error:
            time.sleep(PAUSE_S)  # the error may stay, as that of too few descriptors
            return Outcome("a host", failed=str(error))
        received = self.endpoint.counters().datagrams_received
        with front, ExitStack() as stack:
            peer = host_of(front)
            end = open_end(stack, self.endpoint, self._listeners)
            watch = PathWatch(self.endpoint, front)
            try:
                hello, talk = self._hello(stack, front, watch, end.hello)
            except FactError as error:
                why = f"{printable(str(error))}: this host has weft {end.hello.version}: {UNLIKE}"
                return Outcome(peer, failed=why)
            except WeftError as error:
                count = self.endpoint.counters().datagrams_received - received
                return Outcome(peer, failed=self._not_greeted(peer, error, watch, count, end))
            outcome = Outcome(peer, printable(hello.host))
            self.testing = outcome.name
            try:
                findings = self._test(front, talk, end, hello, watch)
                outcome = replace(outcome, findings=findings)
            except (WeftError, FactError) as error:
                outcome = replace(outcome, failed=printable(str(error)))
            self.testing = ""
            return outcome

    def _hello(
        self, stack: ExitStack, front: Connection, watch: PathWatch, near: Hello
    ) -> tuple[Hello, Channel]:
        """The first message of a host, and the channel on which it came; `stack` closes that.

        watch: sees the paths meanwhile. near: of this end, for a host that speaks otherwise.
        """
        peer = host_of(front)
        talk: Channel = DataPathChannel(front)

        def goes_on() -> bool:
            watch.look()
            return not self._channels.waits(peer)

        try:
            try:
                hello = talk.hear(Hello, timeout_s=HELLO_S, goes_on=goes_on)
            except TimedOutError:
                over_tcp = self._channels.take(peer)
                if over_tcp is None:
                    raise
                talk = stack.enter_context(over_tcp)
                hello = talk.hear(Hello, timeout_s=HELLO_S)
            return check_hello(hello), talk
        except FactError:
            with suppress(WeftError):  # a host with another version says so, too
                talk.say(near, ANSWER_S)
            raise

    def _not_greeted(
        self, peer: str, error: Exception, watch: PathWatch, datagrams: int, end: End
    ) -> str:
        """Why no first message of a host arrived.

        A host that no data path leads to waits for SILENCE_S, and ends.
        """
        own = [one.address for one in self.endpoint.devices]
        if only_loopback(own) and not is_own(peer):
            return f"this host offers only {own_text(own)}: {LOOPBACK}"
        is_silent = isinstance(error, ConnectionLostError) and watch.is_silent
        if is_silent or isinstance(error, TimedOutError):
            return _silent(datagrams, end.hello)
        return printable(str(error))

    def _test(
        self, front: Connection, talk: Channel, end: End, hello: Hello, watch: PathWatch
    ) -> tuple[Finding, ...]:
        budget = Budget(SESSION_S)
        back = why_unreached(host_of(front), hello.back_port) if hello.back_port else ""
        try:
            talk.say(replace(end.hello, back=back), ANSWER_S)
        except (TimedOutError, ConnectionLostError) as error:
            if isinstance(talk, TcpChannel):
                raise
            if isinstance(error, ConnectionLostError) and not watch.is_silent:
                raise
            raise FactError(NO_ANSWER.format(data_ports(hello))) from None
        longest = Budget(SESSION_S + ALL_PORTS_S + STEP_S)
        addresses = {0: host_of(front)}  # of the other host, by its device
        for _ in range(STEPS_MAX):
            step = talk.hear(PairStep, PortsStep, Verdict, timeout_s=longest.left_s(STEP_S))
            if isinstance(step, PortsStep):
                self._ports(talk, step, end, hello, addresses, longest)
            if isinstance(step, Verdict):
                return tuple(map(_shown, seen_by_server(step.findings)))
            if isinstance(step, PairStep):
                measured = self._pair(talk, step, end, hello, addresses, budget)
                try:
                    talk.say(measured, SAY_S)
                except TimedOutError:
                    raise FactError(NO_REPORT) from None
        raise FactError("the other host asked for too many tests")

    def _pair(
        self,
        talk: Channel,
        step: PairStep,
        end: End,
        hello: Hello,
        addresses: dict[int, str],
        budget: Budget,
    ) -> SideFacts:
        """What this end measures. addresses: gets the one from which the pair's dial came."""
        if step.near not in range(len(hello.devices)) or step.far not in range(len(end.ports)):
            raise FactError("the other host named a device that does not exist")
        before = heard(end.ports[step.far])
        try:
            connection = self._accept(talk, step.far, budget)
        except ConnectionLostError:  # the other host has ended, or cannot be reached any more
            raise
        except WeftError as error:
            return SideFacts(failed=str(error)[:500])
        device, port = self.endpoint.devices[step.far], end.ports[step.far]
        addresses[step.near] = host_of(connection)
        with connection:
            watch = BusyWatch()
            far_port = hello.devices[step.near].udp_port
            mtu_bytes = end.hello.devices[step.far].mtu_bytes
            probes = probe(port, connection, far_port, hello.token, mtu_bytes)
            near, far = hello.devices[step.near], end.hello.devices[step.far]
            pairs, ports = nic_pairs(near, far)[1:], end.ports_of(step.far)
            also = probe_further(
                [ports[two] for _, two in pairs],
                [(far.nics[two], near.nics[one]) for one, two in pairs],
                connection,
                hello.token,
                answers=True,
            )
            overflows = watch.dropped
            talk.check()
            found = measure(self.endpoint, connection, device, probes, budget, sends_first=False)
            return replace(
                found,
                heard=heard(port) - before,
                waited_percent=watch.waited_percent,
                overflows=overflows,
                also=also,
            )

    def _ports(
        self,
        talk: Channel,
        step: PortsStep,
        end: End,
        hello: Hello,
        addresses: dict[int, str],
        budget: Budget,
    ) -> None:
        """Tries ports with the other host; sends only to addresses from which it has dialled."""
        if step.near not in addresses or step.far not in range(len(end.ports)):
            raise FactError("the other host named a device that it has not tested")
        own, target = self.endpoint.devices[step.far].address, addresses[step.near]
        if step.nics:
            own, target = self._further(step, end, hello)
        try:
            if step.to_far:
                every_port.listen(talk, check_step(step), end.hello, own, budget)
            else:
                every_port.send(talk, check_step(step), hello, (own, target), budget)
        except OSError as error:
            if isinstance(error, WeftError):
                raise
            raise FactError(f"ports cannot be tried: {error}") from None

    def _further(self, step: PortsStep, end: End, hello: Hello) -> tuple[str, str]:
        """The addresses of a further pair of NICs of joined devices. FactError if no probe has come
        from that of the other host, which may name a stranger's."""
        near, far = hello.devices[step.near], end.hello.devices[step.far]
        pairs = nic_pairs(near, far)
        if step.nics not in range(len(pairs)):
            raise FactError("the other host named a NIC that does not exist")
        one, two = pairs[step.nics]
        port, target = end.ports_of(step.far)[two], near.nics[one].address
        if port is None or not port.await_from(target, 0.0, lambda: True):
            raise FactError(f"nothing has come from {target} of the other host")
        return far.nics[two].address, target

    def _accept(self, talk: Channel, device: int, budget: Budget) -> Connection:
        """Accepts the dial by handle. Raises the error of `talk` as soon as it fails."""
        end_s = time.monotonic() + budget.left_s(HELLO_S)
        while True:
            talk.check()
            try:
                return self._listeners[device].accept(timeout_s=ACCEPT_S)
            except TimedOutError:
                if time.monotonic() >= end_s:
                    raise


def _silent(datagrams: int, near: Hello) -> str:
    """Why a host that connected sent no message. near: this end's hello."""
    if datagrams == 0:
        return (
            "it connected to the control port, and no datagram of it arrived: let "
            f"{data_ports(near)} pass from it to this host"
        )
    return (
        f"it connected to the control port and {datagrams} datagrams arrived, but no message: let "
        "UDP pass from this host to it; or it is not weft doctor"
    )


def _shown(finding: Finding) -> Finding:
    """The finding as it may be printed; FactError if its state is unknown."""
    if finding.state not in STATES:
        raise FactError("state: unknown")
    subject, found, remedy = map(printable, (finding.subject, finding.found, finding.remedy))
    return Finding(subject, finding.state, found, remedy)
