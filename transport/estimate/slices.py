"""Collectives of a step on a torus, or on several slices that a data-centre network joins.

A slice is a torus; accelerators are numbered slice after slice. A group inside a slice uses the
torus; one accelerator of each slice, the network; a group of both first the one and then the
other, as each accelerator exchanges only its part of the data with the other slices
(jax-ml.github.io/scaling-book, part 2; MaxText's dcn_data_parallelism and dcn_fsdp_parallelism).
"""

from __future__ import annotations

from dataclasses import replace
from math import log2

from transport.estimate.collectives import Estimate, ShapeError, estimate as estimate_on_switch
from transport.estimate.networks import Link, Network
from transport.estimate.plan import Group
from transport.estimate.torus import Torus, estimate as estimate_on_torus, part_of

# The part of a step by which each doubling of slices makes it longer, as all wait for the slowest:
# fitted by `python -m bench estimate_fit` to steps that are longer than their bytes explain.
SLICES_WAIT = 0.034


def waiting(slices: int, wait: float = SLICES_WAIT) -> float:
    """By which factor slices that wait for each other make a step longer."""
    return 1.0 + wait * log2(slices)


def estimate(network: Network, operation: str, size_bytes: float, group: Group) -> Estimate:
    """The time of an operation of a group. network: with a torus. ShapeError: it has no shape."""
    torus, link = network.torus, network.outside
    assert torus is not None
    far = spanned(group, torus.chips)
    if far == 1:
        return _near(network, torus, operation, size_bytes, group)
    assert link is not None
    if far == group.ranks:
        return _far(link, operation, size_bytes, far)
    if group.ranks % far or operation not in ("all_reduce", "all_gather", "reduce_scatter"):
        raise ShapeError(f"{operation}: {group.ranks} accelerators of several slices: not known")
    near = Group(group.ranks // far, group.stride)
    inside = _near(network, torus, operation, size_bytes, near)
    outside = _far(link, operation, size_bytes / near.ranks, far)
    return inside.followed_by(replace(outside, limited_by="slices"), group.ranks)


def spanned(group: Group, chips: int) -> int:
    """Over how many slices of `chips` accelerators a group is spread."""
    return group.nodes(chips)


def _near(
    network: Network, torus: Torus, operation: str, size_bytes: float, group: Group
) -> Estimate:
    part = part_of(torus, group.ranks, group.stride)
    return estimate_on_torus(part, network.between, operation, size_bytes)


def _far(link: Link, operation: str, size_bytes: float, slices: int) -> Estimate:
    network = Network("slices", "", link)
    found = estimate_on_switch(network, operation, size_bytes, slices, nodes=slices)
    return replace(found, limited_by="slices" if found.limited_by == "between" else "latency")
