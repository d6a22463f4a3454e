"""Probes which links the paths between the hosts of a lab cross."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from transport.lab import Lab
from transport.plan.hops import found
from transport.plan.probe import End, Flow, Limits, Prober, udp_socket
from transport.plan.routes import Routes


def probed(lab: Lab, hosts: Sequence[str], base: int, paths: int) -> Routes:
    """The routes of paths 0 to `paths`, each from port base + i to port base + i."""
    ends = [End(one, lab.address(one), partial(lab.call, one, udp_socket)) for one in hosts]
    flows = [
        Flow(source, target, base + path, base + path)
        for source in range(len(hosts))
        for target in range(len(hosts))
        if source != target
        for path in range(paths)
    ]
    names = {end.address: end.node for wire in lab.plan.wires for end in wire.ends}
    with Prober(ends, flows, Limits()) as prober:
        return found(ends, prober.run(), names).routes
