"""Measures flows over several equal paths, and with one of the paths slow.

A TCP flow takes one path, and several flows may take the same path. Link rates do not change during
a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from bench.lib import labs, traffic
from bench.lib.common import Config
from bench.lib.options import PATH_RATE, PERFTEST, common, flow_options, study_options
from bench.lib.study import Study, chosen, conduct
from bench.lib.traffic import Flow, Load
from bench.peers import SOCKETS, peer_of

USUAL = ("weft", "tcp-cubic", "tcp-bbr", "mptcp")
IN_FLIGHT = 64  # number of messages in flight of all flows together
BATCH = 4  # messages counted at once; larger batches would blur arrival times on slow paths
EQUAL, SLOW = PATHS = ("equal", "one at 25%")
SLOW_PERCENT = 25
STUDY = Study(
    "collision",
    keys=("contender", "paths", "flows", "size_bytes"),
    measures={"capacity_share": "higher", "rate_bytes_per_s": "higher", "jain": "higher"},
    columns=(
        ("paths", "paths"),
        ("flows", "flows"),
        *PERFTEST,
        ("capacity_share", "of capacity"),
        ("jain", "Jain"),
        ("retransmitted_segments", "resent"),
    ),
    x="flows",
)


@click.command("collision")
@flow_options("64K", duration_s=3.0)
@click.option(
    *("-N", "--flows"),
    type=click.IntRange(1, 64),
    multiple=True,
    default=(1, 8),
    show_default=True,
    help="Flows from one host to another; repeat for several numbers.",
)
@click.option("--paths", "paths", type=click.Choice(PATHS), multiple=True, help="Both by default.")
@PATH_RATE
@study_options(duration_s=0.5, warmup_s=0.2, flows=(2,), only=("weft", "tcp-cubic"), paths=(EQUAL,))
def command(
    size: int,
    duration_s: float,
    warmup_s: float,
    flows: tuple[int, ...],
    paths: tuple[str, ...],
    path_rate: int,
    **options: Any,
) -> None:
    """Measures flows over equal paths of a lab, and with one of the paths slow; needs root."""
    given = common(options, labs.equal_paths(path_rate))
    lab = given.lab
    assert lab is not None  # common() has built the lab
    names = chosen(given, USUAL, list(SOCKETS))
    hosts = labs.across(lab)
    slow = [labs.uplinks(lab)[0], labs.uplinks(lab)[0].replace("leaf0", "leaf1")]

    def measure(name: str) -> Iterator[Config]:
        peer = peer_of(name)
        for which in paths or PATHS:
            share = SLOW_PERCENT / 100 if which == SLOW else 1.0
            for link in slow:
                labs.change(lab, link, rate_bytes_per_s=lab.degraded_rate(link, share))
            capacity = labs.capacity_bytes_per_s(lab)
            for count in flows:
                in_flight = max(IN_FLIGHT // count, BATCH)
                load = Load(size, duration_s, warmup_s, in_flight_max=in_flight, batch_max=BATCH)
                sent = [Flow(0, 1, peer.kind, peer.streams)] * count
                found = traffic.run(sent, hosts, load)
                found["capacity_share"] = found["rate_bytes_per_s"] / capacity
                yield found | {"paths": which, "flows": count}

    conduct(STUDY, given, names, measure, {"duration_s": duration_s, "warmup_s": warmup_s})
