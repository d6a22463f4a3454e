"""Measures one flow of weft beside every other transport that this machine has.

Foreign programs, such as iperf3, measure themselves; programs that are missing are reported.
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
from bench.peers import ALL, PROGRAMS, peer_of

NCCL = "to compare with NCCL's Socket transport: python -m bench nccl"
STUDY = Study(
    "beside",
    keys=("contender", "size_bytes"),
    measures={"rate_bytes_per_s": "higher"},
    columns=(
        *PERFTEST,
        ("sender_cpu_s_per_gbyte", "sender core-s/GB"),
        ("receiver_cpu_s_per_gbyte", "receiver core-s/GB"),
        ("retransmitted_segments", "resent"),
    ),
)


@click.command("beside")
@flow_options()
@study_options(duration_s=0.2, warmup_s=0.05, size="64K")
def command(size: int, duration_s: float, warmup_s: float, **options: Any) -> None:
    """Measures one flow of weft beside one of TCP, MPTCP, iperf3, libfabric and UCX."""
    given = common(options)
    names = chosen(given, list(ALL), list(ALL))
    places = placed(2, given.places)

    def measure(name: str) -> Iterator[Config]:
        if name in PROGRAMS:
            yield PROGRAMS[name].run(places, size, duration_s)
            return
        peer = peer_of(name)
        flow = Flow(1, 0, peer.kind, peer.streams)
        yield traffic.run([flow], places, load_of(given, size, duration_s, warmup_s))

    times = {"duration_s": duration_s, "warmup_s": warmup_s}
    conduct(STUDY, given, names, measure, times, lambda _: [NCCL])
