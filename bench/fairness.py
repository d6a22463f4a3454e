"""Measures how flows share a path: weft beside weft, weft beside TCP.

The name of a contender lists the flows of a run, as in `2 weft + 2 tcp-cubic`.
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
from bench.lib.traffic import Flow, jain
from bench.peers import peer_of

RIVALS = ("tcp-cubic", "tcp-bbr")
STUDY = Study(
    "fairness",
    keys=("contender", "size_bytes"),
    measures={"jain": "higher", "rate_bytes_per_s": "higher", "weft_share": "higher"},
    columns=(
        ("jain", "Jain"),
        ("weft_share", "weft's part"),
        ("jain_weft", "Jain of weft"),
        ("jain_rival", "Jain of rival"),
        *PERFTEST,
        ("flow_rates_bytes_per_s", "flows"),
    ),
)


def mixtures(flows: int) -> dict[str, list[str]]:
    """Name of a mix of flows -> the transport of each flow in it: one for all, or half and half."""
    half = flows // 2
    made = {f"{flows} {name}": [name] * flows for name in ("weft", *RIVALS)}
    for name in RIVALS:
        made[f"{flows - half} weft + {half} {name}"] = ["weft"] * (flows - half) + [name] * half
    return made


@click.command("fairness")
@flow_options("256K")
@click.option(
    *("-N", "--flows"),
    type=click.IntRange(2, 64),
    default=4,
    show_default=True,
    help="Flows from one host to another; each has one connection.",
)
@study_options(duration_s=0.2, warmup_s=0.05, size="64K", flows=2)
def command(size: int, duration_s: float, warmup_s: float, flows: int, **options: Any) -> None:
    """Measures Jain's index of n flows between two hosts: all weft, all TCP, half and half."""
    given = common(options)
    known = mixtures(flows)
    names = chosen(given, list(known), list(known))
    places = placed(2, given.places)

    def measure(name: str) -> Iterator[Config]:
        kinds = known[name]
        sent = [Flow(0, 1, peer_of(one).kind) for one in kinds]
        found = traffic.run(sent, places, load_of(given, size, duration_s, warmup_s))
        rates = found["flow_rates_bytes_per_s"]
        weft = [rate for rate, kind in zip(rates, kinds, strict=True) if kind == "weft"]
        rival = [rate for rate, kind in zip(rates, kinds, strict=True) if kind != "weft"]
        found["jain_weft"] = jain(weft) if weft else None
        found["jain_rival"] = jain(rival) if rival else None
        found["weft_share"] = sum(weft) / max(sum(rates), 1.0)
        yield found

    settings = {"duration_s": duration_s, "warmup_s": warmup_s, "flows": flows}
    conduct(STUDY, given, names, measure, settings)
