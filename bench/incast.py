"""Measures incast: many senders to one receiver, and optionally a victim flow.

The victim is a flow from one of the senders to another receiver; it is counted separately.
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
from bench.lib.traffic import Flow, Load, jain
from bench.peers import SOCKETS, peer_of

USUAL = ("weft", "tcp-cubic", "tcp-bbr", "mptcp")
STUDY = Study(
    "incast",
    keys=("contender", "senders", "size_bytes"),
    measures={"rate_bytes_per_s": "higher", "victim_rate_bytes_per_s": "higher", "jain": "higher"},
    columns=(
        ("senders", "senders"),
        *PERFTEST,
        ("slowest_bytes_per_s", "slowest flow"),
        ("jain", "Jain"),
        ("victim_rate_bytes_per_s", "victim"),
        ("victim_alone_bytes_per_s", "alone"),
        ("victim_slowdown", "slowdown"),
    ),
    x="senders",
)


def without_victim(counts: list[list[int]], load: Load) -> Config:
    """Computes perftest's columns from the flows of the incast, leaving out the victim."""
    most = max(map(sum, zip(*counts, strict=True)))
    whole = sum(map(sum, counts))
    return {
        "iterations": whole,
        "messages_per_s": whole / load.duration_s,
        "peak_bytes_per_s": most * load.size_bytes * load.intervals / load.duration_s,
    }


@click.command("incast")
@flow_options("256K")
@click.option(
    *("-N", "--senders"),
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Processes that send to the one receiver.",
)
@click.option("--victim", is_flag=True, help="One sender also sends to a receiver of its own.")
@study_options(duration_s=0.2, warmup_s=0.05, size="64K", senders=2, only=("weft", "tcp-cubic"))
def command(
    size: int, duration_s: float, warmup_s: float, senders: int, victim: bool, **options: Any
) -> None:
    """Measures N senders to a receiver; --victim: also a flow from a sender to another receiver."""
    given = common(options)
    names = chosen(given, USUAL, list(SOCKETS))
    places = placed(senders + 1 + victim, given.places)
    load = load_of(given, size, duration_s, warmup_s)

    def measure(name: str) -> Iterator[Config]:
        peer = peer_of(name)
        flows = [Flow(one + 1, 0, peer.kind, peer.streams) for one in range(senders)]
        alone = None
        if victim:
            flows.append(Flow(1, senders + 1, peer.kind, peer.streams))
            alone = traffic.run(flows[-1:], places, load)["rate_bytes_per_s"]
        found = traffic.run(flows, places, load)
        rates = found["flow_rates_bytes_per_s"]
        incast = rates[:senders]
        found |= {"senders": senders, "rate_bytes_per_s": sum(incast), "jain": jain(incast)}
        found |= without_victim(found["timeline_messages"][:senders], load)
        found |= {"slowest_bytes_per_s": min(incast)}
        held = rates[senders] if victim else None
        found |= {"victim_rate_bytes_per_s": held, "victim_alone_bytes_per_s": alone}
        yield found | {"victim_slowdown": alone / held if alone and held else None}

    settings = {"duration_s": duration_s, "warmup_s": warmup_s, "victim": victim}
    conduct(STUDY, given, names, measure, settings)
