"""Measures the goodput of a flow under random loss of datagrams.

Every uplink of the sender's leaf loses data and acknowledgments in both directions; loss that a lab
file sets on other links is removed. Each contender is compared with its own run without loss in the
same round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from bench.lib import labs, traffic
from bench.lib.common import Config
from bench.lib.options import PATH_RATE, PERFTEST, common, flow_options, study_options
from bench.lib.study import Study, chosen, conduct, load_of
from bench.lib.traffic import Flow
from bench.peers import SOCKETS, peer_of

USUAL = ("weft", "weft/loss_policy=go_back_n", "tcp-cubic", "tcp-bbr", "mptcp")
EXPONENTS = (-14, -12, -10, -8)
CLEAN: dict[str, Any] = {"loss_every": 0, "burst_enter": 0.0, "corruption": 0.0}
STUDY = Study(
    "loss",
    keys=("contender", "loss_rate", "size_bytes"),
    measures={"kept_share": "higher", "rate_bytes_per_s": "higher"},
    columns=(
        ("loss_rate", "loss"),
        *PERFTEST,
        ("kept_share", "of lossless"),
        ("lost_segments", "lost"),
        ("retransmitted_segments", "resent"),
    ),
    x="loss_rate",
)


@click.command("loss")
@flow_options("64K", duration_s=5.0)
@click.option(
    "--exponent",
    "exponents",
    type=click.IntRange(-30, -1),
    multiple=True,
    default=EXPONENTS,
    show_default=True,
    help="Loss rate as a power of two, per datagram; repeat for several. 0 is always run.",
)
@PATH_RATE
@study_options(duration_s=0.5, warmup_s=0.2, exponents=(-8,), only=("weft", "tcp-cubic"))
def command(
    size: int,
    duration_s: float,
    warmup_s: float,
    exponents: tuple[int, ...],
    path_rate: int,
    **options: Any,
) -> None:
    """Measures one flow while a lab loses datagrams at random, and without loss; needs root."""
    given = common(options, labs.equal_paths(path_rate))
    lab = given.lab
    assert lab is not None  # common() has built the lab
    names = chosen(given, USUAL, list(SOCKETS))
    hosts = labs.across(lab)
    load = load_of(given, size, duration_s, warmup_s)

    def measure(name: str) -> Iterator[Config]:
        peer = peer_of(name)
        lossless = 0.0
        for exponent in (None, *sorted(exponents)):
            share = 0.0 if exponent is None else 2.0**exponent
            for link in lab.model.link_names():
                here = share if link in labs.uplinks(lab) else 0.0
                labs.change(lab, link, **CLEAN, loss=here)
            found = traffic.run([Flow(0, 1, peer.kind, peer.streams)], hosts, load)
            if exponent is None:
                lossless = found["rate_bytes_per_s"]
                if not lossless:
                    raise click.ClickException(
                        f"{name}: no byte arrived in the run without loss, so no share can be "
                        "computed: measure for longer with -D"
                    )
            kept = found["rate_bytes_per_s"] / lossless
            yield found | {"loss_rate": share, "kept_share": kept}

    conduct(STUDY, given, names, measure, {"duration_s": duration_s, "warmup_s": warmup_s})
