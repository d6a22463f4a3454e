"""The plan file: the paths of all jobs of one fabric. Planners change it under a lock."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transport import trusted
from transport.errors import InvalidArgumentError
from transport.ground import created
from transport.ground.units import binary_text
from transport.plan.assign import PATHS_MAX, PairPlan
from transport.plan.routes import Routes, text

FILE = "plan.json"
VERSION = 1
BYTES_MAX = 1 << 28
BYTES_SENT_MAX = 1 << 62  # maximum number of bytes that one pair sends
STEP_S = 0.05
PAIR_PATHS_MAX = PATHS_MAX * 64  # paths between two NICs, with eight engines at each end


class PlanError(InvalidArgumentError):
    """A plan file cannot be read, changed or used; the message says why."""


@dataclass(frozen=True, eq=False)
class Plan:
    """fabric: identifies the fabric. jobs: name -> the paths of its pairs of NICs."""

    fabric: str
    jobs: dict[str, tuple[PairPlan, ...]] = field(default_factory=dict)

    def with_job(self, name: str, pairs: Sequence[PairPlan]) -> Plan:
        """The plan with a job replaced by these pairs; without pairs it is removed."""
        jobs = {key: value for key, value in self.jobs.items() if key != name}
        return replace(self, jobs=jobs | ({name: tuple(pairs)} if pairs else {}))

    def load(self, *, without: str = "") -> dict[str, float]:
        """Link -> bytes that all jobs except `without` send over it."""
        carried: dict[str, float] = defaultdict(float)
        for name, pairs in self.jobs.items():
            for pair in pairs if name != without else ():
                for weight, links in zip(pair.weights, pair.links, strict=True):
                    for link in links:
                        carried[link] += weight * pair.sent_bytes
        return dict(carried)

    def ports(self, *, without: str = "") -> set[tuple[str, int]]:
        """Addresses and ports of all jobs except `without`."""
        return {
            end
            for name, pairs in self.jobs.items()
            if name != without
            for pair in pairs
            for near, far in pair.ports
            for end in ((pair.source_address, near), (pair.target_address, far))
        }


def routes_of_paths(plan: Plan, routes: Routes) -> Routes:
    """The routes, in which path i of a planned pair has the links of the plan's i-th path.

    Pairs of hosts that the plan does not name keep their routes. Of several jobs with the same pair
    the first by name counts.
    """
    number = {name: at for at, name in enumerate(routes.links)}
    of = dict(routes.of)
    seen: set[tuple[str, str]] = set()
    for _, pairs in sorted(plan.jobs.items()):
        for pair in pairs:
            ends = pair.source, pair.target
            if ends in seen:
                continue
            seen.add(ends)
            of = {key: links for key, links in of.items() if key[:2] != ends}
            for at, links in enumerate(pair.links):
                passed = tuple(number.setdefault(link, len(number)) for link in links)
                of[*ends, at] = passed
    return replace(routes, links=tuple(number), of=of)


def read(file: Path, *, steers: bool = False) -> Plan:
    """Reads a plan file; PlanError in one line if it is wrong.

    steers: a process will send as the plan says, so the file must not be writable by other users.
    """
    try:
        with trusted.open_file(file, what="the plan") if steers else file.open("rb") as opened:
            data = opened.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise PlanError(f"{file} is larger than {binary_text(BYTES_MAX)}: it is no plan")
        found = json.loads(data)
    except trusted.UntrustedError as error:
        raise PlanError(str(error)) from None
    except OSError as error:
        raise PlanError(f"{file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{file} is not JSON, or cut off: {error}") from None
    try:
        version = found["weft_plan"]
        if version != VERSION:
            raise PlanError(f"{file} is plan version {version!r}, and this weft reads {VERSION}")
        links = [text(one) for one in found["links"]]
        jobs = {
            text(name): tuple(_pair(row, links) for row in rows)
            for name, rows in found["jobs"].items()
        }
        return Plan(text(found["fabric"]), jobs)
    except PlanError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
        raise PlanError(f"{file} is no plan: make it with weft plan assign") from None


def _pair(row: Mapping[str, Any], names: Sequence[str]) -> PairPlan:
    paths = tuple(int(one) for one in row["paths"])
    weights = tuple(float(one) for one in row["weights"])
    ports = tuple((int(near), int(far)) for near, far in row["ports"])
    numbers = [[int(one) for one in path] for path in row["links"]]
    sent_bytes = int(row["bytes"])
    if not 0 <= sent_bytes <= BYTES_SENT_MAX or any(one < 0 for path in numbers for one in path):
        raise ValueError
    links = tuple(tuple(names[one] for one in path) for path in numbers)
    lengths = {len(paths), len(weights), len(links), *([len(ports)] if ports else [])}
    good_ports = all(0 < one < 65_536 for pair in ports for one in pair)
    good_weights = all(0.0 <= one <= 1.0 for one in weights)
    if (
        len(lengths) != 1
        or not (0 < len(paths) <= PAIR_PATHS_MAX)
        or not (good_ports and good_weights)
    ):
        raise ValueError
    return PairPlan(
        text(row["from"]),
        text(row["to"]),
        text(row["from_address"]),
        text(row["to_address"]),
        sent_bytes,
        paths,
        ports,
        weights,
        links,
    )


def as_json(plan: Plan) -> dict[str, Any]:
    number: dict[str, int] = {}
    jobs = {
        name: [
            {
                "from": pair.source,
                "to": pair.target,
                "from_address": pair.source_address,
                "to_address": pair.target_address,
                "bytes": pair.sent_bytes,
                "paths": list(pair.paths),
                "ports": [list(one) for one in pair.ports],
                "weights": list(pair.weights),
                "links": [
                    [number.setdefault(link, len(number)) for link in path] for path in pair.links
                ],
            }
            for pair in pairs
        ]
        for name, pairs in sorted(plan.jobs.items())
    }
    return {"weft_plan": VERSION, "fabric": plan.fabric, "links": list(number), "jobs": jobs}


def write(plan: Plan, file: Path) -> None:
    """Replaces the file atomically: readers see the old plan or the new one."""
    try:
        text = json.dumps(as_json(plan), separators=(",", ":")) + "\n"
        created.replace(file, text, durable=True)
    except OSError as error:
        raise PlanError(f"cannot write {file}: {error.strerror}") from None


@contextmanager
def changing(file: Path, fabric: str, *, wait_s: float = 10.0) -> Iterator[Plan]:
    """Locks a plan file and yields its plan, an empty one if there is no file.

    PlanError if another planner holds the lock for `wait_s`, or the plan is of another fabric.
    The lock is a POSIX lock on FILE.lock, which also works between hosts that share a folder.
    """
    lock = file.with_name(file.name + ".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise PlanError(f"cannot open {lock}: {error.strerror}") from None
    try:
        _lock(descriptor, file, wait_s)
        plan = read(file) if file.exists() else Plan(fabric)
        if plan.fabric != fabric:
            raise PlanError(
                f"{file} is a plan for the fabric {plan.fabric}, and the routes are of {fabric}: "
                "give another --plan, or --fabric if both are one fabric that was probed in parts"
            )
        yield plan
    finally:
        os.close(descriptor)


def _lock(descriptor: int, file: Path, wait_s: float) -> None:
    until_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() < until_s:
                time.sleep(STEP_S)
                continue
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            raise PlanError(
                f"another planner ({holder or 'unknown'}) has locked {file} for {wait_s:g} s: "
                "try again when it has ended"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        return
