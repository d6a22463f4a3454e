"""Builds networks of a named topology: fat trees, rails, planes, a dumbbell, a lab file.

Routes are computed together with the links, which is fast for large trees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transport.lab.model import LabError, load
from transport.sim import graph
from transport.sim.errors import BadKeyError
from transport.sim.network import Array, LinkKind, Network, PortList, SetList
from transport.sim.schema import LINK

PORTS_MAX = 1 << 24
# The link from a program to its host's device queue; its rate is that at which a CPU core passes
# packets to the kernel.
DEVICE = LinkKind(
    bytes_per_s=5_000_000_000, delay_ns=1, queue_bytes=1 << 30, mark_from_bytes=0, mark_full_bytes=0
)


def problem(key: str, text: str) -> BadKeyError:
    """The exception for a wrong key of [network]."""
    return BadKeyError(("network", key), text)


def link_kind(keys: Mapping[str, Any], *, up: bool = False, rate: int | None = None) -> LinkKind:
    """The properties of links to hosts, or (`up`) of links between switches."""
    queue, delay = keys["queue_bytes"], keys["delay_ns"]
    bytes_per_s = keys["rate"]
    if up:
        bytes_per_s = keys["uplink_rate"] or rate or keys["rate"]
        delay = keys["uplink_delay_ns"] or delay
        queue = keys["uplink_queue_bytes"] or queue
    kind = LinkKind(
        bytes_per_s=bytes_per_s,
        delay_ns=delay,
        queue_bytes=queue,
        mark_from_bytes=keys["mark_from_bytes"],
        mark_full_bytes=keys["mark_full_bytes"],
        loss=keys["loss"],
        bit_error_rate=keys["bit_error_rate"],
    )
    try:
        kind.values()
    except ValueError as error:
        raise problem("mark_from_bytes", f"{error}: lower it") from None
    return kind


def wanted_hosts(keys: Mapping[str, Any]) -> int:
    hosts: int | None = keys["hosts"]
    if hosts is None:
        raise problem("hosts", "missing: give the number of hosts, as hosts = 128")
    if hosts < 2:
        raise problem("hosts", f"{hosts}: a network needs at least 2")
    return hosts


@dataclass(frozen=True)
class Sizes:
    """The dimensions of a fat tree; `spines` is the number of spines that a leaf is linked to."""

    per_leaf: int
    leaves: int
    spines: int
    up_rate: int
    radix: int | None


def sizes(keys: Mapping[str, Any], hosts: int, *, tiers: int = 2) -> Sizes:
    """The dimensions of the fat tree in [network]; BadKeyError if its keys are contradictory."""
    share = keys["oversubscription"]
    radix = keys["radix"]
    per_leaf = keys["hosts_per_leaf"]
    if radix is None and per_leaf is None:
        radix = _radix(hosts, tiers)
    if per_leaf is None:
        # Divide a leaf's ports so that ports to hosts / uplinks is the oversubscription.
        per_leaf = int(radix * share / (1 + share) + 1e-9) if keys["uplink_rate"] is None else 0
        per_leaf = per_leaf or radix // 2
    leaves = -(-hosts // per_leaf)
    spines, up_rate = _uplinks(keys, per_leaf)
    if radix is not None and per_leaf + spines > radix:
        raise problem(
            "radix",
            f"{radix} ports are too few for {per_leaf} hosts and {spines} uplinks of a leaf: give "
            f"at least {per_leaf + spines}, or fewer hosts_per_leaf",
        )
    return Sizes(per_leaf, leaves, spines, up_rate, radix)


def _radix(hosts: int, tiers: int) -> int:
    """The smallest power of two as radix, with which a full fat tree holds `hosts` hosts."""
    radix = 2
    while (radix**2 // 2 if tiers == 2 else radix**3 // 4) < hosts:
        radix *= 2
    return radix


def _uplinks(keys: Mapping[str, Any], per_leaf: int) -> tuple[int, int]:
    """The number of uplinks of a leaf, and their rate."""
    rate, share = keys["rate"], keys["oversubscription"]
    spines, up_rate = keys["spines"], keys["uplink_rate"]
    down = per_leaf * rate
    if spines is None:
        wanted = down / share / (up_rate or rate)
        spines = round(wanted)
        if spines < 1 or abs(wanted - spines) > 1e-6:
            raise problem(
                "oversubscription",
                f"{share:g} needs {wanted:g} uplinks for a leaf of {per_leaf} hosts: give "
                "spines, or an uplink_rate that makes it a whole number",
            )
    if up_rate is None:
        up_rate = round(down / share / spines)
    elif "oversubscription" in keys["given"] and abs(down / share / spines / up_rate - 1) > 1e-6:
        really = down / spines / up_rate
        raise problem(
            "oversubscription",
            f"{share:g}, but {spines} uplinks of that rate give {really:g}: remove one of "
            "oversubscription, spines and uplink_rate",
        )
    return spines, up_rate


def node_list(hosts: int, **counts: int) -> tuple[list[str], list[str]]:
    """Names and kinds of nodes: host0, host1, ..., then leaf0 and so on."""
    names, kinds = [], []
    for kind, count in {"host": hosts, **counts}.items():
        names += [f"{kind}{number}" for number in range(count)]
        kinds += [kind] * count
    if len(names) > PORTS_MAX:
        raise problem(
            "hosts", f"the network would have {len(names):,} nodes: at most {PORTS_MAX:,}"
        )
    return names, kinds


def _check_radix(radix: int | None, ports: int, what: str) -> None:
    if radix is not None and ports > radix:
        raise problem(
            "radix", f"{radix} ports are too few, a {what} needs {ports}: give at least {ports}"
        )


def fat_tree(keys: Mapping[str, Any]) -> Network:
    """A fat tree of two or three tiers."""
    hosts = wanted_hosts(keys)
    return three_tiers(keys, hosts) if keys["tiers"] == 3 else two_tiers(keys, hosts)


def two_tiers(keys: Mapping[str, Any], hosts: int) -> Network:
    """A fat tree of two tiers: every leaf has one uplink to every spine."""
    for name in ("pods", "cores"):
        if keys[name] is not None:
            raise problem(name, "needs tiers = 3: remove it, or set tiers")
    made = sizes(keys, hosts)
    _check_radix(made.radix, made.leaves, "spine")
    leaf_of = np.arange(hosts)[:, None] // made.per_leaf
    return planes(keys, leaf_of, made.leaves, made.spines, made.up_rate)


def rail(keys: Mapping[str, Any]) -> Network:
    """Rails: each server has a NIC per rail; a leaf serves one rail of hosts_per_leaf servers."""
    hosts, rails = wanted_hosts(keys), keys["rails"]
    if hosts % rails:
        raise problem("hosts", f"{hosts} is not a multiple of rails = {rails}, the NICs per server")
    servers = hosts // rails
    if keys["hosts_per_leaf"] is None and keys["radix"] is None:
        keys = {**keys, "hosts_per_leaf": servers}
    made = sizes(keys, servers)
    host = np.arange(hosts)
    leaf_of = (host // rails // made.per_leaf) * rails + host % rails
    leaves = made.leaves * rails
    _check_radix(made.radix, leaves, "spine")
    return planes(keys, leaf_of[:, None], leaves, made.spines, made.up_rate)


def multi_plane(keys: Mapping[str, Any]) -> Network:
    """One fat tree of two tiers for each port of a host; the trees share only the hosts."""
    hosts, count = wanted_hosts(keys), keys["planes"]
    made = sizes(keys, hosts)
    _check_radix(made.radix, made.leaves, "spine")
    leaf_of = np.arange(hosts)[:, None] // made.per_leaf + made.leaves * np.arange(count)
    return planes(keys, leaf_of, made.leaves, made.spines, made.up_rate)


def planes(
    keys: Mapping[str, Any], leaf_of: Array, leaves: int, spines: int, up_rate: int
) -> Network:
    """One fat tree of two tiers per plane; leaf_of[host, plane] is the host's leaf in a plane."""
    hosts, count = leaf_of.shape
    names, kinds = node_list(hosts, leaf=leaves * count, spine=spines * count)
    laid = PortList()
    for plane in range(count):
        laid.add(np.arange(hosts), hosts + leaf_of[:, plane], link_kind(keys))
    leaf = np.repeat(np.arange(leaves), spines)
    spine = np.tile(np.arange(spines), leaves)
    above = hosts + leaves * count
    first_up = hosts * count
    for plane in range(count):
        one, other = hosts + plane * leaves + leaf, above + plane * spines + spine
        laid.add(one, other, link_kind(keys, up=True, rate=up_rate))
    ports, from_one, from_other = laid.build(hosts)
    sets = SetList()
    route = np.full(((leaves + spines) * count, leaves), -1, np.int32)
    for plane in range(count):
        mine = slice(first_up + plane * leaves * spines, first_up + (plane + 1) * leaves * spines)
        ups = from_one[mine].reshape(leaves, spines)
        downs = sets.add_each(from_other[mine]).reshape(leaves, spines)
        for number in range(leaves):
            at = plane * leaves + number
            route[at, :] = sets.add(np.sort(ups[number]))
            route[at, number] = -1
        at = leaves * count + plane * spines
        route[at : at + spines, :] = downs.T
    begin, members = sets.build()
    group_of = leaf_of[:, 0].astype(np.uint32)
    return Network(hosts, names, kinds, ports, group_of, route, begin, members)


def three_tiers(keys: Mapping[str, Any], hosts: int) -> Network:
    """A fat tree of three tiers; spine j of every pod is linked to the same group of cores."""
    made = sizes(keys, hosts, tiers=3)
    pods = keys["pods"]
    per_pod = -(-made.leaves // pods) if pods else (made.radix or 2 * made.per_leaf) // 2
    per_pod = min(per_pod, made.leaves)
    pods = -(-made.leaves // per_pod)
    leaves = pods * per_pod
    cores = keys["cores"] or made.spines * per_pod
    if cores % made.spines:
        raise problem("cores", f"{cores} is not a multiple of the {made.spines} spines of a pod")
    each = cores // made.spines
    _check_radix(made.radix, per_pod + each, "spine")
    _check_radix(made.radix, pods, "core")
    names, kinds = node_list(hosts, leaf=leaves, spine=pods * made.spines, core=cores)
    leaf0, spine0 = hosts, hosts + leaves
    core0 = spine0 + pods * made.spines
    laid = PortList()
    host_leaf = np.arange(hosts) // made.per_leaf
    laid.add(np.arange(hosts), leaf0 + host_leaf, link_kind(keys))
    up = link_kind(keys, up=True, rate=made.up_rate)
    leaf = np.repeat(np.arange(leaves), made.spines)
    spine = np.tile(np.arange(made.spines), leaves)
    first_leaf = laid.add(leaf0 + leaf, spine0 + leaf // per_pod * made.spines + spine, up)
    above = np.repeat(np.arange(pods * made.spines), each)
    core = above % made.spines * each + np.tile(np.arange(each), pods * made.spines)
    first_spine = laid.add(spine0 + above, core0 + core, up)
    ports, from_one, from_other = laid.build(hosts)
    tree = _Tree(
        *(leaves, per_pod, pods, made.spines, each),
        leaf_up=from_one[first_leaf:first_spine].reshape(leaves, made.spines),
        leaf_down=from_other[first_leaf:first_spine].reshape(leaves, made.spines),
        spine_up=from_one[first_spine:].reshape(pods * made.spines, each),
        spine_down=from_other[first_spine:].reshape(pods * made.spines, each),
    )
    route, begin, members = tree.routes()
    # The last pods may have leaves without hosts, and no routes lead to such leaves.
    route = route[:, : int(host_leaf[-1]) + 1]
    return Network(hosts, names, kinds, ports, host_leaf.astype(np.uint32), route, begin, members)


@dataclass(frozen=True)
class _Tree:
    """A fat tree of three tiers; port arrays are indexed by [leaf, spine] or [spine, core]."""

    leaves: int
    per_pod: int
    pods: int
    spines: int
    each: int
    leaf_up: Array
    leaf_down: Array
    spine_up: Array
    spine_down: Array

    def routes(self) -> tuple[Array, Array, Array]:
        sets = SetList()
        spines, cores = self.pods * self.spines, self.spines * self.each
        route = np.full((self.leaves + spines + cores, self.leaves), -1, np.int32)
        pod_of = np.arange(self.leaves) // self.per_pod
        for leaf in range(self.leaves):
            route[leaf, :] = sets.add(np.sort(self.leaf_up[leaf]))
            route[leaf, leaf] = -1
        down = sets.add_each(self.leaf_down).reshape(self.leaves, self.spines)
        for spine in range(spines):
            pod = spine // self.spines
            row = route[self.leaves + spine]
            row[:] = sets.add(np.sort(self.spine_up[spine]))
            inside = pod_of == pod
            row[inside] = down[inside, spine % self.spines]
        # A core switch of group j reaches every pod through spine j of the pod.
        to_pod = sets.add_each(self.spine_down).reshape(self.pods, cores)
        route[self.leaves + spines :, :] = to_pod.T[:, pod_of]
        begin, members = sets.build()
        return route, begin, members


def dumbbell(keys: Mapping[str, Any]) -> Network:
    """Two switches joined by one link, with half the hosts at each."""
    hosts = wanted_hosts(keys)
    names, kinds = node_list(hosts, leaf=2)
    own, middle = link_kind(keys), link_kind(keys, up=True)
    half = -(-hosts // 2)
    links = [(host, hosts + (host >= half), own) for host in range(hosts)]
    return graph.network(names, kinds, hosts, [*links, (hosts, hosts + 1, middle)])


def _lab_alone(keys: Mapping[str, Any]) -> None:
    for name in keys["given"]:
        if name in LINK:
            raise problem(name, f"a lab's links are set in its file: change it in {keys['lab']}")


def lab(keys: Mapping[str, Any], folder: Path) -> Network:
    """The network of a lab file; corruption and loss of every n-th packet become random loss."""
    if keys["lab"] is None:
        raise problem("lab", 'missing: name the lab file, as lab = "four_paths.toml"')
    _lab_alone(keys)
    try:
        model = load(folder / keys["lab"])
    except LabError as error:
        raise problem("lab", str(error)) from None
    devices = model.hosts if keys["host_queues"] else 0
    names, kinds = node_list(model.hosts, leaf=model.leaves, spine=model.spines, device=devices)
    kinds = ["switch" if kind == "device" else kind for kind in kinds]
    numbers = {name: number for number, name in enumerate(names)}
    links, notes = [], []
    for name in model.link_names():
        like = model.link(name)
        if like.burst_enter:
            raise problem(
                "lab",
                f"{keys['lab']}: {name} has burst loss, which is not simulated: "
                "use loss, or [[events]]",
            )
        every = 1 / like.loss_every if like.loss_every else 0.0
        kept = (1 - like.loss) * (1 - like.corruption) * (1 - every)
        kind = LinkKind(
            bytes_per_s=like.rate_bytes_per_s,
            delay_ns=max(like.delay_ns, 1),
            queue_bytes=like.queue_bytes,
            mark_from_bytes=like.ecn_bytes,
            mark_full_bytes=like.ecn_bytes,
            loss=min(max(1 - kept, 0.0), 1.0),
            burst_bytes=like.burst_bytes,
        )
        one, other = name.split("-")
        if devices and one.startswith("host"):
            # A device queue is a node of its own, which drops packets that do not fit.
            near, one = one, one.replace("host", "device")
            links.append((numbers[near], numbers[one], DEVICE))
        links.append((numbers[one], numbers[other], kind))
    if model.segmentation_offload:
        notes.append("segmentation_offload is not simulated: packets cross the links one by one")
    made = graph.network(names, kinds, model.hosts, links, notes)
    for name in ("mark_from_bytes", "mark_full_bytes"):
        # A device queue sets no ECN marks.
        made.ports[name][made.ports["from"] >= len(names) - devices] = 0
    return made
