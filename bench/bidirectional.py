"""Measures the throughput between two hosts in one and in both directions, weft beside TCP.

Contenders run one after the other, so that each has both hosts to itself.
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
PATTERNS = {"one way": ((0, 1),), "both ways": ((0, 1), (1, 0))}
STUDY = Study(
    "bidirectional",
    keys=("contender", "direction", "size_bytes"),
    measures={"rate_bytes_per_s": "higher"},
    columns=(*PERFTEST, ("flow_rates_bytes_per_s", "each way")),
)


@click.command("bidirectional")
@flow_options()
@study_options(duration_s=0.2, warmup_s=0.05, size="64K", only=("weft", "tcp-cubic"))
def command(size: int, duration_s: float, warmup_s: float, **options: Any) -> None:
    """Measures two hosts in one direction, and in both at once: does one slow down the other?"""
    given = common(options)
    names = chosen(given, USUAL, list(SOCKETS))
    places = placed(2, given.places)
    load = load_of(given, size, duration_s, warmup_s)

    def measure(name: str) -> Iterator[Config]:
        peer = peer_of(name)
        for direction, ends in PATTERNS.items():
            flows = [Flow(*pair, peer.kind, peer.streams) for pair in ends]
            yield {"direction": direction, **traffic.run(flows, places, load)}

    settings = {"duration_s": duration_s, "warmup_s": warmup_s}
    conduct(STUDY, given, names, measure, settings)
