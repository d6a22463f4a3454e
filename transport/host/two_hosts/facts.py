"""What the two ends of a test tell each other, as JSON; everything from the peer is checked."""

from __future__ import annotations

import json
import math
import re
import typing
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from transport.ground.text import printable
from transport.host.finding import Finding

TEXT_BYTES_MAX = 1 << 20  # of one message; 4,096 paths take a third of it
CHARACTERS_MAX = 1_000
ITEMS_MAX = 4_096
INTEGER_MAX = 1 << 62
HANDLE_BYTES, TOKEN_BYTES = 80, 16
DEVICES_MAX = 8
NIC_PAIRS_MAX = 4  # of two joined devices that are tested one after the other
PORTS_MAX = 512  # of one step
PORTS = re.compile(r"\d{1,5}(-\d{1,5})?", re.ASCII)

Fact = TypeVar("Fact")


class FactError(Exception):
    """A message of the peer is not what this version expects; the text is one line."""


@dataclass(frozen=True, slots=True)
class NicFact:
    """A further NIC of a joined device. udp_port: answers probes; 0: none."""

    name: str
    address: str
    mtu_bytes: int
    udp_port: int


@dataclass(frozen=True, slots=True)
class DeviceFact:
    """A device of a host. handle: of its listener, in hexadecimal; empty
    at the end that dials. udp_port: answers probes; 0: none. kind: of its interface, as "veth";
    of joined ones as "NIC+veth". also: its NICs after the first, whose address and port the device
    has."""

    name: str
    address: str
    mtu_bytes: int
    speed_mbps: int
    kind: str
    handle: str
    udp_port: int
    also: tuple[NicFact, ...] = ()

    @property
    def nics(self) -> list[NicFact]:
        """Its NICs; path i takes number i modulo their number."""
        name = self.name.split("+")[0] if self.also else self.name
        return [NicFact(name, self.address, self.mtu_bytes, self.udp_port), *self.also]


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of each end. token: proves probes to the UDP ports, in hexadecimal.

    back_port: TCP port of the end that tests, which the other end should reach; 0: it has none.
    back: why the other end could not reach it; empty if it could. control_port, port_base: these
    settings of the end. free_ports: the range of ports that its kernel gives; empty if unknown.
    sockets: data sockets at each of its addresses, one for each path of each engine; paths: of each
    engine (WEFT_PATHS). down: NICs that would be used if they were up, in words.
    """

    version: str
    host: str
    has_secret: bool
    datapath: str
    token: str
    back_port: int
    back: str
    control_port: str
    port_base: str
    free_ports: str
    sockets: int
    paths: int
    down: str
    devices: tuple[DeviceFact, ...]

    @property
    def is_udp(self) -> bool:
        """Whether its data paths are UDP sockets."""
        return self.datapath.startswith("udp")


@dataclass(frozen=True, slots=True)
class PairStep:
    """Asks the other end to test one pair of devices: the asking end's and its own."""

    near: int
    far: int


@dataclass(frozen=True, slots=True)
class PathFact:
    """A path as one end sees it.

    rtt_ns: 0 if it never answered. probes: packets of weft that asked it for an answer. port: UDP
    port of this end; 0: unknown, or the path has none.
    """

    engine: int
    path: int
    rtt_ns: int
    usable: bool
    probes: int = 0
    port: int = 0


@dataclass(frozen=True, slots=True)
class ProbeFacts:
    """What one end's datagrams found on the way to the other end, outside of weft's data paths.

    arrived, late: datagrams that the other end got, and those that others overtook. carried_bytes:
    the longest IP packet that got there and told_bytes the path MTU that the kernel knows, and
    told_by the address that sent an ICMP error for longer ones; empty if it is unknown.
    clock_ahead_ns: how far the other end's clock is ahead.
    """

    sent: int
    arrived: int
    answered: int
    late: int
    rtt_ns_min: int
    clock_ahead_ns: int
    mtu_bytes: int
    carried_bytes: int
    told_bytes: int
    told_by: str = ""


@dataclass(frozen=True, slots=True)
class SideFacts:
    """What one end measured on a pair of devices. failed: why it could not measure all of it.

    lost: segments that were lost, without those that were sent again needlessly. host_drops:
    datagrams that this end's own socket buffers dropped. heard: probes of the other end that
    arrived here, answered or not. waited_percent: of the time, without a CPU that a thread of this
    end wanted. overflows: packets that this host received and dropped during the probes. also:
    what probes found between the further pairs of NICs of joined devices. arrived: segments of the
    other end that this one received, those that came twice included; 0: unknown.
    """

    failed: str = ""
    engines: int = 0
    paths: tuple[PathFact, ...] = ()
    rate_bytes_per_s: int = 0
    segments: int = 0
    lost: int = 0
    host_drops: int = 0
    probes: ProbeFacts | None = None
    heard: int = 0
    waited_percent: int = 0
    overflows: int = 0
    also: tuple[ProbeFacts | None, ...] = ()
    arrived: int = 0


@dataclass(frozen=True, slots=True)
class PortsStep:
    """Asks the other end to try ports with this one, between a pair of devices.

    nics: number of the pair of NICs of joined devices (nic_pairs()), else 0. udp: else TCP. to_far:
    the ports are those of the other end. first, last: PORTS_MAX at most.
    """

    near: int
    far: int
    nics: int
    udp: bool
    to_far: bool
    first: int
    last: int

    @property
    def ports(self) -> range:
        """The ports to try."""
        return range(self.first, self.last + 1)


@dataclass(frozen=True, slots=True)
class PortsFact:
    """What is known of the ports of a step, each as first and last ones of ranges, in turn.

    busy: ports that another process of their host holds. blocked: those that nothing has passed
    yet. rejected: blocked ones with an ICMP error or a reset. by: who sent the error; empty if it
    is unknown. is_last: the step is over.
    """

    busy: tuple[int, ...] = ()
    blocked: tuple[int, ...] = ()
    rejected: tuple[int, ...] = ()
    by: str = ""
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The last message: what the testing end found."""

    findings: tuple[Finding, ...] = field(default=())


def nic_pairs(near: DeviceFact, far: DeviceFact) -> list[tuple[int, int]]:
    """The NICs of two devices between which paths lead: path i takes pair i modulo their number."""
    count = min(math.lcm(len(near.nics), len(far.nics)), NIC_PAIRS_MAX)
    return [(at % len(near.nics), at % len(far.nics)) for at in range(count)]


def encode(fact: Any) -> bytes:
    """The message that carries the fact."""
    return json.dumps({type(fact).__name__: asdict(fact)}).encode()


def decode(data: bytes, *kinds: type[Fact]) -> Fact:
    """The fact in a message, of one of these kinds. FactError if it is anything else."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise FactError("the message is not JSON") from None
    for kind in kinds:
        name = kind.__name__
        if isinstance(value, dict) and list(value) == [name]:
            found: Fact = _checked(kind, value[name], name)
            return found
    raise FactError(f"expected a message {' or '.join(kind.__name__ for kind in kinds)}")


def _checked(kind: Any, value: Any, where: str) -> Any:
    """The value as the kind, which is a dataclass, tuple, union with None, str, bool or int."""
    if is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        names = [one.name for one in fields(kind)]
        if not isinstance(value, dict) or sorted(value) != sorted(names):
            version = value.get("version") if isinstance(value, dict) else None
            of = f" of weft {printable(version)[:40]}" if isinstance(version, str) else ""
            raise FactError(f"{where}{of}: expected the fields {', '.join(names)}")
        return kind(**{name: _checked(hints[name], value[name], name) for name in names})
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list) or len(value) > ITEMS_MAX:
            raise FactError(f"{where}: expected a list of at most {ITEMS_MAX}")
        return tuple(_checked(inner[0], one, where) for one in value)
    if type(None) in inner:
        return None if value is None else _checked(inner[0], value, where)
    if type(value) is not kind:
        raise FactError(f"{where}: expected {kind.__name__}")
    if isinstance(value, str) and len(value) > CHARACTERS_MAX:
        raise FactError(f"{where}: more than {CHARACTERS_MAX} characters")
    if isinstance(value, int) and abs(value) > INTEGER_MAX:
        raise FactError(f"{where}: {value} is out of range")
    return value


def bytes_of(text: str, size: int, where: str) -> bytes:
    """The bytes written in hexadecimal; FactError unless there are `size` of them."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != size:
        raise FactError(f"{where}: expected {size} bytes in hexadecimal")
    return found


def check_hello(hello: Hello) -> Hello:
    """Raises FactError if what the peer says of itself cannot be used."""
    bytes_of(hello.token, TOKEN_BYTES, "token")
    if not 1 <= len(hello.devices) <= DEVICES_MAX:
        raise FactError(f"devices: expected 1 to {DEVICES_MAX}")
    if not 0 <= hello.back_port <= 65_535:
        raise FactError("back_port: expected 0 to 65535")
    if min(hello.sockets, hello.paths) < 1:
        raise FactError("sockets, paths: expected 1 at least")
    for text in (hello.control_port, hello.port_base, hello.free_ports or "0"):
        if not PORTS.fullmatch(text):
            raise FactError("ports: expected a number or a range of numbers")
    for one in hello.devices:
        if one.handle:
            bytes_of(one.handle, HANDLE_BYTES, "handle")
        if not 0 <= one.udp_port <= 65_535:
            raise FactError("udp_port: expected 0 to 65535")
        if min(one.mtu_bytes, one.speed_mbps) < 0:
            raise FactError("a device has a negative MTU or speed")
        if len(one.also) >= DEVICES_MAX:
            raise FactError(f"also: a device has more than {DEVICES_MAX} NICs")
        if not all(0 <= nic.udp_port <= 65_535 and nic.mtu_bytes >= 0 for nic in one.also):
            raise FactError("also: a port or an MTU is out of range")
    return hello


def check_step(step: PortsStep) -> PortsStep:
    """Raises FactError if the step's ports are none, or too many."""
    if not 1 <= step.first <= step.last <= min(65_535, step.first + PORTS_MAX - 1):
        raise FactError(f"first, last: expected 1 to {PORTS_MAX} ports")
    return step


def check_ports(fact: PortsFact) -> PortsFact:
    """Raises FactError unless the ports are ascending ranges."""
    for ports in (fact.busy, fact.blocked, fact.rejected):
        starts_later = (b - a > 1 for a, b in zip(ports[1::2], ports[2::2], strict=False))
        ends_later = (a <= b for a, b in zip(ports[::2], ports[1::2], strict=False))
        inside = all(1 <= one <= 65_535 for one in ports)
        if len(ports) % 2 or not inside or not all(starts_later) or not all(ends_later):
            raise FactError("ports: expected ascending ranges of ports")
    return fact


def check_side(side: SideFacts) -> SideFacts:
    """Raises FactError if what the peer measured contradicts itself."""
    counts = [
        side.engines,
        side.rate_bytes_per_s,
        side.segments,
        side.lost,
        side.host_drops,
        side.heard,
        side.waited_percent,
        side.overflows,
        side.arrived,
    ]
    counts += [
        number for one in side.paths for number in (one.engine, one.path, one.rtt_ns, one.probes)
    ]
    if len(side.also) > NIC_PAIRS_MAX:
        raise FactError("also: too many pairs of NICs")
    for probes in filter(None, (side.probes, *side.also)):
        no_count = {"clock_ahead_ns", "told_by"}
        counts += [value for name, value in asdict(probes).items() if name not in no_count]
        if not probes.late <= probes.answered <= min(probes.sent, probes.arrived):
            raise FactError("probes: more were answered than sent, or overtaken than answered")
    if min(counts) < 0:
        raise FactError("a measured count is negative")
    if not all(0 <= one.port <= 65_535 for one in side.paths):
        raise FactError("port: expected 0 to 65535")
    return side
