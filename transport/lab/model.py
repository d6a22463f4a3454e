"""Reads and checks a lab file: hosts, leaves, spines and the properties of their links.

The simulator reads the same model, so this module imports only the standard library and
transport/ground.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from transport.ground import toml, units
from transport.ground.text import nearest

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
NODES_MAX = 65_536
ETHERNET_HEADER_BYTES = 14
# Time that a CPU may need to wake up; the token bucket holds what the link sends in this time.
BURST_NS = 2_000_000
BURST_PACKETS_MIN = 2


class LabError(Exception):
    """A lab operation failed; the message is one line that says how to fix it."""


class LabModelError(LabError, ValueError):
    """A lab file or a change of a link is invalid."""


@dataclass(frozen=True)
class Key:
    """One key of a link: its field, kind, bounds and meaning."""

    field: str
    kind: str  # "rate", "int" or "share"
    low: int
    high: int
    meaning: str

    @property
    def expected(self) -> str:
        if self.kind == "rate":
            return units.A_RATE
        what = "a number" if self.kind == "share" else "a whole number"
        return f"{what} from {self.low} to {self.high}"


LINK_KEYS = {
    "rate": Key("rate_bytes_per_s", "rate", 1_000, 10**12, "bytes/s, or text such as 8 Gb/s"),
    "queue_bytes": Key("queue_bytes", "int", 256, 1 << 31, "size of the queue; more is lost"),
    "delay_ns": Key("delay_ns", "int", 0, 10**10, "one-way delay of the wire"),
    "mtu_bytes": Key("mtu_bytes", "int", 576, 65_535, "the largest IP packet"),
    "ecn_bytes": Key("ecn_bytes", "int", 0, 1 << 31, "queue depth that marks CE; 0: never"),
    "loss": Key("loss", "share", 0, 1, "share of packets lost, at random"),
    "loss_every": Key("loss_every", "int", 0, 1 << 31, "every n-th packet is lost; 0: none"),
    "burst_enter": Key("burst_enter", "share", 0, 1, "chance per packet that a loss burst begins"),
    "burst_leave": Key("burst_leave", "share", 0, 1, "chance per packet that it ends"),
    "burst_loss": Key("burst_loss", "share", 0, 1, "share of packets lost within a burst"),
    "corruption": Key("corruption", "share", 0, 1, "share of packets in which one bit is flipped"),
    "up_bytes_max": Key("up_bytes_max", "int", 0, 65_535, "drop longer IP packets upwards; 0: no"),
    "down_bytes_max": Key("down_bytes_max", "int", 0, 65_535, "drop longer ones downwards; 0: no"),
}


@dataclass(frozen=True)
class Link:
    """The properties of a link in each direction."""

    rate_bytes_per_s: int = 125_000_000
    queue_bytes: int = 1 << 19
    delay_ns: int = 0
    mtu_bytes: int = 9_000
    ecn_bytes: int = 0
    loss: float = 0.0
    loss_every: int = 0
    burst_enter: float = 0.0
    burst_leave: float = 0.1
    burst_loss: float = 1.0
    corruption: float = 0.0
    up_bytes_max: int = 0
    down_bytes_max: int = 0

    def __post_init__(self) -> None:
        for name, key in LINK_KEYS.items():
            check(name, key, getattr(self, key.field))
        frame_bytes = self.mtu_bytes + ETHERNET_HEADER_BYTES
        if self.queue_bytes < frame_bytes:
            raise LabModelError(
                f"queue_bytes {self.queue_bytes} is less than a packet of mtu_bytes "
                f"{self.mtu_bytes}: give at least {frame_bytes}"
            )
        if self.ecn_bytes > self.queue_bytes:
            raise LabModelError(
                f"ecn_bytes {self.ecn_bytes} is more than queue_bytes {self.queue_bytes}, so no "
                "packet would be marked: lower it"
            )
        if self.burst_enter > 0 and self.burst_leave == 0:
            raise LabModelError("burst_leave is 0, so a loss burst would never end: raise it")

    @property
    def burst_bytes(self) -> int:
        """The size of the link's token bucket, which an idle link may send at once."""
        least = BURST_PACKETS_MIN * (self.mtu_bytes + ETHERNET_HEADER_BYTES)
        return max(self.rate_bytes_per_s * BURST_NS // 10**9, least)

    @property
    def damages(self) -> bool:
        """Whether the link loses or corrupts packets, apart from cuts and full queues."""
        swallows = self.up_bytes_max or self.down_bytes_max
        return any((self.loss, self.loss_every, self.burst_enter, self.corruption, swallows))

    def changed(self, **fields: Any) -> Link:
        """A copy of the link with some fields changed."""
        known = [key.field for key in LINK_KEYS.values()]
        for name in fields:
            if name not in known:
                raise LabModelError(f"a link has no field {name}{nearest(name, known)}")
        return dataclasses.replace(self, **fields)


def check(name: str, key: Key, value: Any) -> None:
    """Raises LabModelError unless the value has the key's kind and is within its bounds."""
    kinds: tuple[type, ...] = (int, float) if key.kind == "share" else (int,)
    # Refuse bool, which is an int in Python. nan fails the range check.
    fits = isinstance(value, kinds) and not isinstance(value, bool)
    if not (fits and key.low <= value <= key.high):
        bounds = f", from {key.low:,} to {key.high:,} bytes/s" if key.kind == "rate" else ""
        raise LabModelError(f"{name} = {value!r}: expected {key.expected}{bounds}")


def rate_of(name: str, value: Any) -> int:
    """Bytes per second from a whole number or from text with its unit."""
    try:
        return units.rate_of(value)
    except ValueError as error:
        raise LabModelError(f"{name} = {error}") from None


def link_fields(table: Mapping[str, Any]) -> dict[str, Any]:
    """Checks a table of link keys; returns the fields of Link that they set."""
    fields: dict[str, Any] = {}
    for name, value in table.items():
        key = LINK_KEYS.get(name)
        if key is None:
            raise LabModelError(f"a link has no key {name}{nearest(name, list(LINK_KEYS))}")
        converted = rate_of(name, value) if key.kind == "rate" else value
        check(name, key, converted)
        fields[key.field] = converted
    return fields


@dataclass(frozen=True)
class LabModel:
    """Hosts at leaf routers; every leaf has one uplink to every spine router.

    There are as many equal-cost paths between hosts of different leaves as there are spines.
    """

    name: str = "default"
    hosts: int = 2
    spines: int = 4
    hosts_per_leaf: int = 1
    segmentation_offload: bool = False  # True: GSO packets of up to 64 KiB cross the links unsplit
    host_links: Link = field(default_factory=lambda: Link(rate_bytes_per_s=500_000_000))
    uplinks: Link = field(default_factory=Link)
    links: Mapping[str, Link] = field(default_factory=dict)  # links with their own table, by name

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or NAME.fullmatch(self.name) is None:
            raise LabModelError(
                f"name = {self.name!r}: expected at most 32 of a-z, 0-9, - and _, "
                "the first a letter or a digit"
            )
        for name, low in (("hosts", 1), ("spines", 1), ("hosts_per_leaf", 1)):
            check(name, Key(name, "int", low, NODES_MAX, ""), getattr(self, name))
        if not isinstance(self.segmentation_offload, bool):
            raise LabModelError(
                f"segmentation_offload = {self.segmentation_offload!r}: expected true or false"
            )
        for name in self.links:
            self._known(f"links.{name}", name)
        for name in self.link_names():
            self.check_offload(name, self.link(name))

    def check_offload(self, name: str, link: Link) -> None:
        """Refuses loss with segmentation_offload, where one loss would drop many packets."""
        if self.segmentation_offload and link.damages:
            raise LabModelError(
                f"{name}: with segmentation_offload each loss would drop up to 64 KiB: "
                "remove segmentation_offload, or remove loss, bursts and corruption"
            )

    @property
    def leaves(self) -> int:
        return -(-self.hosts // self.hosts_per_leaf)

    def leaf_of(self, host: int) -> int:
        return host // self.hosts_per_leaf

    def nodes(self) -> list[str]:
        """The names of all nodes: host0, ..., leaf0, ..., spine0, ..."""
        counts = (("host", self.hosts), ("leaf", self.leaves), ("spine", self.spines))
        return [f"{kind}{number}" for kind, count in counts for number in range(count)]

    def link_names(self) -> list[str]:
        """The names of all links, such as host0-leaf0 and leaf0-spine0."""
        return list(self._links)

    def link(self, name: str) -> Link:
        """The properties of a link: its own table, or that of its class."""
        self._known(name, name)
        return self.links.get(name) or (
            self.host_links if name.startswith("host") else self.uplinks
        )

    @cached_property
    def _links(self) -> dict[str, None]:
        below = [f"host{host}-leaf{self.leaf_of(host)}" for host in range(self.hosts)]
        above = [
            f"leaf{leaf}-spine{spine}"
            for leaf in range(self.leaves)
            for spine in range(self.spines)
        ]
        return dict.fromkeys(below + above)

    def _known(self, where: str, name: str) -> None:
        if name not in self._links:
            raise LabModelError(f"{where}: no such link{nearest(name, list(self._links))}")


SCALARS = ("hosts", "spines", "hosts_per_leaf", "segmentation_offload")
LAB_KEYS = ("name", *SCALARS, "host_links", "uplinks", "links")


def as_table(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise LabModelError(f"{where}: expected a table, not {value!r}")
    return value


def link_from(table: str, base: Link, value: Any) -> Link:
    """A link from a table of the file; missing keys are taken from `base`."""
    try:
        return base.changed(**link_fields(as_table("", value)))
    except LabModelError as error:
        raise LabModelError(f"[{table}] {str(error).removeprefix(': ')}") from None


def parse(table: Mapping[str, Any], *, name: str = "default") -> LabModel:
    """A model from the tables of a lab file; `name` is used if the file has none."""
    for key in table:
        if key not in LAB_KEYS:
            raise LabModelError(f"a lab has no key {key}{nearest(key, list(LAB_KEYS))}")
    base = LabModel()
    host_links = link_from("host_links", base.host_links, table.get("host_links", {}))
    uplinks = link_from("uplinks", base.uplinks, table.get("uplinks", {}))
    given = {key: table[key] for key in SCALARS if key in table}
    plain = LabModel(name=table.get("name", name), host_links=host_links, uplinks=uplinks, **given)
    links = {}
    for link, value in as_table("[links]", table.get("links", {})).items():
        if link not in plain.link_names():
            raise LabModelError(f'[links."{link}"] no such link{nearest(link, plain.link_names())}')
        links[link] = link_from(f'links."{link}"', plain.link(link), value)
    return dataclasses.replace(plain, links=links)


def load(file: str | Path) -> LabModel:
    """Loads a lab file; the lab's default name is the file's name."""
    path = Path(file)
    try:
        table = toml.read(path)
    except toml.TomlError as error:
        raise LabModelError(f"{error}: give a lab file") from None
    stem = re.sub(r"[^a-z0-9_-]", "-", path.stem.lower()).lstrip("-_")[:32]
    try:
        return parse(table, name=stem or "default")
    except LabModelError as error:
        raise LabModelError(f"{path}: {error}") from None


def as_dict(model: LabModel) -> dict[str, Any]:
    """The model as a JSON object; `from_dict` reads it back."""
    return dataclasses.asdict(model)


def from_dict(content: Mapping[str, Any]) -> LabModel:
    """The model from a result of `as_dict`."""
    made = dict(content)
    for key in ("host_links", "uplinks"):
        made[key] = Link(**made[key])
    made["links"] = {name: Link(**link) for name, link in made["links"].items()}
    return LabModel(**made)
