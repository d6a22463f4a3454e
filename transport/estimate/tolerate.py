"""How much latency, and how little bandwidth between nodes, a training step tolerates.

The reference is the step on the given network. A step tolerates a network on which it takes at most
a given share longer. Latency is added to every message between nodes, with the rate of the
reference; the least rate is that of each GPU between nodes, with the latencies of the reference.
On several sites both are of the link of a whole site to the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from transport.estimate.computation import Computation, of_gpu
from transport.estimate.gpus import Gpu
from transport.estimate.models import Model
from transport.estimate.networks import Link, Network
from transport.estimate.plan import Plan
from transport.estimate.rounds import length_ns
from transport.estimate.sites import with_site_link
from transport.estimate.step import Step
from transport.estimate.times import ROUNDING
from transport.estimate.training import Training, faster, launch_ns, train

PRECISION = 1e-4  # relative width of the interval at which bisection stops
HALVINGS_MAX = 100  # bisection stops after so many estimates in any case
LATENCY_MIN_NS = 1.0  # a smaller tolerated latency counts as 0
NO_TRAFFIC = "nothing is sent between nodes"
NOT_MONOTONE = "not judged: the estimate is not monotone"


@dataclass(frozen=True)
class Bound:
    """The end of what a step tolerates. None: there is none, and why says the reason."""

    value: float | None
    why: str = ""


@dataclass(frozen=True)
class Tolerance:
    """What a step tolerates. reference: its estimate on the given network.

    limit_ns: the longest step that is tolerated. latency_ns: added to each message between nodes.
    bytes_per_s: of a GPU between nodes, in one direction. links: name -> the step in ns with such
    a link between nodes.
    """

    plan: Plan
    reference: Training
    limit_ns: float
    latency_ns: Bound
    bytes_per_s: Bound
    links: dict[str, float]

    def suffices(self, link: str) -> bool:
        return self.links[link] <= self.limit_ns * (1 + ROUNDING)


def tolerance(
    model: Model,
    plan: Plan,
    gpu: Gpu,
    network: Network,
    share: float,
    links: Mapping[str, Link] | None = None,
    computation: Computation | None = None,
) -> Tolerance:
    """What a step tolerates before it takes more than `share` (above 0) longer.

    links: those to try between nodes. computation: as of train(). PlanError if the plan does not
    fit the model.
    """
    reference = train(model, plan, gpu, network, computation)
    computed = computation or of_gpu(model, plan, gpu)
    limit_ns = reference.step_ns * (1 + share)

    def step_ns(other: Network) -> float:
        step = Step(model, plan, computed, other)
        return max(length_ns(step), launch_ns(step))

    # A single message that takes as long as the whole limit exceeds it, so both ends are found.
    latency = largest(lambda ns: step_ns(later(network, ns)), LATENCY_MIN_NS, limit_ns, limit_ns)
    rate = network.between.bytes_per_s if network.sites is None else network.sites.link.bytes_per_s
    slowest = max(rate * limit_ns / 1e9, 2.0)
    slower = largest(lambda factor: step_ns(slower_by(network, factor)), 1.0, slowest, limit_ns)
    needed = Bound(None, slower.why) if slower.value is None else Bound(rate / slower.value)
    tried = {name: step_ns(with_link(network, one)) for name, one in (links or {}).items()}
    return Tolerance(plan, reference, limit_ns, latency, needed, tried)


def largest(step_ns: Callable[[float], float], low: float, high: float, limit_ns: float) -> Bound:
    """The largest value from low to high at which the step takes at most limit_ns, by bisection.

    step_ns: must not decrease; what was evaluated is checked. 0: the step is longer even at `low`.
    Without a bound: it is not longer even at `high`.
    """
    at = {low: step_ns(low), high: step_ns(high)}
    if at[high] > limit_ns >= at[low]:
        for _ in range(HALVINGS_MAX):
            if high <= low * (1 + PRECISION):
                break
            middle = math.sqrt(low * high)
            at[middle] = step_ns(middle)
            low, high = (low, middle) if at[middle] > limit_ns else (middle, high)
    found = [at[value] for value in sorted(at)]
    if any(longer < shorter * (1 - ROUNDING) for shorter, longer in pairwise(found)):
        return Bound(None, NOT_MONOTONE)
    if found[-1] <= limit_ns:
        return Bound(None, NO_TRAFFIC)
    return Bound(low if found[0] <= limit_ns else 0.0)


def slower_by(network: Network, factor: float) -> Network:
    """The network with less bandwidth between nodes or, if there are several, between sites."""
    if network.sites is None:
        return faster(network, 1 / factor)
    return with_site_link(
        network, lambda link: replace(link, bytes_per_s=link.bytes_per_s / factor)
    )


def later(network: Network, extra_ns: float) -> Network:
    """The network with a latency added to each message between nodes, or between its sites."""

    def changed(one: Link) -> Link:
        protocols = (replace(each, step_ns=each.step_ns + extra_ns) for each in one.protocols)
        return replace(one, protocols=tuple(protocols))

    if network.sites is not None:
        return with_site_link(network, changed)
    pairs = None if network.pairs is None else changed(network.pairs)
    return replace(network, between=changed(network.between), pairs=pairs)


def with_link(network: Network, link: Link) -> Network:
    """The network with another link between nodes, which NICs share if it is of a network.

    NVLink, PCIe and links of a torus are no NICs: each GPU has the whole link, and its PCIe link to
    a NIC does not limit it. They count as if a switch joined them. Of several sites, it is the link
    between them.
    """
    if network.sites is not None:
        return with_site_link(network, lambda _: link)
    sharing = network.sharing
    if link.kind != "network":
        sharing = replace(sharing, pcie_bytes_per_s=0.0)
    elif sharing.nics_per_node:
        share = sharing.nics_per_node / network.gpus_per_node
        link = replace(link, bytes_per_s=link.bytes_per_s * share)
    return replace(network, between=link, pairs=None, sharing=sharing)
