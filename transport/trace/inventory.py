"""Reads an inventory: which rack, switch port, NIC and GPU the ranks and hosts of a job have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transport.errors import InvalidArgumentError
from transport.ground import toml
from transport.ground.text import nearest

FILE_BYTES_MAX = 16 << 20
RANKS_MAX = 1 << 20
TEXT_MAX = 200
UNKNOWN = "?"
HOST_KEYS = ("rack", "ranks", "gpus", "nics")
NIC_KEYS = ("switch", "port", "ranks")
PART = re.compile(r"\s*(\d{1,7})(?:-(\d{1,7}))?\s*")
# Domain, bus and device of PCI, without the function: the kernel log names GPUs so.
PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?", re.I)


class InventoryError(InvalidArgumentError):
    """An inventory cannot be read; the message names the file, the key and what is expected."""


@dataclass(frozen=True)
class Nic:
    """A NIC of a host. ranks: those that use it; empty: all ranks of the host may."""

    name: str
    switch: str = UNKNOWN
    port: str = UNKNOWN
    ranks: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        return f"switch {self.switch} port {self.port}"


@dataclass(frozen=True)
class Host:
    """A host. ranks: of the job, in the order of its GPUs. gpus: PCI address of each GPU."""

    name: str
    rack: str = UNKNOWN
    ranks: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    nics: tuple[Nic, ...] = ()


@dataclass(frozen=True)
class Spot:
    """Where a rank is; UNKNOWN: not told. nics: those that it may use."""

    rank: int
    host: str = UNKNOWN
    rack: str = UNKNOWN
    gpu: str = UNKNOWN
    nics: tuple[Nic, ...] = ()

    @property
    def text(self) -> str:
        return f"on {self.host}, rack {self.rack}"

    def as_json(self) -> dict[str, Any]:
        nics = [{"nic": one.name, "switch": one.switch, "port": one.port} for one in self.nics]
        own = {name: getattr(self, name) for name in ("rank", "host", "rack", "gpu")}
        return own | {"nics": nics}


@dataclass(frozen=True)
class Inventory:
    """The hosts by name. A host of a trace is found by its name, or by its name up to a dot."""

    hosts: Mapping[str, Host] = field(default_factory=dict)

    def host(self, name: str) -> Host | None:
        """The host of this name; "node7" and "node7.example.org" are the same, if that is clear."""
        known = self.hosts.get(name)
        if known is not None or not name:
            return known
        short = name.partition(".")[0]
        alike = [
            one
            for one in self.hosts.values()
            if one.name.partition(".")[0] == short and ("." not in name or "." not in one.name)
        ]
        return alike[0] if len(alike) == 1 else None

    def rack(self, host: str) -> str:
        found = self.host(host)
        return UNKNOWN if found is None else found.rack

    def of_rank(self, rank: int) -> Host | None:
        return next((one for one in self.hosts.values() if rank in one.ranks), None)

    def spot(self, rank: int, host: str = "", beside: Sequence[int] = ()) -> Spot:
        """Where a rank is.

        host: on which it ran, as the trace tells; empty: not told. beside: ranks of that host. A
        trace that tells another host than the inventory is right, as schedulers move jobs.
        """
        found = self.host(host) if host else self.of_rank(rank)
        if found is None:
            return Spot(rank, host or UNKNOWN)
        own = found.ranks if rank in found.ranks else tuple(sorted(beside))
        at = own.index(rank) if rank in own else len(found.gpus)
        gpu = found.gpus[at] if at < len(found.gpus) else UNKNOWN
        nics = tuple(one for one in found.nics if not one.ranks or rank in one.ranks)
        return Spot(rank, host or found.name, found.rack, gpu, nics)

    def moved(self, hosts: Iterable[tuple[int, str]]) -> list[str]:
        """A note if ranks ran on other hosts than the inventory says. hosts: rank and its host."""
        made = []
        for rank, host in sorted(hosts):
            told = self.of_rank(rank)
            if told is not None and host and self.host(host) is not told:
                made.append(f"rank {rank} ran on {host}, not on {told.name}")
        if not made:
            return []
        more = f", and {len(made) - 1} more" if made[1:] else ""
        return [f"the inventory is of another placement: {made[0]}{more}; the trace counts"]


def pci_of(text: str) -> str:
    """The PCI address of a GPU in one form, as "0000:1b:00"; empty: it is none."""
    found = PCI.fullmatch(text.strip().removeprefix("PCI:"))
    if found is None:
        return ""
    domain = int(found[1] or "0", 16)
    return f"{domain:04x}:{found[2].lower()}:{found[3].lower()}"


def read(file: Path) -> Inventory:
    """Reads an inventory. InventoryError if it cannot be read or contradicts itself."""
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise InventoryError(f"{file} is larger than {FILE_BYTES_MAX >> 20} MiB")
        tables = toml.read(file)
    except OSError as error:
        raise InventoryError(f"cannot read {file}: {error.strerror}") from None
    except toml.TomlError as error:
        raise InventoryError(str(error)) from None
    try:
        return _inventory(tables)
    except InventoryError as error:
        raise InventoryError(f"{file}: {error}") from None


def _inventory(tables: Mapping[str, Any]) -> Inventory:
    _known(tables, ("hosts",), "")
    hosts = {name: _host(name, one) for name, one in _table(tables.get("hosts"), "hosts").items()}
    if not hosts:
        raise InventoryError("it has no hosts: write a table [hosts.NAME] for each host")
    of_rank: dict[int, str] = {}
    of_port: dict[tuple[str, str], str] = {}
    for host in hosts.values():
        for rank in host.ranks:
            other = of_rank.setdefault(rank, host.name)
            if other != host.name:
                raise InventoryError(f"rank {rank} is on two hosts, {other} and {host.name}")
        for nic in host.nics:
            name = f"{nic.name} of {host.name}"
            if UNKNOWN not in (nic.switch, nic.port):
                other = of_port.setdefault((nic.switch, nic.port), name)
                if other != name:
                    raise InventoryError(f"{other} and {name} are at one port: {nic.text}")
    return Inventory(hosts)


def _host(name: str, value: Any) -> Host:
    where = f"hosts.{name}"
    table = _table(value, where)
    _known(table, HOST_KEYS, f"{where}.")
    ranks = _ranks(table.get("ranks", ()), f"{where}.ranks")
    gpus = _gpus(table.get("gpus", []), f"{where}.gpus")
    if ranks and gpus and len(ranks) != len(gpus):
        raise InventoryError(
            f"{where} has {len(ranks)} ranks and {len(gpus)} gpus: give the GPU of each rank, in "
            "order; ranks that share a GPU name it twice"
        )
    nics = tuple(
        _nic(f"{where}.nics.{nic}", nic, one, ranks)
        for nic, one in _table(table.get("nics", {}), f"{where}.nics").items()
    )
    return Host(name, _text(table, "rack", where), ranks, gpus, nics)


def _nic(where: str, name: str, value: Any, of_host: tuple[int, ...]) -> Nic:
    table = _table(value, where)
    _known(table, NIC_KEYS, f"{where}.")
    ranks = _ranks(table.get("ranks", ()), f"{where}.ranks")
    other = sorted(set(ranks) - set(of_host))
    if of_host and other:
        raise InventoryError(f"{where}.ranks: rank {other[0]} is not among the ranks of its host")
    return Nic(name, _text(table, "switch", where), _text(table, "port", where), ranks)


def _known(table: Mapping[str, Any], keys: Sequence[str], path: str) -> None:
    for name in table:
        if name not in keys:
            raise InventoryError(f"{path}{name}: there is no such key{nearest(name, keys)}")


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InventoryError(f"{where}: {value!r}: expected a table")
    return value


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key, UNKNOWN)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # racks and ports are often numbers
    if not isinstance(value, str) or not 0 < len(value) <= TEXT_MAX:
        raise InventoryError(f"{where}.{key}: {value!r}: expected text in quotes")
    return value


def _gpus(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InventoryError(f'{where}: {value!r}: expected a list such as ["0000:1b:00", ...]')
    made = []
    for one in value:
        found = pci_of(one) if isinstance(one, str) else ""
        if not found:
            raise InventoryError(
                f'{where}: {one!r}: expected a PCI address such as "0000:1b:00" (nvidia-smi -q)'
            )
        made.append(found)
    return tuple(made)


def _ranks(value: Any, where: str) -> tuple[int, ...]:
    """The ranks of a text such as "0-3, 8", of a list, or of one number."""
    parts = [value] if isinstance(value, int) else value
    parts = parts.split(",") if isinstance(parts, str) else parts
    made: list[int] = []
    for part in parts if isinstance(parts, list | tuple) else [None]:
        found = PART.fullmatch(str(part)) if isinstance(part, str | int) else None
        if found is None or isinstance(part, bool):
            raise InventoryError(f'{where}: {value!r}: expected ranks such as "0-7" or [0, 2]')
        first, last = int(found[1]), int(found[2] or found[1])
        if not first <= last < RANKS_MAX:
            raise InventoryError(f"{where}: {part}: expected increasing ranks below {RANKS_MAX}")
        made += range(first, last + 1)
    twice = sorted(rank for rank, count in Counter(made).items() if count > 1)
    if twice:
        raise InventoryError(f"{where}: rank {twice[0]} is named twice")
    return tuple(made)
