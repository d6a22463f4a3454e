"""Measures the processor time per gigabyte of both sides, weft beside TCP.

User and system time of both processes counts, engines included, but not the kernel's threads.
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
    "cpu",
    keys=("contender", "size_bytes"),
    measures={"cpu_s_per_gbyte": "lower", "rate_bytes_per_s": "higher"},
    columns=(
        ("cpu_s_per_gbyte", "core-s/GB"),
        ("sender_cpu_s_per_gbyte", "sender"),
        ("receiver_cpu_s_per_gbyte", "receiver"),
        *PERFTEST,
    ),
)


@click.command("cpu")
@flow_options()
@study_options(duration_s=0.2, warmup_s=0.05, size="64K", only=("weft", "tcp-cubic"))
def command(size: int, duration_s: float, warmup_s: float, **options: Any) -> None:
    """Measures the core-seconds per GB of one flow, both sides together."""
    given = common(options)
    names = chosen(given, USUAL, list(SOCKETS))
    places = placed(2, given.places)

    def measure(name: str) -> Iterator[Config]:
        peer = peer_of(name)
        flow = Flow(0, 1, peer.kind, peer.streams)
        found = traffic.run([flow], places, load_of(given, size, duration_s, warmup_s))
        sides = (found["sender_cpu_s_per_gbyte"], found["receiver_cpu_s_per_gbyte"])
        yield found | {"cpu_s_per_gbyte": None if None in sides else sum(sides)}

    settings = {"duration_s": duration_s, "warmup_s": warmup_s}
    conduct(STUDY, given, names, measure, settings)
