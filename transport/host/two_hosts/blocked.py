"""Judges which ports of the hosts' ranges are blocked, once every one was tried."""

from __future__ import annotations

from dataclasses import dataclass, field

from transport.ground.text import printable
from transport.host.finding import BROKEN, NOT_JUDGED, OK, Finding
from transport.host.two_hosts.every_port import ports_of
from transport.host.two_hosts.facts import PortsFact
from transport.host.two_hosts.paths import PAGE, ranges_text
from transport.host.two_hosts.view import HERE, OTHER, THERE, THIS

NAMED_MAX = 20  # ranges in a line; the rest is counted


@dataclass(slots=True)
class Tried:
    """What was found of the ports of one host, to which the other one sends.

    left: ports that were not tried, and why. by: the address that sent an ICMP error.
    """

    to_far: bool
    of_range: range
    passed: set[int] = field(default_factory=set)
    busy: set[int] = field(default_factory=set)
    blocked: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    by: str = ""
    why_left: str = ""

    def add(self, ports: range, fact: PortsFact) -> None:
        """Counts the ports of a step that has ended."""
        self.busy |= ports_of(fact.busy)
        self.blocked |= ports_of(fact.blocked)
        self.rejected |= ports_of(fact.rejected)
        self.passed |= set(ports) - ports_of(fact.busy) - ports_of(fact.blocked)
        self.by = self.by or fact.by

    @property
    def left(self) -> int:
        """How many ports were not tried."""
        return len(self.of_range) - len(self.passed) - len(self.busy) - len(self.blocked)


def finding(protocol: str, directions: list[Tried]) -> Finding:
    """The line on a protocol, "UDP" or "TCP", for the ports of both hosts."""
    subject = f"every {protocol} port"
    texts = [_text(protocol, one) for one in directions]
    remedies = [_remedy(protocol, one) for one in directions if one.blocked]
    if remedies:
        return Finding(subject, BROKEN, "; ".join(texts), "; ".join(remedies) + f": {PAGE}")
    if any(not one.of_range or one.left for one in directions):
        why = "repeat it; if it took too long, give the hosts a smaller range"
        return Finding(subject, NOT_JUDGED, "; ".join(texts), why)
    return Finding(subject, OK, "; ".join(texts))


def _text(protocol: str, one: Tried) -> str:
    source, target = (HERE, THERE) if one.to_far else (THERE, HERE)
    way = f"from {source} to {target}"
    if not one.of_range:
        return f"{way}: the range of {protocol} ports is unknown"
    text = f"{way}: {len(one.passed)} of {len(one.of_range)} pass"
    if one.busy:
        text += f", {len(one.busy)} are in use {target} and were not tried"
    if one.left:
        text += f", {one.left} were not tried: {printable(one.why_left)}"
    return text + "".join(f"; {part} {way}" for part in _blocked(one))


def _blocked(one: Tried) -> list[str]:
    """The blocked ports as ranges, with what the firewall does.

    A host limits its ICMP errors, so one error tells what becomes of a whole range.
    """
    by = f"by {printable(one.by)} " if one.by else ""
    rejects, drops = set[int](), set[int]()
    for run in _runs(one.blocked):
        (rejects if run & one.rejected else drops).update(run)
    kinds = (
        (rejects, f"blocked (rejected {by}with an error)"),
        (drops, "blocked (dropped without an error)"),
    )
    return [f"{_named(ports)} {what}" for ports, what in kinds if ports]


def _runs(ports: set[int]) -> list[set[int]]:
    """The ports in groups of those that follow one another."""
    found: list[set[int]] = []
    for port in sorted(ports):
        if port - 1 in (found[-1] if found else ()):
            found[-1].add(port)
        else:
            found.append({port})
    return found


def _named(ports: set[int]) -> str:
    ranges = ranges_text(list(ports)).split(", ")
    more = f" and {len(ranges) - NAMED_MAX} more ranges" if len(ranges) > NAMED_MAX else ""
    return ", ".join(ranges[:NAMED_MAX]) + more


def _remedy(protocol: str, one: Tried) -> str:
    source, target = (THIS, OTHER) if one.to_far else (OTHER, THIS)
    first, last = one.of_range[0], one.of_range[-1]  # a process takes any of them later
    return f"let all {protocol} ports {first}-{last} pass from {source} to {target}"
