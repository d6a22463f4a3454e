"""Judges the data paths of a pair of devices: which are silent, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from transport.ground.text import printable
from transport.host.finding import BROKEN, LIMITED, NOT_JUDGED, OK, PORTS_TRIED, Finding
from transport.host.two_hosts.facts import (
    DeviceFact,
    Hello,
    NicFact,
    PairStep,
    PathFact,
    ProbeFacts,
    SideFacts,
    nic_pairs,
)
from transport.host.two_hosts.ports import control_ports, data_ports, of_both
from transport.host.two_hosts.talk import TOO_LONG
from transport.host.two_hosts.traffic import LATE, answered
from transport.host.two_hosts.view import FROM, HERE, OTHER, THERE, THIS, TO
from transport.host.uses import is_loopback

PAGE = 'weft docs operating "Ports and firewalls"'
FIREWALL = f"pass in both directions: {PAGE}"
DIAL_FAILED = "a dial by handle failed"
TRY_AGAIN = "try again when it is idle"
STRANDED = "no path leads to the loopback address of another host"
FAMILIES = "different address families"
FAMILY = "set the same WEFT_FAMILY on both hosts: ipv4 or ipv6, of which each has an address"
SILENT_CHANCE = 1e-4  # that loss silences a path; below it, a firewall is the likely cause
BUSY_PERCENT = 20
NIC_FIELDS = ("name", "address", "mtu_bytes", "udp_port")
IDLE_BROKEN = 0.03  # weft repairs loss, but an idle network that loses so many is defective


def busy_text(host: str, waited_percent: int) -> str:
    """That a host had too little CPU, in words; "" if it had enough."""
    if waited_percent < BUSY_PERCENT:
        return ""
    return f"{host} was busy (a thread waited {waited_percent} % of the time for a CPU)"


@dataclass(frozen=True, slots=True)
class PairFacts:
    """Everything that both ends measured on one pair of devices."""

    step: PairStep
    near: Hello
    far: Hello
    here: SideFacts
    there: SideFacts
    of_nics: bool = False  # the paths and probes of one pair of NICs of joined devices
    is_further: bool = False  # a pair of NICs after the first

    @property
    def nics(self) -> list[PairFacts]:
        """The facts of each tested pair of NICs; itself if no device is joined."""
        near, far = self.near.devices[self.step.near], self.far.devices[self.step.far]
        pairs = nic_pairs(near, far)
        if len(pairs) == 1 or self.of_nics:
            return [self]
        return [self._of_nics(number, pair) for number, pair in enumerate(pairs)]

    def _of_nics(self, number: int, pair: tuple[int, int]) -> PairFacts:
        near, far = self.near.devices[self.step.near], self.far.devices[self.step.far]

        def of(hello: Hello, device: DeviceFact, nic: NicFact) -> Hello:
            one = replace(device, also=(), **{k: getattr(nic, k) for k in NIC_FIELDS})
            return replace(hello, devices=(one,))

        def side(facts: SideFacts) -> SideFacts:
            paths = tuple(
                one
                for one in facts.paths
                if (one.path % len(near.nics), one.path % len(far.nics)) == pair
            )
            probes = next(iter((facts.probes, *facts.also)[number : number + 1]), None)
            count = facts.heard
            if number:  # the waiting end sends probes of a further pair once it has heard one
                count = 0 if probes is None else 1 if facts is self.there else probes.answered
            return replace(facts, paths=paths, probes=probes, also=(), heard=count)

        return PairFacts(
            PairStep(0, 0),
            of(self.near, near, near.nics[pair[0]]),
            of(self.far, far, far.nics[pair[1]]),
            side(self.here),
            side(self.there),
            of_nics=True,
            is_further=number > 0,
        )

    @property
    def title(self) -> str:
        """The names of the two devices, or of the two NICs of a pair of these."""
        near, far = self.near.devices[self.step.near], self.far.devices[self.step.far]
        return f"{near.name}>{printable(far.name)}"

    @property
    def is_whole(self) -> bool:
        """Whether each path answers, at both ends."""
        return all(map(answered, (*self.here.paths, *self.there.paths)))

    @property
    def is_silent(self) -> bool:
        """Whether no path answers at one of the ends."""
        sides = (self.here.paths, self.there.paths)
        return any(paths and not any(map(answered, paths)) for paths in sides)

    @property
    def probes(self) -> list[tuple[str, ProbeFacts]]:
        """The probes of both directions that found anything."""
        found = ((TO, self.here.probes), (FROM, self.there.probes))
        return [(way, one) for way, one in found if one is not None and one.answered > 0]

    @property
    def drops_long_packets(self) -> bool:
        """Whether packets that the interfaces may send do not arrive, and no router says so."""
        return any(is_black_hole(one) for nics in self.nics for _, one in nics.probes)

    @property
    def busy(self) -> str:
        """Which hosts had too little CPU during the test, in words; "" if none had."""
        sides = ((THIS, self.here), (OTHER, self.there))
        each = (busy_text(host, side.waited_percent) for host, side in sides)
        return " and ".join(filter(None, each))


def is_black_hole(one: ProbeFacts) -> bool:
    """Whether longer packets than some length are dropped, and no router reports it."""
    return 0 < one.carried_bytes < one.mtu_bytes and not 0 < one.told_bytes <= one.carried_bytes


def answers_text(engines: int, paths: Sequence[PathFact], hello: Hello | None = None) -> str:
    """How many paths answer, and which do not.

    hello: of the end that has the paths; with it, their ports are named if it set WEFT_PORT_BASE.
    """
    silent_paths: dict[int, list[PathFact]] = defaultdict(list)
    for one in paths:
        if not answered(one):
            silent_paths[one.engine].append(one)
    count = len(paths) - sum(map(len, silent_paths.values()))
    text = f"{count} of {len(paths)} answer"
    if not count or not silent_paths:
        return text
    each = (
        (f"engine {engine} " if engines > 1 else "")
        + f"paths {ranges_text([one.path for one in found])}"
        + (_ports_text(found) if hello is not None and hello.port_base != "0" else "")
        for engine, found in sorted(silent_paths.items())
    )
    return f"{text}; silent: {', '.join(each)}"


def _ports_text(paths: Sequence[PathFact]) -> str:
    """The UDP ports of these paths, in words; "" if one is unknown."""
    ports = [one.port for one in paths]
    return f" (UDP ports {ranges_text(ports)})" if all(ports) else ""


def ranges_text(numbers: list[int]) -> str:
    """Sorted numbers as text: 1, 4-7."""
    found: list[list[int]] = []
    for one in sorted(numbers):
        if found and found[-1][1] == one - 1:
            found[-1][1] = one
        else:
            found.append([one, one])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found)


def paths_finding(facts: PairFacts) -> Finding:
    """Whether each path of a pair answers at both ends, and what to open if one does not."""
    here, there = facts.here, facts.there
    if not here.paths:
        return _no_connection(facts)
    text = f"{HERE} {answers_text(here.engines, here.paths, facts.near)}"
    if there.paths:
        text += f"; {THERE} {answers_text(there.engines, there.paths, facts.far)}"
    elif there.failed:
        text += f"; {THERE}: {printable(there.failed)}"
    if not any(one.rtt_ns for one in (*here.paths, *there.paths)):
        return _no_way(facts, text)
    whole = facts.is_whole
    silent = [one for one in facts.nics if one.is_silent] if len(facts.nics) > 1 else []
    if silent and all(one.is_silent or one.is_whole for one in facts.nics):
        return _silent_nics(facts, silent)
    for where, side in ((HERE, here), (THERE, there)):
        if side.failed and side.paths:
            text += f"; {where}: {printable(side.failed)}"
    lossy = any(map(_is_lossy, facts.nics))
    lossy = lossy and all(one.is_whole or _is_lossy(one) for one in facts.nics)
    if (not whole or here.failed or there.failed) and lossy:
        names = [f" {one.title}" for one in facts.nics if len(facts.nics) > 1 and _is_lossy(one)]
        remedy = f"see loss{','.join(names)}, which silences paths: mend it first"
        return Finding("data paths", LIMITED, text, remedy)
    if whole and (here.failed or there.failed) and facts.drops_long_packets:
        remedy = "see MTU: long packets are dropped, and so are messages: mend it first"
        return Finding("data paths", LIMITED, text, remedy)
    if whole and not there.paths and not here.failed:
        return Finding("data paths", NOT_JUDGED, text, f"see what {OTHER} printed")
    if whole and LATE in (here.failed, there.failed) and facts.busy:
        return Finding("data paths", NOT_JUDGED, text, f"{facts.busy}: {TRY_AGAIN}")
    ports = of_both(data_ports(facts.near), data_ports(facts.far))
    if not whole or here.failed or there.failed:
        firewall = f"let {ports} {FIREWALL}"
        if "(UDP ports" in text:
            firewall += "; of a silent path, one of its two ports is dropped"
        return Finding("data paths", BROKEN, text, firewall)
    return Finding("data paths", OK if there.paths else NOT_JUDGED, text)


def _silent_nics(facts: PairFacts, silent: Sequence[PairFacts]) -> Finding:
    """All paths of some pairs of NICs of joined devices are silent, and all others answer."""
    counts = [
        f"{where} {sum(map(answered, side.paths))} of {len(side.paths)} answer"
        for where, side in ((HERE, facts.here), (THERE, facts.there))
        if side.paths
    ]
    text, remedies, explained = f"{'; '.join(counts)}; silent: ", list[str](), True
    names = []
    for one in silent:
        names.append(f"all {len(one.here.paths)} paths of {one.title.replace('>', ' > ')}")
        if one.drops_long_packets:
            remedies.append(f"see MTU {one.title}: mend it first")
        elif _is_lossy(one):
            remedies.append(f"see loss {one.title}: mend it first")
        elif one.probes:
            explained = False
            ports = of_both(data_ports(facts.near), data_ports(facts.far))
            remedies.append(f"let {ports} {FIREWALL}, at {one.title.replace('>', ' and ')}")
        else:
            explained = False
            remedies.append(_silent_between(one))
    state = LIMITED if explained else BROKEN
    return Finding("data paths", state, text + ", ".join(names), "; ".join(remedies))


def _silent_between(one: PairFacts) -> str:
    """What arrives between two NICs that no path works between, and what to look at."""
    near, far = one.near.devices[0], one.far.devices[0]
    here = f"{near.name} ({near.address}) of {THIS}"
    there = f"{printable(f'{far.name} ({far.address})')} of {OTHER}"
    look = (
        "look at their link and route (ip link; ip route get ADDRESS), cable and switch; or a "
        "firewall drops all UDP of these NICs"
    )
    to, back = one.there.heard > 0, one.here.heard > 0
    if not near.udp_port or not far.udp_port or to == back:
        if to:
            return f"other UDP ports pass between {here} and {there}: a firewall drops some"
        at_least = f", at least not from {THIS}" if one.is_further and near.udp_port else ""
        return f"nothing arrives between {here} and {there}{at_least}: {look}"
    source, target = (there, here) if to else (here, there)
    return (
        f"what {source} sends does not arrive at {target}, the other direction is open: {look} in "
        "this direction"
    )


def untried_ports(facts: PairFacts) -> list[Finding]:
    """A finding if a host has a range of UDP ports, of which the paths of the test have a part."""
    step, texts = facts.step, []
    ends = (
        (HERE, facts.near, facts.here, facts.near.devices[step.near]),
        (THERE, facts.far, facts.there, facts.far.devices[step.far]),
    )
    for where, hello, side, device in ends:
        if not hello.is_udp or "-" not in hello.port_base or not side.paths:
            continue
        first, last = map(int, hello.port_base.split("-"))
        count = last - first + 1
        used = {one.port for one in side.paths}
        if 0 in used:
            # Each path has a port; at several addresses of a joined device, some have the same.
            most = min(count, len(side.paths) + (first <= device.udp_port <= last))
            texts.append(f"at most {most} of {count} tried {where}")
            continue
        if facts.probes and first <= device.udp_port <= last:
            used.add(device.udp_port)
        if len(used) < count:
            texts.append(f"{len(used)} of {count} tried {where}")
    if not texts:
        return []
    return [_untried(PORTS_TRIED[0], texts, of_both(data_ports(facts.near), data_ports(facts.far)))]


def untried_control_ports(near: Hello, far: Hello, *, has_messages: bool) -> list[Finding]:
    """A finding if a host has a range of TCP ports, of which the connections of the test reach few.

    Of the other host: its open port, one for each device, and the one for messages if it is
    reached. Of this host: the one that the other host connects back to.
    """
    tried = (HERE, near, int(near.back_port > 0)), (THERE, far, 1 + len(far.devices) + has_messages)
    texts = []
    for where, hello, count in tried:
        first, dash, last = hello.control_port.partition("-")
        if dash and count < int(last) - int(first) + 1:
            texts.append(f"{count} of {int(last) - int(first) + 1} tried {where}")
    if not texts:
        return []
    return [_untried(PORTS_TRIED[1], texts, of_both(control_ports(near), control_ports(far)))]


def _untried(subject: str, texts: list[str], ports: str) -> Finding:
    remedy = (
        "no fault: a test tries the ports of one process, and --all-ports all of them. "
        f"If a firewall is there, let all {ports} "
        f"{FIREWALL}; processes of a job take any of them"
    )
    return Finding(subject, NOT_JUDGED, ", ".join(texts), remedy)


def unreached_messages(near: Hello, far: Hello, ports: Sequence[int]) -> Finding:
    """That no TCP port for messages of the test is reached. ports: those that it may have."""
    text = (
        f"no port for messages of {OTHER} is reached (TCP {ranges_text(list(ports))}; its weft "
        "doctor --serve prints which it has): messages of the test go over data paths"
    )
    remedy = f"let {of_both(control_ports(near), control_ports(far))} {FIREWALL}"
    if "-" not in far.control_port:
        remedy = f"let this TCP port {FIREWALL}: then a report says more of what is blocked"
    return Finding("message port", LIMITED, text, remedy)


def _no_connection(facts: PairFacts) -> Finding:
    """The dial of a pair failed, or was not tried."""
    failed = facts.here.failed
    if failed == STRANDED:
        return _stranded(facts)
    if failed == TOO_LONG:  # of other pairs; of this one nothing is known
        remedy = "mend the other pairs first, or name one NIC of each host in WEFT_INTERFACES"
        return Finding("data paths", NOT_JUDGED, failed, remedy)
    ports = of_both(data_ports(facts.near), data_ports(facts.far))
    if failed.startswith(DIAL_FAILED):
        ports = of_both(control_ports(facts.near), control_ports(facts.far))
    remedy = FAMILY if FAMILIES in failed else f"let {ports} {FIREWALL}"
    return Finding("data paths", BROKEN, printable(failed), remedy)


def _no_way(facts: PairFacts, text: str) -> Finding:
    """No path of the pair has ever answered. The probes beside them tell the direction."""
    near, far = facts.near.devices[facts.step.near], facts.far.devices[facts.step.far]
    here = f"{near.name} ({near.address}) of {THIS}"
    there = f"{printable(f'{far.name} ({far.address})')} of {OTHER}"
    ports = of_both(data_ports(facts.near), data_ports(facts.far))
    remedy = f"let {ports} pass {{}}: {PAGE}; or is the route wrong? ip route get ADDRESS"
    to, back = facts.there.heard > 0, facts.here.heard > 0
    if not near.udp_port or not far.udp_port:
        return Finding("data paths", BROKEN, text, remedy.format(f"between {here} and {there}"))
    if to and back:
        text += "; other UDP ports pass in both directions"
        return Finding("data paths", BROKEN, text, remedy.format(f"between {here} and {there}"))
    if not to and not back:
        text += f"; nothing arrives between {here} and {there}, in either direction"
        return Finding("data paths", BROKEN, text, remedy.format(f"between {here} and {there}"))
    source, target = (there, here) if to else (here, there)
    text += f"; what {source} sends does not arrive at {target}, the other direction is open"
    return Finding("data paths", BROKEN, text, remedy.format(f"from {source} to {target}"))


def _stranded(facts: PairFacts) -> Finding:
    """A pair of devices that no packet can lead between."""
    step = facts.step
    ends = (
        (THIS, facts.near.devices[step.near]),
        (OTHER, facts.far.devices[step.far]),
    )
    found = [(where, one) for where, one in ends if is_loopback(one.address)]
    text = "; ".join(f"{printable(f'{one.name} {one.address}')} of {where}" for where, one in found)
    remedy = loopback_remedy(" and ".join(where for where, _ in found))
    return Finding("data paths", BROKEN, f"{STRANDED}: {text}", remedy)


def _is_lossy(facts: PairFacts) -> bool:
    """Whether the idle network loses packets, and that explains every silent path.

    A path that passes packets answers in the end. One that never did, although the loss would have
    passed some of its probes, has a closed port.
    """
    if not any(1 - one.arrived / one.sent > IDLE_BROKEN for _, one in facts.probes):
        return False
    passed = min(one.answered / one.sent for _, one in facts.probes)  # there and back
    paths = (*facts.here.paths, *facts.there.paths)
    chances = ((1 - passed) ** one.probes for one in paths if one.rtt_ns == 0)
    return all(one > SILENT_CHANCE / len(paths) for one in chances)


def loopback_remedy(where: str) -> str:
    """What to do at the host whose devices have loopback addresses."""
    return (
        f"on {where}: name a NIC that has a routed address in WEFT_INTERFACES, or unset it; weft "
        "doctor says which NICs there are"
    )
