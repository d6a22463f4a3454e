"""Networks as estimates see them: links inside a node and between nodes, with rates and latencies.

A link has protocols, as NCCL's LL, LL128 and Simple: one is quick for small messages, another has
the full rate. The time of an operation is that of the best protocol. links.toml has common links
with their sources; `weft estimate calibrate` writes profiles of measured networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport.estimate.names import matched
from transport.estimate.sharing import NOTHING, Sharing
from transport.estimate.tables import (
    TableError,
    inner,
    known_keys,
    number,
    text,
    texts,
    whole,
    wrong,
)
from transport.ground import toml
from transport.ground.text import similar
from transport.ground.units import bytes_text, ns_of

if TYPE_CHECKING:
    from transport.estimate.sites import Sites
    from transport.estimate.torus import Torus

LINKS = Path(__file__).parent / "links.toml"
# Kinds of links, which have their latencies in links.toml; a network joins nodes.
KINDS = ("nvlink", "pcie", "network", "torus")
FILE_BYTES_MAX = 1 << 20
LATENCY_MAX_NS = 10_000_000_000


class NetworkError(ValueError):
    """A profile is missing or wrong."""


@dataclass(frozen=True)
class Slowdown:
    """Factors by which computation and communication of a GPU take longer while both run at once.

    Both use the processors and the memory of the GPU. Each factor is from 1 to SLOWDOWN_MAX.
    """

    computation: float = 1.0
    communication: float = 1.0


SLOWDOWN_MAX = 100.0
NONE = Slowdown()


@dataclass(frozen=True)
class Protocol:
    """base_ns: latency of a call. step_ns: that of a step. share: payload's part of the rate.

    tree_more_ns: what a step of a tree takes longer. tree_share: payload's part in trees; 0: share.
    filling: trees pass data on in chunks, and wait so many times sqrt(latency x time of the bytes),
    as with chunks of the best size; 0: not known.
    """

    name: str
    base_ns: float
    step_ns: float
    share: float
    tree_more_ns: float = 0.0
    tree_share: float = 0.0
    filling: float = 0.0

    def step(self, is_tree: bool) -> float:
        """The latency of a step in ns."""
        return self.step_ns + self.tree_more_ns * is_tree

    def part(self, is_tree: bool) -> float:
        """Payload's part of the rate."""
        return self.tree_share if is_tree and self.tree_share else self.share


@dataclass(frozen=True)
class Link:
    """bytes_per_s: the rate of one GPU's link in one direction.

    launch_ns: the least time between operations that follow each other, which the host needs to
    launch one. kind: one of KINDS; "": not known, as of a measured link. Of a torus, the rate is
    that of one of an accelerator's links to its neighbours. adds: the part of the rate that an
    AllReduce reaches whose data switches add (NVLink SHARP); 0: they cannot. ll_more_ns: what calls
    of LL take longer over RoCE than over InfiniBand, which is in their protocol.
    """

    bytes_per_s: float
    protocols: tuple[Protocol, ...]
    launch_ns: float = 0.0
    kind: str = ""
    adds: float = 0.0
    ll_more_ns: float = 0.0

    @property
    def is_of_torus(self) -> bool:
        return self.kind == "torus"

    def protocol(self, name: str) -> Protocol | None:
        return next((one for one in self.protocols if one.name == name), None)


@dataclass(frozen=True)
class Range:
    """The range that a profile was fitted to; outside of it estimates are extrapolated.

    operations: those that were measured; empty: not known.
    """

    sizes_bytes: tuple[int, int]
    ranks: tuple[int, int]
    median_error: float
    p95_error: float
    operations: tuple[str, ...] = ()

    def holds(self, operation: str, size_bytes: float, ranks: int) -> bool:
        (low, high), (few, many) = self.sizes_bytes, self.ranks
        known = not self.operations or operation in self.operations
        return known and low <= size_bytes <= high and few <= ranks <= many

    def __str__(self) -> str:
        """The range in words."""
        (low, high), (few, many) = self.sizes_bytes, self.ranks
        counts = f"{few}" if few == many else f"{few} to {many}"
        of = f" of {', '.join(self.operations)}" if self.operations else ""
        return f"{bytes_text(low)} to {bytes_text(high)}, {counts} ranks{of}"


@dataclass(frozen=True)
class Network:
    """inside: the link of a GPU to others of its node; None: all GPUs use `between`.

    pairs: the link as AllToAll and sends use it; None: as collectives do. calibrated: the range of
    the measurements behind it; None: the numbers are those of links.toml. slowdown: the factors
    by which computation and communication slow each other while both run. sharing: what limits
    several GPUs, or several kinds of traffic, together. torus: the accelerators of a step, whose
    links to neighbours `between` is; None: they are linked by switches. slices: how many such tori
    there are; outside: the link of one accelerator to those of other slices. sites: several sites
    with such a network each, and the link between them; None: one.
    """

    name: str
    source: str
    between: Link
    gpus_per_node: int = 1
    inside: Link | None = None
    pairs: Link | None = None
    calibrated: Range | None = None
    notes: tuple[str, ...] = field(default=())
    slowdown: Slowdown = NONE
    sharing: Sharing = NOTHING
    torus: Torus | None = None
    slices: int = 1
    outside: Link | None = None
    sites: Sites | None = None

    def extrapolates(self, operation: str, size_bytes: float, ranks: int) -> bool:
        """Whether an estimate is outside of the range of the measurements behind the network."""
        found = self.calibrated
        return found is not None and not found.holds(operation, size_bytes, ranks)

    def far(self, algorithm: str) -> Link:
        """The link between nodes that the algorithm uses."""
        return self.pairs if self.pairs is not None and algorithm == "pairs" else self.between

    def decides(self, nodes: int, algorithm: str) -> Link:
        """The link whose protocols an operation chooses from: between nodes if it spans several."""
        return self.far(algorithm) if nodes > 1 or self.inside is None else self.inside

    def nodes(self, ranks: int) -> int:
        """The number of nodes that `ranks` ranks occupy, if nodes are filled one by one."""
        return -(-ranks // self.gpus_per_node)


@cache
def _latencies() -> dict[str, tuple[Protocol, ...]]:
    """Kind of link -> its protocols."""
    tables = toml.read(LINKS)["latencies"]
    return {kind: tuple(Protocol(**each) for each in tables[kind]) for kind in KINDS}


def _slower(protocols: tuple[Protocol, ...], ll_more_ns: float) -> tuple[Protocol, ...]:
    """Protocols, with calls of LL that take `ll_more_ns` longer."""
    return tuple(
        replace(one, base_ns=one.base_ns + ll_more_ns * (one.name == "LL")) for one in protocols
    )


@cache
def links() -> dict[str, Link]:
    """The shipped links by name."""
    return {
        one["name"]: Link(
            float(one["bytes_per_s"]),
            _slower(_latencies()[one["latency"]], one.get("ll_more_ns", 0.0)),
            kind=one["latency"],
            adds=one.get("adds", 0.0),
            ll_more_ns=one.get("ll_more_ns", 0.0),
        )
        for one in toml.read(LINKS)["links"]
    }


def with_file(file: Path | None) -> dict[str, Link]:
    """The shipped links and those of a user's file, which come before shipped ones of that name.

    The file has a table for each link: bytes_per_s of one accelerator in one direction (of one of
    its links, in a torus), latency: the kind of link whose latencies it has, or of a network's link
    that of a message, such as "1 ms", and, if one likes, about. NetworkError: what is wrong, in one
    line.
    """
    if file is None:
        return links()
    tables = _read(file)
    if not tables:
        raise NetworkError(f"{file} has no link: give one as [name], with bytes_per_s and latency")
    try:
        return {**links(), **{name: _own_link(tables, name) for name in tables}}
    except TableError as error:
        raise NetworkError(f"{file}: {error}") from None


def _own_link(tables: Mapping[str, Any], name: str) -> Link:
    table, where = inner(tables, name, example=f" ([{name}] above its keys)"), f"{name}."
    known_keys(table, {"bytes_per_s", "latency", "about"}, where)
    kind, step_ns = _latency(table, where)
    if "about" in table:
        text(table, "about", where)
    rate = float(number(table, "bytes_per_s", where, least=1))
    found = Link(rate, _latencies()[kind], kind=kind)
    return found if step_ns is None else delayed(found, step_ns)


def _latency(table: Mapping[str, Any], where: str) -> tuple[str, float | None]:
    """The kind of link whose latencies count; or that of a network, and a message's latency."""
    known = f'one of {", ".join(KINDS)}, or the time of a message between nodes, such as "1 ms"'
    found = table.get("latency")
    if not isinstance(found, str) or not found:
        raise wrong(table, "latency", where, known)
    if found in KINDS:
        return found, None
    try:
        step_ns = ns_of(found)
    except ValueError:
        hint = similar(found, KINDS)
        raise TableError(f"{where}latency: {found}: must be {known}{hint}") from None
    if not 0 <= step_ns <= LATENCY_MAX_NS:
        raise TableError(f"{where}latency: {found}: must be 0 to 10 s")
    return "network", step_ns


def delayed(link: Link, step_ns: float) -> Link:
    """The link with another latency of each message, also in trees."""
    protocols = (replace(one, step_ns=step_ns, tree_more_ns=0.0) for one in link.protocols)
    return replace(link, protocols=tuple(protocols))


def about_links() -> dict[str, str]:
    """Name of each shipped link -> text about it."""
    tables = toml.read(LINKS)
    return {one["name"]: one["about"] for one in tables["links"]}


def link(name: str, known: Mapping[str, Link] | None = None) -> Link:
    """A link by its name. known: all links; None: the shipped ones."""
    known = links() if known is None else known
    name = matched(name, known)
    if name not in known:
        hint = similar(name, list(known))
        raise NetworkError(f"no link {name}: known are {', '.join(known)}{hint}")
    return known[name]


def own_link(accelerator: str, named: Sequence[str], known: Mapping[str, Link]) -> str | None:
    """The first link that the profile of an accelerator names; None: it names none.

    NetworkError: one of them is not known.
    """
    for one in named:
        if one not in known:
            hint = similar(one, list(known))
            raise NetworkError(
                f"{accelerator}.links: no link {one}: known are {', '.join(known)}; --links-file "
                f"adds your own{hint}"
            )
    return next(iter(named), None)


def of_links(
    between: str,
    inside: str | None = None,
    gpus_per_node: int = 8,
    nics_per_node: int | None = None,
    pcie: str | None = None,
    sharing: Sharing = NOTHING,
    known: Mapping[str, Link] | None = None,
) -> Network:
    """A network of links. nics_per_node: NICs of a node; None: one for each GPU.

    pcie: the link of a GPU that its traffic to NICs passes; None: the link inside if that is PCIe,
    else not known. sharing: its gpus_per_switch, oversubscription and nodes_per_leaf. known: all
    links; None: the shipped ones.
    """
    known = links() if known is None else known
    between = matched(between, known)
    inside = None if inside is None else matched(inside, known)
    far, near = link(between, known), None if inside is None else link(inside, known)
    for name, one in ((between, far), (inside, near)):
        if one is not None and one.is_of_torus:
            raise NetworkError(
                f"{name} links the neighbours of a torus, not GPUs to a switch: tori have "
                "weft estimate train, hlo and collective (--torus SHAPE), and compare"
            )
    count = gpus_per_node if near is not None else 1
    if nics_per_node is not None and not 1 <= nics_per_node <= count:
        raise NetworkError(
            f"{nics_per_node} NICs per node: at most {count}, because a node has {count} "
            f"GPU{'s' * (count > 1)} and each GPU at most one NIC; for nodes of several GPUs, name "
            "the link between the GPUs of a node (--inside)"
        )
    share = 1.0 if nics_per_node is None else nics_per_node / count
    far = replace(far, bytes_per_s=far.bytes_per_s * share)
    name = between if near is None else f"{inside} and {between}"
    host = _pcie(pcie, near, known)
    is_inside = near is not None and near.kind == "pcie"
    if sharing.gpus_per_switch and not is_inside:
        raise NetworkError("gpus_per_switch: needs GPUs linked by PCIe inside a node, as pcie4")
    sharing = replace(
        sharing,
        pcie_bytes_per_s=0.0 if host is None else host.bytes_per_s * share,
        is_inside=is_inside,
        nics_per_node=nics_per_node or 0,
    )
    own = [one for one in (between, inside) if one is not None and one not in links()]
    source = "links.toml" if not own else "links.toml and your own file"
    return Network(name, source, far, count, near, sharing=sharing)


def _pcie(name: str | None, inside: Link | None, known: Mapping[str, Link]) -> Link | None:
    """The PCIe link of a GPU: the named one, or that inside a node; None: not known."""
    near = inside if inside is not None and inside.kind == "pcie" else None
    if name is None:
        return near
    found = link(name, known)
    if found.kind != "pcie":
        names = ", ".join(one for one, each in known.items() if each.kind == "pcie")
        raise NetworkError(f"pcie: {name}: must be one of {names}")
    if near is not None and near != found:
        raise NetworkError(f"pcie: {name}: GPUs of a node are linked by another one: leave it out")
    return found


def load(file: Path) -> Network:
    """A profile of `weft estimate calibrate`. NetworkError says what is wrong in one line."""
    give = "give a file that `weft estimate calibrate` wrote"
    try:
        tables = _read(file)
    except NetworkError as error:
        raise NetworkError(f"{error}: {give}") from None
    if not tables:
        raise NetworkError(f"{file} is empty: {give}")
    try:
        return parsed(tables)
    except NetworkError as error:
        raise NetworkError(f"{file}: {error}") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return toml.read(file, FILE_BYTES_MAX)
    except toml.TomlError as error:
        raise NetworkError(str(error)) from None


def parsed(tables: Mapping[str, Any]) -> Network:
    """The network of a profile's tables."""
    try:
        return _network(tables)
    except TableError as error:
        raise NetworkError(str(error)) from None


def _network(tables: Mapping[str, Any]) -> Network:
    known = {
        *("name", "source", "gpus_per_node", "inside", "between", "pairs"),
        *("calibrated", "notes", "slowdown"),
    }
    known_keys(tables, known)
    return Network(
        name=text(tables, "name"),
        source=text(tables, "source"),
        between=_link(tables, "between"),
        gpus_per_node=whole(tables, "gpus_per_node", default=1),
        inside=_link(tables, "inside") if "inside" in tables else None,
        pairs=_link(tables, "pairs") if "pairs" in tables else None,
        calibrated=_range(tables) if "calibrated" in tables else None,
        notes=texts(tables, "notes"),
        slowdown=_slowdown(tables) if "slowdown" in tables else NONE,
    )


def _link(tables: Mapping[str, Any], key: str) -> Link:
    table, where = inner(tables, key, example=f" ([{key}] above its keys)"), f"{key}."
    known_keys(table, {"bytes_per_s", "launch_ns", "protocols"}, where)
    protocols = table.get("protocols")
    if not isinstance(protocols, list) or not protocols:
        raise wrong(table, "protocols", where, f"[[{where}protocols]] tables")
    return Link(
        float(number(table, "bytes_per_s", where, least=1)),
        tuple(_protocol(one, f"{where}protocols.{at}") for at, one in enumerate(protocols)),
        float(number(table, "launch_ns", where, 0.0)),
    )


def _protocol(found: Any, name: str) -> Protocol:
    one, where = inner({name: found}, name), f"{name}."
    known_keys(one, {"name", "base_ns", "step_ns", "share"}, where)
    return Protocol(
        text(one, "name", where),
        float(number(one, "base_ns", where, 0.0)),
        float(number(one, "step_ns", where)),
        float(number(one, "share", where, 1.0, 1e-9, 1.0)),
    )


def _slowdown(tables: Mapping[str, Any]) -> Slowdown:
    table, names = inner(tables, "slowdown"), ("computation", "communication")
    known_keys(table, names, "slowdown.")
    return Slowdown(
        *(float(number(table, name, "slowdown.", 1.0, 1.0, SLOWDOWN_MAX)) for name in names)
    )


def _range(tables: Mapping[str, Any]) -> Range:
    table = inner(tables, "calibrated")
    try:
        sizes, ranks = (tuple(int(one) for one in table[key]) for key in ("sizes_bytes", "ranks"))
        (low, high), (few, many) = sizes, ranks
        if not (0 < low <= high and 0 < few <= many):
            raise ValueError("an empty range")
        errors = float(table["median_error"]), float(table["p95_error"])
        return Range(
            (low, high), (few, many), *errors, tuple(map(str, table.get("operations", ())))
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        raise NetworkError(
            "calibrated: wrong: give the table that weft estimate calibrate writes"
        ) from None
