"""Collectives of a step on several sites, such as data centres, that a wide-area link joins.

Sites have equally many GPUs, numbered one site after the other. A group in several sites works in
two levels: GPUs of a site reduce or gather among each other, and each exchanges its part with the
GPUs of the other sites that have the same one. All GPUs of a site do so at once and share its link.
NCCL does this only if the framework does, as HSDP; a ring of all GPUs sends about as many bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from transport.estimate.collectives import Estimate, estimate as estimate_on_switch
from transport.estimate.networks import Link, Network
from transport.estimate.plan import Group, Plan, PlanError
from transport.estimate.sharing import Spread

SITES_MAX = 1_024
LIMIT = "sites"  # what limits an operation whose exchange between sites takes longest


@dataclass(frozen=True)
class Sites:
    """count: how many. gpus: of each. link: of a whole site to the others, in one direction."""

    count: int
    gpus: int
    link: Link


def joined(network: Network, plan: Plan, count: int, link: Link) -> Network:
    """The network in each of `count` sites that the plan's GPUs fill.

    PlanError: they do not, or share a layer or experts over several sites.
    """
    if network.torus is not None:
        raise PlanError("sites: not on a torus: leave one out")
    gpus, left = divmod(plan.gpus, count)
    if left or (gpus > network.gpus_per_node and gpus % network.gpus_per_node):
        raise PlanError(
            f"sites: {plan.gpus:,} GPUs do not fill {count:,} sites of whole nodes of "
            f"{network.gpus_per_node}"
        )
    for name in ("tensor", "context", "expert"):
        group = plan.group(name)
        if group.ranks > 1 and group.stride * group.ranks > gpus:
            raise PlanError(
                f"{name}: its {group.ranks} ranks are in several sites of {gpus:,} GPUs, which is "
                "not estimated: give fewer"
            )
    for name in ("data", "shard"):
        group = plan.group(name)
        held = group.stride * group.ranks
        if held % gpus and gpus % held:
            raise PlanError(
                f"sites: {group.ranks} {name} ranks, {held} GPUs, neither fill whole sites of "
                f"{gpus:,} nor divide one"
            )
    return replace(network, sites=Sites(count, gpus, link))


def with_site_link(network: Network, changed: Callable[[Link], Link]) -> Network:
    """The network with another link between its sites."""
    assert network.sites is not None
    return replace(network, sites=replace(network.sites, link=changed(network.sites.link)))


def crossing(network: Network, plan: Plan, stage: int, to: int) -> Group | None:
    """The group of a send between stages in different sites; None: they are in the same one."""
    sites = network.sites
    if sites is None or not plan.is_away(stage, to, sites.gpus):
        return None
    return Group(2, max(plan.group("pipeline").stride, sites.gpus))


def estimate(
    network: Network, operation: str, size_bytes: float, group: Group, nodes: int
) -> Estimate:
    """The time of an operation. network: with sites. nodes: of the two ranks of a send."""
    sites = network.sites
    assert sites is not None
    if operation == "send":
        if group.stride < sites.gpus:
            return _near(network, operation, size_bytes, Group(2, group.stride), nodes)
        return _far(sites, operation, size_bytes, 2)
    far = group.nodes(sites.gpus)
    near = Group(group.ranks // far, group.stride)
    if far == 1:
        return _near(network, operation, size_bytes, group, nodes)
    outside = _far(sites, operation, size_bytes / near.ranks, far)
    if near.ranks == 1:
        return outside
    inside = _near(network, operation, size_bytes, near, near.nodes(network.gpus_per_node))
    return inside.followed_by(outside, group.ranks)


def _near(
    network: Network, operation: str, size_bytes: float, group: Group, nodes: int
) -> Estimate:
    each = network.gpus_per_node
    spread = Spread(max(group.stride // each, 1), group.nodes(each))
    return estimate_on_switch(
        network, operation, size_bytes, group.ranks, nodes=nodes, spread=spread
    )


def _far(sites: Sites, operation: str, size_bytes: float, count: int) -> Estimate:
    """An operation of one GPU in each site, each with its part of the site's link."""
    each = replace(sites.link, bytes_per_s=sites.link.bytes_per_s / sites.gpus)
    network = Network(LIMIT, "", each)
    found = estimate_on_switch(network, operation, size_bytes, count, nodes=count)
    limit = LIMIT if found.limited_by == "between" else found.limited_by
    # The link is not that of a NIC, which other operations between nodes share.
    return replace(found, limited_by=limit, nic_ns=0.0)
