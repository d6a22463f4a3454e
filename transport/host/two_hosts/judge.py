"""Judges what two hosts measured; a subject that nothing was measured of is not judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from transport.errors import AuthenticationError, RefusedError, TimedOutError, VersionMismatchError
from transport.ground.text import printable
from transport.ground.units import bit_rate_text, percent, time_text
from transport.host.finding import ABSENT, BROKEN, LIMITED, NOT_JUDGED, OK, Finding
from transport.host.two_hosts.facts import Hello, PairStep, PathFact, SideFacts
from transport.host.two_hosts.paths import (
    FAMILIES,
    FAMILY,
    FIREWALL,
    IDLE_BROKEN,
    TRY_AGAIN,
    PairFacts,
    answers_text,
    is_black_hole,
    loopback_remedy,
    paths_finding,
    untried_ports,
)
from transport.host.two_hosts.ports import control_ports, data_ports, of_both
from transport.host.two_hosts.traffic import answered
from transport.host.two_hosts.view import FROM, HERE, OTHER, THERE, THIS, TO

IDLE_LIMITED = 0.002
# A sender that looks for the highest rate fills queues and loses a little in them, on a sound
# network too. Each lost segment is sent again, so loss costs as large a share of the rate.
LOAD_LIMITED = 0.02
SEGMENTS_MIN = 1_000  # fewer say nothing about a loss of a thousandth
LATE_LIMITED = 0.01
RATE_LIMITED = 0.5  # of the slower link
NOMINAL = {"veth", "tun", "dummy"}  # kinds of interfaces whose speed the kernel makes up
RTT_LIMITED_NS = 100_000_000
CLOCK_LIMITED_NS = 1_000_000_000
REST = ("data paths", "MTU", "loss", "reordering", "rate", "round trip", "clock")
# Parts of messages of native/control: a listener of a job, a server that is no weft or stopped, and
# hosts of which one has IPv6 alone.
HANDLE_ONLY = "accepts only peers that have a handle"
NO_WEFT = ("does not answer", "the handshake failed", "closed during the handshake")
SECRET_PAGE = 'weft docs operating "A secret"'
MEND = "mend what is broken first"
NO_ROUTE = ("No route to host", "Network is unreachable")


def unreachable(host: str, port: int, error: Exception) -> list[Finding]:
    """The findings if the control connection failed."""
    subject, text = "control port", str(error)
    remedy = f"let TCP port {port} {FIREWALL}"
    if "Address family" in text:
        remedy = (
            f"{host} is of another family than this host's devices: set WEFT_FAMILY to its family "
            "on both hosts, or give its address of the devices' family"
        )
    elif FAMILIES in text:
        remedy = FAMILY
    elif HANDLE_ONLY in text:
        text = f"a job holds port {port} of {host}: it accepts only peers that have a handle"
        remedy = "use the port that weft doctor --serve prints there: weft doctor --peer HOST:PORT"
    elif "ports from" in text or "ports of WEFT_PORT_BASE" in text:
        subject, remedy = "data paths", "give WEFT_PORT_BASE a larger range"
    elif any(one in text for one in NO_WEFT):
        remedy = f"what listens on port {port} is not weft, or is stopped: weft doctor --serve"
    elif "cannot resolve" in text:
        remedy = f"give the address, or make the name known: DNS, or {host} in /etc/hosts"
    elif any(one in text for one in NO_ROUTE):
        remedy = f"is {host} the right address? If so, give this host a route: ip route get {host}"
    elif isinstance(error, VersionMismatchError):
        subject, remedy = "versions", "install the same version of weft on both hosts"
    elif isinstance(error, AuthenticationError):
        subject = "secret"
        remedy = f"copy the same WEFT_SECRET_FILE to both hosts: {SECRET_PAGE}"
    elif isinstance(error, RefusedError):
        remedy = f"run weft doctor --serve on {host}; if it runs: does it print port {port}?"
    elif isinstance(error, TimedOutError):
        remedy = (
            f"a firewall drops TCP port {port}, or {host} is a wrong address or is down: let the "
            f"port {FIREWALL}"
        )
    subjects = dict.fromkeys(("control port", "versions", "secret", *REST))
    reached = subject != "control port"
    found = [_not_judged(one, "no connection") for one in subjects]
    if reached:
        found[0] = Finding("control port", OK, f"{host} port {port} answers")
    at = list(subjects).index(subject)
    found[at] = Finding(subject, BROKEN, printable(text), remedy)
    return found


def not_connected(why: str) -> list[Finding]:
    """The subjects of a connection, if none was tried."""
    return [_not_judged(one, why) for one in ("control port", "versions", "secret")]


def connected(near: Hello) -> list[Finding]:
    """The findings on control port, versions and secret before the other end has said hello."""
    return [
        Finding("control port", OK, "connected"),
        Finding("versions", OK, "the same control protocol; the versions of weft are unknown"),
        _secret(near.has_secret),
    ]


def unlike(why: str, near: Hello) -> list[Finding]:
    """The findings if the other end's first message is not what this version expects."""
    control, _, secret = connected(near)
    found = f"the weft doctor of {OTHER} speaks otherwise: {printable(why)}"
    found += f"; {THIS} has weft {near.version}"
    remedy = "install the same version of weft on both hosts; or is that not weft doctor --serve?"
    versions = Finding("versions", BROKEN, found, remedy)
    return [control, versions, secret, *(_not_judged(one, "not tested") for one in REST)]


def silent(
    engines: int, paths: Sequence[PathFact], received: int, near: Hello, message_port: int
) -> list[Finding]:
    """The findings if the control connection was made, and no data path answered.

    message_port: of the other end, which this end did not reach either.
    """
    kind = "UDP" if near.is_udp else "RDMA"
    lost = (
        f"no {kind} packet of the peer arrived: those from the peer to this host are dropped; "
        "weft doctor --serve there says whether those to it are, too"
    )
    if received:
        lost = f"{kind} packets to the peer are dropped: {received} arrived from it, no answer"
    text = f"{answers_text(engines, paths)}: {lost}; what arrived there is unknown, as TCP port "
    text += f"{message_port} of it is not reached either"
    return [
        *connected(near),
        Finding("data paths", BROKEN, text, f"let {data_ports(near)} {FIREWALL}"),
        *(_not_judged(one, "no data path") for one in REST[1:]),
    ]


def no_doctor(host: str, port: int, *, has_ended: bool, near: Hello) -> list[Finding]:
    """The findings if no message of the test came, and not because data paths are silent.

    has_ended: whether the other end closed the connection; else the wait for a message is over.
    """
    did, other = "sent no message of the test", "it serves another host"
    if has_ended:
        did = "ended the connection without a message of the test"
        other = "that was stopped or gave up"
    found = (
        f"the process at {host} port {port} {did}: it is a job's, not weft doctor --serve, unless "
        f"{other}"
    )
    remedy = (
        "use the port that weft doctor --serve printed: weft doctor --peer HOST:PORT; if it is "
        "this one, see what it printed"
    )
    return [
        *connected(near),
        Finding("other host", BROKEN, printable(found), remedy),
        *(_not_judged(one, "the test did not begin") for one in REST),
    ]


def busy(seconds: float) -> list[Finding]:
    """The findings if the other end served other hosts for this long."""
    found = f"its weft doctor --serve served other hosts for {seconds:.0f} s"
    return [
        Finding("other host", BROKEN, found, "repeat the test when theirs have ended"),
        *(_not_judged(one, "the test did not begin") for one in REST),
    ]


def stranded(subjects: Sequence[Finding], where: str, addresses: str) -> list[Finding]:
    """The findings if a host offers nothing but loopback addresses, which no path leads to.

    subjects: the findings so far. where: THIS or OTHER.
    """
    found = f"{where} offers only loopback addresses: {addresses}"
    return [
        *subjects,
        Finding("data paths", BROKEN, found, loopback_remedy(where)),
        *(_not_judged(one, "no data path") for one in REST[1:]),
    ]


def ended(error: Exception, untested: Sequence[str] = REST) -> list[Finding]:
    """The findings if the other end ended during the test: that, and what was not tested."""
    found = f"its weft doctor --serve ended, or ended this test: {printable(str(error))}"
    remedy = "see what it printed, start it again, and repeat the test"
    return [
        Finding("other host", BROKEN, found, remedy),
        *(_not_judged(one, "the test ended early") for one in untested),
    ]


def greeted(near: Hello, far: Hello) -> list[Finding]:
    """The findings on hosts, control port, versions, secret and devices, from both hellos."""
    text = (
        f"weft {near.version} {HERE}, {printable(far.version)} {THERE}; the same control protocol"
    )
    state, remedy = OK, ""
    if near.version != far.version:
        state, remedy = LIMITED, "install the same version of weft on both hosts"
    control = Finding("control port", OK, f"{THIS} connected to {OTHER}, and back")
    larger = "give WEFT_CONTROL_PORT a larger range"
    back = f"{THIS} connected to {OTHER}; back, to TCP port {near.back_port} of {THIS}"
    if near.back_port == 0:
        control = Finding("control port", NOT_JUDGED, f"{back}: no port was free", larger)
    elif far.back:
        firewall = f"let {control_ports(near)} {FIREWALL}"
        if "-" not in near.control_port:
            firewall = f"the port differs in each run: {firewall}"
        control = Finding("control port", BROKEN, f"{back}: {printable(far.back)}", firewall)
    return [
        _hosts(near, far),
        control,
        Finding("versions", state, text, remedy),
        _secret(near.has_secret),
        _devices(near, far),
    ]


def _hosts(near: Hello, far: Hello) -> Finding:
    """Which host is which: their names and addresses."""
    texts = [
        f"{where} {printable(hello.host)} ({printable(', '.join(_addresses(hello)))})"
        for where, hello in ((HERE, near), (THERE, far))
    ]
    return Finding("hosts", OK, "; ".join(texts))


def _addresses(hello: Hello) -> list[str]:
    return [one.address for one in hello.devices]


def _devices(near: Hello, far: Hello) -> Finding:
    """Whether each device has a partner, and both hosts the same number of paths."""
    names = [", ".join(printable(one.name) for one in hello.devices) for hello in (near, far)]
    text, remedies = f"{names[0]} {HERE}, {names[1]} {THERE}", []
    if len(near.devices) != len(far.devices):
        text += "; a device without a partner shares one with another device"
        remedies.append(
            "is a NIC down, or not named? weft doctor on both hosts; WEFT_INTERFACES or "
            "WEFT_RDMA_DEVICES"
        )
    for where, hello in ((HERE, near), (THERE, far)):
        if hello.down:
            text += f"; {printable(hello.down)} {where} is down and not used"
    if near.paths != far.paths:
        least = min(near.paths, far.paths)
        text += f"; {near.paths} paths {HERE}, {far.paths} {THERE}: connections use {least}"
        remedies.append("give both hosts the same WEFT_PATHS")
    state = LIMITED if remedies else OK
    return Finding("devices", state, text, "; ".join(remedies))


def title(step: PairStep, near: Hello, far: Hello) -> str:
    """The names of the two devices of a pair."""
    return f"{near.devices[step.near].name}>{printable(far.devices[step.far].name)}"


def pair(facts: PairFacts, *, alone: bool) -> list[Finding]:
    """The report on one pair of devices; its subjects name the pair unless it is alone."""
    idle = (_mtu, _loss, _reordering)
    before = [paths_finding(facts), *untried_ports(facts)]
    each = [_named(judged(one), one.title) for one in facts.nics for judged in idle]
    if len(facts.nics) == 1:
        before, each = [*before, *(judged(facts) for judged in idle)], []
    else:
        before.append(_loss_under_load(facts))
    after = [_rate(facts), _round_trip(facts), _clock(facts)]
    if not alone:
        before, after = ([_named(one, facts.title) for one in some] for some in (before, after))
    return doubted([*before, *each, *after], facts.busy)


def _named(finding: Finding, names: str) -> Finding:
    return replace(finding, subject=f"{finding.subject} {names}")


def doubted(findings: list[Finding], busy: str) -> list[Finding]:
    """The findings; if a host was busy, with a note that this may be the reason of a fault.

    A time that was measured on a busy host proves nothing.
    """
    if not busy:
        return findings
    note = f"{busy}: if that is the reason, {TRY_AGAIN}"
    return [
        replace(one, remedy=f"{one.remedy}; {note}") if one.state in (BROKEN, LIMITED) else one
        for one in findings
    ]


def _not_judged(subject: str, why: str) -> Finding:
    return Finding(subject, NOT_JUDGED, why, MEND)


def _secret(has: bool) -> Finding:
    if has:
        return Finding("secret", OK, "both hosts have the same")
    return Finding(
        "secret",
        ABSENT,
        "neither host has one",
        f"optional; it keeps strangers out: {SECRET_PAGE}",
    )


def _no_probes(subject: str, facts: PairFacts) -> Finding:
    """No datagram outside of the data paths came back."""
    ends = (
        (facts.near, facts.near.devices[facts.step.near].udp_port),
        (facts.far, facts.far.devices[facts.step.far].udp_port),
    )
    if not any(map(answered, facts.here.paths)):
        return _not_judged(subject, "not tested")
    remedy = f"let {of_both(data_ports(facts.near), data_ports(facts.far))} {FIREWALL}"
    if any(_is_outside(port, hello.port_base) for hello, port in ends):
        remedy = (
            "probes need one UDP port more than weft on each host: give WEFT_PORT_BASE a larger "
            "range"
        )
    return Finding(subject, NOT_JUDGED, "no probe was answered", remedy)


def _is_outside(port: int, port_base: str) -> bool:
    """Whether an end has no port for probes among those of its WEFT_PORT_BASE, which names some."""
    first, _, last = port_base.partition("-")
    return port == 0 or (first != "0" and not int(first) <= port <= int(last or first))


def _mtu(facts: PairFacts) -> Finding:
    found, holes, short = [], False, False
    for way, one in facts.probes:
        if one.carried_bytes == 0:
            continue
        if one.carried_bytes >= one.mtu_bytes:
            found.append(f"{way} {one.carried_bytes} bytes, as the interface")
            continue
        told = not is_black_hole(one)
        holes, short = holes or not told, True
        found.append(
            f"{way} {one.carried_bytes} of the interface's {one.mtu_bytes} bytes"
            + (
                _reporter(facts, one.told_by)
                if told
                else "; longer packets are dropped, and no router reports it"
            )
        )
    if not found:
        return _no_probes("MTU", facts)
    text = "; ".join(found)
    near, far = facts.near.devices[facts.step.near], facts.far.devices[facts.step.far]
    if near.mtu_bytes != far.mtu_bytes:
        text += f"; interface {HERE} {near.mtu_bytes}, {THERE} {far.mtu_bytes}"
    if holes:
        return Finding(
            "MTU",
            BROKEN,
            text,
            f"set the MTU of switches and interfaces alike{_mtus(facts)}, or let ICMP pass, and "
            "remove filters of long packets: TCP and NCCL's bootstrap hang on such a path",
        )
    if short:
        remedy = "raise the MTU between the hosts, or lower it on the interfaces"
        return Finding("MTU", LIMITED, text, remedy)
    return Finding("MTU", OK if len(found) == 2 else NOT_JUDGED, text)


def _reporter(facts: PairFacts, told_by: str) -> str:
    """That an ICMP error came, and whether a router or one of the two hosts sent it."""
    ends = {facts.near.devices[facts.step.near].address, facts.far.devices[facts.step.far].address}
    if not told_by:
        return ", as the kernel knows"
    return f", as {'a host' if told_by in ends else 'a router'} reports ({printable(told_by)})"


def _mtus(facts: PairFacts) -> str:
    """The MTUs of the two interfaces in brackets, if they differ."""
    near, far = facts.near.devices[facts.step.near], facts.far.devices[facts.step.far]
    if near.mtu_bytes == far.mtu_bytes:
        return ""
    return f" ({near.mtu_bytes} {HERE}, {far.mtu_bytes} {THERE})"


def _loss(facts: PairFacts) -> Finding:
    """Loss of the idle network, from probes, and under load, from weft's counters."""
    if not facts.probes:
        return _no_probes("loss", facts)
    shares = _idle_losses(facts)
    each = [f"{way} {percent(x, 2)}" for (way, _), x in zip(facts.probes, shares, strict=True)]
    text = f"idle: {', '.join(each)}"
    loaded: list[float] = []
    for way, side, other in ((TO, facts.here, facts.there), (FROM, facts.there, facts.here)):
        if side.segments >= SEGMENTS_MIN and not facts.of_nics:  # counted for the whole device
            text += ", " if loaded else "; under load: "
            loaded.append(_lost_share(side, other))
            text += f"{way} {percent(loaded[-1], 2)} of {side.segments} segments"
    drops = facts.here.host_drops + facts.there.host_drops
    if drops:
        text += f"; socket buffers of the hosts dropped {drops}"
    lost = max(one.sent - one.arrived for _, one in facts.probes)
    overflows = facts.here.overflows + facts.there.overflows
    if max(shares) > IDLE_LIMITED and overflows >= lost:
        text += f"; the hosts received and dropped {overflows} packets meanwhile"
        remedy = "a host was busy, and no network lost them: try again when both are idle"
        return Finding("loss", NOT_JUDGED, text, remedy)
    if max(shares) > IDLE_LIMITED:
        state = BROKEN if max(shares) > IDLE_BROKEN else LIMITED
        remedy = "look at the error counters of NICs and switches, at cables and transceivers"
        return Finding("loss", state, text, remedy)
    if max(loaded, default=0.0) > LOAD_LIMITED:
        if facts.drops_long_packets:
            remedy = "see MTU: dropped long packets count as lost ones: mend it first"
            return Finding("loss", NOT_JUDGED, text, remedy)
        remedy = "queues are full: let switches mark ECN, or give them larger queues"
        if drops:
            remedy = "raise net.core.rmem_max and WEFT_SOCKET_BUFFER_BYTES"
        return Finding("loss", LIMITED, text, remedy)
    if len(shares) + len(loaded) < (2 if facts.of_nics else 4):
        return Finding("loss", NOT_JUDGED, text, "the rest was not measured: see the other lines")
    return Finding("loss", OK, text)


def _idle_losses(facts: PairFacts) -> list[float]:
    """The shares of probes that did not arrive, of each direction with probes."""
    return [1 - min(one.arrived / one.sent, 1.0) for _, one in facts.probes]


def _lost_share(side: SideFacts, other: SideFacts) -> float:
    """The share of a side's segments that did not arrive at the other one, as that one counted.

    A sender takes segments for lost whose acknowledgments were; its count is used if the other end
    has none.
    """
    lost = max(0, side.segments - other.arrived) if other.arrived else side.lost
    return lost / side.segments


def _loss_under_load(facts: PairFacts) -> Finding:
    """Loss of all paths of joined devices, from weft's counters, which tell no NIC."""
    sides = [(TO, facts.here, facts.there), (FROM, facts.there, facts.here)]
    loads = [one for one in sides if one[1].segments >= SEGMENTS_MIN]
    shares = [_lost_share(side, other) for _, side, other in loads]
    text = ", ".join(
        f"{way} {percent(share, 2)} of {side.segments} segments"
        for (way, side, _), share in zip(loads, shares, strict=True)
    )
    if max(shares, default=0.0) > LOAD_LIMITED:
        remedy = (
            "see loss and MTU of each pair of NICs; else queues are full: let switches mark ECN"
        )
        lossy = [
            one.title for one in facts.nics if max(_idle_losses(one), default=0) > IDLE_LIMITED
        ]
        if lossy:
            remedy = f"see loss {', '.join(lossy)}, which loses packets when idle: mend it first"
        return Finding("loss under load", LIMITED, text, remedy)
    if len(shares) < len(sides):
        return _not_judged("loss under load", text or "not measured")
    return Finding("loss under load", OK, text)


def _reordering(facts: PairFacts) -> Finding:
    if not facts.probes:
        return _no_probes("reordering", facts)
    worst = max(one.late / one.arrived for _, one in facts.probes if one.arrived)
    each = (f"{way} {one.late} of {one.arrived} packets" for way, one in facts.probes)
    text = f"{', '.join(each)} of one pair of ports were overtaken"
    if worst > LATE_LIMITED:
        remedy = "let switches hash flows and not spread packets, or see weft docs policies loss"
        return Finding("reordering", LIMITED, text, remedy)
    return Finding("reordering", OK, text)


def _rate(facts: PairFacts) -> Finding:
    rates = facts.here.rate_bytes_per_s, facts.there.rate_bytes_per_s
    if not all(rates):
        return _not_judged("rate", "not measured in both directions")
    devices = facts.near.devices[facts.step.near], facts.far.devices[facts.step.far]
    to, back = (bit_rate_text(one, 4) for one in rates)
    text = f"{to} {TO}, {back} {FROM}, over one connection"
    if virtual := sorted({kind for one in devices for kind in one.kind.split("+")} & NOMINAL):
        text += f"; a {' or '.join(virtual)} device has no speed of its own"
        remedy = (
            "compare it with the speed of the NICs that carry it; with none, only CPUs limit it"
        )
        return Finding("rate", NOT_JUDGED, text, remedy)
    if not all(one.speed_mbps for one in devices):
        remedy = "compare it with the speed of the NICs, which the kernel does not say"
        return Finding("rate", NOT_JUDGED, text, remedy)
    link = min(one.speed_mbps for one in devices) * 1e6 / 8
    text += f"; the link has {bit_rate_text(link)}"
    if min(rates) < RATE_LIMITED * link:
        remedy = "see loss and MTU; else engines are short of CPU: weft docs operating Processors"
        return Finding("rate", LIMITED, text, remedy)
    return Finding("rate", OK, text)


def _round_trip(facts: PairFacts) -> Finding:
    times = [one.rtt_ns for one in facts.here.paths if answered(one)]
    if not times:
        return _not_judged("round trip", "no path answers")
    text = f"{time_text(min(times))} to {time_text(max(times))} over {len(times)} idle paths"
    if min(times) > RTT_LIMITED_NS:
        remedy = "weft is made for short paths: weft docs operating Limits"
        return Finding("round trip", LIMITED, text, remedy)
    return Finding("round trip", OK, text)


def _clock(facts: PairFacts) -> Finding:
    one = facts.here.probes
    if one is None or not one.answered:
        return _no_probes("clock", facts)
    error = one.rtt_ns_min // 2
    ahead = one.clock_ahead_ns
    which = "ahead" if ahead >= 0 else "behind"
    text = (
        f"the clock of {OTHER} is {time_text(abs(ahead))} {which}, give or take {time_text(error)}"
    )
    if abs(ahead) - error > CLOCK_LIMITED_NS:
        remedy = "synchronize the clocks (chrony, ntpd): weft needs none, but times in logs differ"
        return Finding("clock", LIMITED, text, remedy)
    return Finding("clock", OK, text)
