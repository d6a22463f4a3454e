"""Measures a network in which every host sends to another, random host.

Every host sends one flow and receives one; no host sends to itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import click

from bench.lib import traffic
from bench.lib.common import Config
from bench.lib.options import PERFTEST, common, flow_options, study_options
from bench.lib.placement import placed
from bench.lib.study import Study, chosen, conduct, load_of
from bench.lib.traffic import Flow
from bench.peers import SOCKETS, peer_of
from transport.cli.options import SEED

USUAL = ("weft", "tcp-cubic", "tcp-bbr", "mptcp")
STUDY = Study(
    "permutation",
    keys=("contender", "hosts", "size_bytes"),
    measures={"rate_bytes_per_s": "higher", "slowest_bytes_per_s": "higher", "jain": "higher"},
    columns=(
        ("hosts", "hosts"),
        *PERFTEST,
        ("slowest_bytes_per_s", "slowest flow"),
        ("jain", "Jain"),
    ),
    x="hosts",
)


def derangement(hosts: int, seed: int) -> list[int]:
    """The target of each host: one cycle through all hosts in random order (Sattolo)."""
    chance = random.Random(seed)
    targets = list(range(hosts))
    for last in range(hosts - 1, 0, -1):
        other = chance.randrange(last)
        targets[last], targets[other] = targets[other], targets[last]
    return targets


@click.command("permutation")
@flow_options("256K")
@click.option(
    *("-N", "--hosts"),
    type=click.IntRange(2, 64),
    default=4,
    show_default=True,
    help="Number of processes.",
)
@click.option("--seed", type=SEED, default=1, show_default=True, help="Seed of the permutation.")
@study_options(duration_s=0.2, warmup_s=0.05, size="64K", hosts=3, only=("weft", "tcp-cubic"))
def command(
    size: int, duration_s: float, warmup_s: float, hosts: int, seed: int, **options: Any
) -> None:
    """Measures flows from each host to another; without path collisions, all get the same rate."""
    given = common(options)
    names = chosen(given, USUAL, list(SOCKETS))
    places = placed(hosts, given.places)
    targets = derangement(hosts, seed)

    def measure(name: str) -> Iterator[Config]:
        peer = peer_of(name)
        flows = [Flow(one, targets[one], peer.kind, peer.streams) for one in range(hosts)]
        found = traffic.run(flows, places, load_of(given, size, duration_s, warmup_s))
        yield found | {"hosts": hosts, "slowest_bytes_per_s": min(found["flow_rates_bytes_per_s"])}

    settings = {"duration_s": duration_s, "warmup_s": warmup_s, "targets": targets}
    conduct(STUDY, given, names, measure, settings)
