"""Follows the telemetry of this host's processes, and writes the weights of their paths to a file.

The processes read the file outside of their data path (transport/plan/follow.py).
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transport import trusted
from transport.errors import InvalidArgumentError
from transport.ground import created
from transport.ground.units import binary_text
from transport.plan.assign import PairPlan
from transport.plan.planfile import Plan
from transport.plan.shares import Change, Judge, Seen
from transport.telemetry import Page, PeerRow, read_pages
from transport.telemetry.page import IGNORED

FILE = "weights.json"
VERSION = 2
BYTES_MAX = 1 << 24

# Page.identity of an endpoint -> address of a peer -> engine -> weights of the paths. A process id
# does not identify an endpoint: containers can use equal ids, and a process can have several.
Weights = dict[str, dict[str, dict[str, list[float]]]]


class WeightsError(InvalidArgumentError):
    """A file of weights cannot be read or written."""


@dataclass(frozen=True)
class Moved:
    """A change of a path. links: those that the plan says it crosses; empty: not known.

    page: Page.identity of the endpoint.
    """

    page: str
    pid: int
    peer: str
    engine: int
    change: Change
    links: tuple[str, ...]


def write(weights: Weights, file: Path) -> None:
    """Replaces the file atomically, so that a reader sees the old or the new one."""
    try:
        created.replace(file, json.dumps({"weft_weights": VERSION, "pages": weights}) + "\n")
    except OSError as error:
        raise WeightsError(f"cannot write {file}: {error.strerror}") from None


def read(file: Path) -> Weights:
    """Reads a file of weights; WeightsError in one line if it is wrong."""
    try:
        with trusted.open_file(file, what="the file of weights") as opened:
            data = opened.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise WeightsError(
                f"{file} is larger than {binary_text(BYTES_MAX)}: it is no file of weights"
            )
        found = json.loads(data)
        if found["weft_weights"] != VERSION:
            raise WeightsError(
                f"{file} is version {found['weft_weights']!r} of weights; this weft reads {VERSION}"
            )
        return {
            str(page): {
                str(peer): {str(int(engine)): _weights(row) for engine, row in engines.items()}
                for peer, engines in peers.items()
            }
            for page, peers in found["pages"].items()
        }
    except OSError as error:
        raise WeightsError(f"{file}: {error.strerror}") from None
    except trusted.UntrustedError as error:
        raise WeightsError(str(error)) from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, WeightsError):
            raise
        raise WeightsError(
            f"{file} is no file of weights: give one that weft plan watch writes"
        ) from None


def _weights(row: Any) -> list[float]:
    made = [float(one) for one in row]
    if not all(0.0 <= one <= 1.0 for one in made):
        raise ValueError
    return made


def is_local(address: str) -> bool:
    """Whether a NIC of this host (of this network namespace) has the address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        try:
            made.bind((address, 0))
        except OSError:
            return False
    return True


def same_network(pid: int) -> bool:
    """Whether a process is in this network namespace; true if the kernel does not say."""
    try:
        there, here = os.stat(f"/proc/{pid}/ns/net"), os.stat("/proc/self/ns/net")
    except OSError:
        return True
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


class Watch:
    """Judges the paths to each peer in the plan, for each engine of each process on this host."""

    def __init__(self, plan: Plan, *, where: Path | None = None) -> None:
        self._where = where
        # Plans from routes of the simulator have no addresses.
        pairs = [pair for job in plan.jobs.values() for pair in job if pair.source_address]
        local = {one: is_local(one) for one in {pair.source_address for pair in pairs}}
        self._pairs: dict[str, PairPlan] = {
            pair.target_address: pair for pair in pairs if local[pair.source_address]
        }
        # (Page.identity, row and generation of a peer) -> judge of the peer's paths.
        self._judges: dict[tuple[str, int, int], Judge] = {}
        self._weights: dict[tuple[str, str, int], list[float]] = {}
        self._followed: frozenset[str] = frozenset()
        self.ignored = ""  # a line about telemetry pages that other users can change; "": none

    @property
    def peers(self) -> tuple[str, ...]:
        """The addresses to which this host sends, by the plan."""
        return tuple(sorted(self._pairs))

    @property
    def processes(self) -> int:
        """The number of processes that are followed."""
        return len(self._followed)

    def weights(self) -> Weights:
        made: Weights = {}
        for (page, peer, engine), row in sorted(self._weights.items()):
            made.setdefault(page, {}).setdefault(peer, {})[str(engine)] = row
        return made

    def step(self) -> list[Moved]:
        """Reads all telemetry pages once; returns the paths whose state changed."""
        moved: list[Moved] = []
        now: dict[tuple[str, str, int], list[float]] = {}
        judges: dict[tuple[str, int, int], Judge] = {}
        followed: set[str] = set()
        for page in self._pages():
            for peer in page.peers:
                address, engine = str(peer.state.get("address", "")), _engine(peer)
                if address not in self._pairs or not peer.paths:
                    continue
                followed.add(page.process_identity)
                key = page.identity, peer.index, peer.generation
                judge = self._judges.get(key) or Judge([1.0] * len(peer.paths))
                judges[key] = judge
                for change in judge.step(_seen(peer)):
                    links = self._links(page, address, change.path)
                    moved.append(Moved(page.identity, page.pid, address, engine, change, links))
                now[page.identity, address, engine] = [
                    round(one, 4) for one in judge.weights.tolist()
                ]
        self._weights, self._judges, self._followed = now, judges, frozenset(followed)
        return moved

    def _pages(self) -> Iterator[Page]:
        found = read_pages(self._where)
        if bool(found.ignored) != bool(self.ignored):
            lines = [one for one in found.problems if one.startswith(IGNORED)]
            self.ignored = lines[0] if lines else ""
        for page in found.pages:
            # The pid of a process in another PID namespace does not tell its network namespace.
            here = page.process_state in ("running", "stopped")
            if page.process_state != "gone" and (not here or same_network(page.pid)):
                yield page

    def _links(self, page: Page, address: str, path: int) -> tuple[str, ...]:
        """The links of a path; unknown for processes with several engines, which share the
        plan's ports."""
        pair = self._pairs[address]
        if len(page.engines) != 1 or path >= len(pair.links):
            return ()
        return pair.links[path]


def _engine(peer: PeerRow) -> int:
    number = peer.state.get("engine", 0)
    return number if isinstance(number, int) else 0


def _seen(peer: PeerRow) -> Seen:
    def column(name: str) -> list[int]:
        return [path.counters.get(name, 0) for path in peer.paths]

    usable = [path.counters.get("usable", 1) != 0 for path in peer.paths]
    return Seen(column("segments_sent"), column("segments_lost"), column("rtt_ns"), usable)


def wait(until_s: float) -> None:
    time.sleep(max(until_s - time.monotonic(), 0))
