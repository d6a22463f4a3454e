"""The links that the paths between hosts cross, as weft plan probe or the simulator finds them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transport.errors import InvalidArgumentError
from transport.ground import created
from transport.ground.units import binary_text

FILE = "routes.json"
VERSION = 1
BYTES_MAX = 1 << 30
PATHS_MAX = 65_536  # numbers of paths between two NICs
UNKNOWN = "?"  # begins the name of a node that did not answer


class RoutesError(InvalidArgumentError):
    """A file of routes cannot be read; the message says why."""


@dataclass(frozen=True, eq=False)
class Routes:
    """links: the name of each link in one direction, as leaf0>spine1.

    of: (host, host, path) -> numbers of the links in the order in which a packet crosses them.
    ports: (host, host, path) -> the UDP source and destination port that take this way. addresses:
    host -> its IP address. sick: names of links that lost many probes. fabric: identifies the
    fabric; empty: fingerprint() makes it from the hosts and links. A host with several NICs has
    one name for each, host/side; sides do not reach each other.
    """

    links: tuple[str, ...]
    of: dict[tuple[str, str, int], tuple[int, ...]]
    ports: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    sick: tuple[str, ...] = ()
    fabric: str = ""

    def write(self, file: Path) -> None:
        rows = [[*ends, list(links)] for ends, links in self.of.items()]
        made: dict[str, Any] = {
            "weft_routes": VERSION,
            "links": list(self.links),
            "routes": rows,
        }
        extra = {
            "fabric": self.fabric,
            "addresses": self.addresses,
            "sick": list(self.sick),
            "ports": [[*ends, *pair] for ends, pair in self.ports.items()],
        }
        made |= {key: value for key, value in extra.items() if value}
        created.write_output(file, json.dumps(made, separators=(",", ":")) + "\n")

    def fingerprint(self) -> str:
        """Identifies the fabric: `fabric` if given, else a hash of its hosts and known links."""
        if self.fabric:
            return self.fabric
        known = {undirected(link) for link in self.links if UNKNOWN not in link}
        hosts = {end for source, target, _ in self.of for end in (source, target)}
        words = [*sorted(known), *sorted(f"{one}={self.addresses.get(one, '')}" for one in hosts)]
        return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def read(file: Path) -> Routes:
    """Reads a file of routes; RoutesError in one line if it is wrong."""
    try:
        if file.stat().st_size > BYTES_MAX:
            raise RoutesError(
                f"{file} is larger than {binary_text(BYTES_MAX)}: it is no file of routes"
            )
        found = json.loads(file.read_text())
    except OSError as error:
        raise RoutesError(f"{file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RoutesError(f"{file} is not JSON: {error}") from None
    try:
        return _checked(found, file)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        if isinstance(error, RoutesError):
            raise
        raise RoutesError(f"{file} is no file of routes: make it with weft plan probe") from None


def _checked(found: Any, file: Path) -> Routes:
    version = found["weft_routes"]
    if version != VERSION:
        raise RoutesError(
            f"{file} has version {version!r} of routes, and this weft reads {VERSION}"
        )
    if not isinstance(found["links"], list) or not isinstance(found["routes"], list):
        raise RoutesError(f"{file}: links and routes must be lists")
    links = tuple(text(one) for one in found["links"])
    of = {}
    for source, target, path, passed in found["routes"]:
        numbers = tuple(int(one) for one in passed)
        if any(not 0 <= one < len(links) for one in numbers):
            raise RoutesError(
                f"{file}: a route names link {max(numbers)}, but there are {len(links)} links, "
                "numbered from 0"
            )
        of[text(source), text(target), _path(path, file)] = numbers
    ports = {}
    for source, target, path, *pair in found.get("ports", []):
        near, far = (int(one) for one in pair)
        if not (0 < near < 65_536 and 0 < far < 65_536):
            raise RoutesError(f"{file}: ports {near} and {far} must be 1 to 65535")
        ports[text(source), text(target), _path(path, file)] = near, far
    addresses = {text(k): text(v) for k, v in found.get("addresses", {}).items()}
    sick = tuple(text(one) for one in found.get("sick", []))
    return Routes(links, of, ports, addresses, sick, text(found.get("fabric", "")))


def _path(value: Any, file: Path) -> int:
    """The number of a path; RoutesError if it is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < PATHS_MAX:
        raise RoutesError(f"{file}: path {value!r}: expected a whole number below {PATHS_MAX}")
    return value


def text(value: Any) -> str:
    """The value as a text that can be printed and written; ValueError if it is not one."""
    made = str(value)
    if "\0" in made:
        raise ValueError("text with a zero byte; expected printable text")
    made.encode()  # JSON may have half of a surrogate pair
    return made


def merged(parts: Sequence[Routes]) -> Routes:
    """The routes of several files, as of several hosts that probed; a later file wins."""
    if len(parts) == 1:
        return parts[0]
    number: dict[str, int] = {}
    of: dict[tuple[str, str, int], tuple[int, ...]] = {}
    ports: dict[tuple[str, str, int], tuple[int, int]] = {}
    addresses: dict[str, str] = {}
    fabrics = {part.fabric for part in parts if part.fabric}
    if len(fabrics) > 1:
        found = ", ".join(sorted(fabrics))
        raise RoutesError(f"the routes are of different fabrics: {found}; give files of one fabric")
    for part in parts:
        pairs = {ends[:2] for ends in part.of}
        of = {ends: links for ends, links in of.items() if ends[:2] not in pairs}
        ports = {ends: pair for ends, pair in ports.items() if ends[:2] not in pairs} | part.ports
        for ends, links in part.of.items():
            names = [part.links[one] for one in links]
            of[ends] = tuple(number.setdefault(name, len(number)) for name in names)
        addresses |= part.addresses
    sick = tuple(sorted({link for part in parts for link in part.sick}))
    return Routes(tuple(number), of, ports, addresses, sick, "".join(fabrics))


def side(end: str) -> str:
    """The side in the name of a NIC: "left" for host0/left; empty if the host has one NIC."""
    return end.partition("/")[2]


def undirected(link: str) -> str:
    """The name of a link in both directions: leaf0>spine1 and spine1>leaf0 are leaf0-spine1."""
    one, arrow, other = link.partition(">")
    if not arrow:
        return link
    return "-".join(sorted((one, other)))
