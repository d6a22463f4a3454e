"""Places the processes of an experiment: their cores, address and network namespace.

Namespaces exist already, made by a lab or named in a file.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

CLONE_NEWNET = 0x40000000
ADDRESS = re.compile(r"[0-9a-fA-F.:]+\Z")
FIELDS = {"name": str, "address": str, "interfaces": str, "namespace": str, "cores": list}


@dataclass(frozen=True)
class EnterNamespace:
    """Moves the calling thread into a network namespace, given by a path such as /run/netns/a."""

    path: str

    def __call__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with open(self.path, "rb") as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                number = ctypes.get_errno()
                raise OSError(number, f"cannot enter {self.path}: {os.strerror(number)}")


@dataclass(frozen=True)
class Placement:
    """Cores, address and namespace of a process, which calls `enter` before it opens a socket."""

    name: str
    address: str = "127.0.0.1"
    interfaces: str = "lo"
    cores: tuple[int, ...] = ()
    enter: Callable[[], None] | None = None

    def take(self) -> None:
        """Moves the calling process to this place; also called in a child before exec."""
        if self.enter is not None:
            self.enter()
        if self.cores:
            os.sched_setaffinity(0, self.cores)


def usable_cores() -> list[int]:
    """The cores on which this process may run."""
    return sorted(os.sched_getaffinity(0))


def with_cores(places: Sequence[Placement]) -> list[Placement]:
    """Assigns cores to places that have none: equal disjoint shares, or one core each in turn."""
    cores = usable_cores()
    each = len(cores) // len(places)
    made = []
    for index, place in enumerate(places):
        share = cores[index * each : (index + 1) * each] if each else [cores[index % len(cores)]]
        made.append(place if place.cores else replace(place, cores=tuple(share)))
    return made


def loopback(count: int) -> list[Placement]:
    """`count` places on lo."""
    return with_cores([Placement(name=f"n{index}") for index in range(count)])


def placed(count: int, supplied: Sequence[Placement]) -> list[Placement]:
    """The supplied places in order, or loopback if there are none."""
    if not supplied:
        return loopback(count)
    if len(supplied) < count:
        raise click.UsageError(
            f"this experiment needs {count} places or hosts, not {len(supplied)}"
        )
    return with_cores(list(supplied[:count]))


def _place(entry: Any, index: int, path: Path) -> Placement:
    where = f"--place {path}: entry {index}"
    if not isinstance(entry, dict):
        raise click.UsageError(f"{where} must be a JSON object")
    for key, value in entry.items():
        if key not in FIELDS:
            raise click.UsageError(f"{where}: no field {key!r}; the fields are {', '.join(FIELDS)}")
        if not isinstance(value, FIELDS[key]):
            raise click.UsageError(f"{where}: {key} must be a {FIELDS[key].__name__}")
    fields = {"name": f"n{index}", **entry}
    if not ADDRESS.match(fields.get("address", "127.0.0.1")):
        raise click.UsageError(f"{where}: address must be an IP address")
    namespace = fields.pop("namespace", None)
    cores = fields.pop("cores", [])
    if any(type(core) is not int or core not in usable_cores() for core in cores):
        raise click.UsageError(f"{where}: cores must be among {usable_cores()}")
    if namespace is not None and not Path(namespace).exists():
        raise click.UsageError(f"{where}: there is no namespace {namespace}")
    enter = EnterNamespace(namespace) if namespace is not None else None
    return Placement(**fields, cores=tuple(cores), enter=enter)


def read_places(path: Path) -> list[Placement]:
    """Reads a JSON list of places, one object per process."""
    try:
        entries = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--place {path}: {error}") from None
    if not isinstance(entries, list):
        raise click.UsageError(f"--place {path}: must be a list of JSON objects")
    return [_place(entry, index, path) for index, entry in enumerate(entries)]
