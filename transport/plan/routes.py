"""The links that paths between hosts cross, as `weft plan probe` or the simulator found them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transport.errors import InvalidArgumentError

FILE = "routes.json"
VERSION = 1
BYTES_MAX = 1 << 30


class RoutesError(InvalidArgumentError):
    """A file of routes cannot be read; the message says why."""


@dataclass(frozen=True, eq=False)
class Routes:
    """links: the name of each link in one direction, as leaf0>spine1.

    of: (host, host, path) -> numbers of the links in the order in which a packet crosses them.
    """

    links: tuple[str, ...]
    of: dict[tuple[str, str, int], tuple[int, ...]]

    def write(self, file: Path) -> None:
        rows = [[*ends, list(links)] for ends, links in self.of.items()]
        made = {"weft_routes": VERSION, "links": list(self.links), "routes": rows}
        file.write_text(json.dumps(made, separators=(",", ":")) + "\n")


def read(file: Path) -> Routes:
    """Reads a file of routes; RoutesError in one line if it is wrong."""
    try:
        if file.stat().st_size > BYTES_MAX:
            raise RoutesError(f"{file} is larger than 1 GB: it is no file of routes")
        found = json.loads(file.read_text())
    except OSError as error:
        raise RoutesError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise RoutesError(f"{file} is not JSON: {error}") from None
    try:
        return _checked(found, file)
    except RoutesError:
        raise
    except (KeyError, TypeError, ValueError, IndexError):
        raise RoutesError(f"{file} is no file of routes: make it with weft plan probe") from None


def _checked(found: Any, file: Path) -> Routes:
    version = found["weft_routes"]
    if version != VERSION:
        raise RoutesError(
            f"{file} has version {version!r} of routes, and this weft reads {VERSION}"
        )
    links = tuple(str(one) for one in found["links"])
    of = {}
    for source, target, path, passed in found["routes"]:
        numbers = tuple(int(one) for one in passed)
        if any(not 0 <= one < len(links) for one in numbers):
            raise RoutesError(f"{file}: a route names link {max(numbers)} of {len(links)}")
        of[str(source), str(target), int(path)] = numbers
    return Routes(links, of)


def undirected(link: str) -> str:
    """The name of a link in both directions: leaf0>spine1 and spine1>leaf0 are leaf0-spine1."""
    one, arrow, other = link.partition(">")
    if not arrow:
        return link
    return "-".join(sorted((one, other)))
