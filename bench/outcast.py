"""Measures one sender to many receivers: throughput and fairness.

Each flow has its own receiver.
"""

from __future__ import annotations

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

USUAL = ("weft", "tcp-cubic", "tcp-bbr", "mptcp")
STUDY = Study(
    "outcast",
    keys=("contender", "receivers", "size_bytes"),
    measures={"rate_bytes_per_s": "higher", "jain": "higher"},
    columns=(
        ("receivers", "receivers"),
        *PERFTEST,
        ("slowest_bytes_per_s", "slowest flow"),
        ("jain", "Jain"),
    ),
    x="receivers",
)


@click.command("outcast")
@flow_options("256K")
@click.option(
    *("-N", "--receivers"),
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Number of receiving processes.",
)
@study_options(duration_s=0.2, warmup_s=0.05, size="64K", receivers=2, only=("weft", "tcp-cubic"))
def command(size: int, duration_s: float, warmup_s: float, receivers: int, **options: Any) -> None:
    """Measures one sender to N receivers."""
    given = common(options)
    names = chosen(given, USUAL, list(SOCKETS))
    places = placed(receivers + 1, given.places)

    def measure(name: str) -> Iterator[Config]:
        peer = peer_of(name)
        flows = [Flow(0, one + 1, peer.kind, peer.streams) for one in range(receivers)]
        found = traffic.run(flows, places, load_of(given, size, duration_s, warmup_s))
        slowest = min(found["flow_rates_bytes_per_s"])
        yield found | {"receivers": receivers, "slowest_bytes_per_s": slowest}

    settings = {"duration_s": duration_s, "warmup_s": warmup_s}
    conduct(STUDY, given, names, measure, settings)
