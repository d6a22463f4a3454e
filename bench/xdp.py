"""Measures what a datagram costs through AF_XDP and through UDP sockets, between two namespaces.

One thread sends over a veth pair and receives at the other end, so its processor time has all of
the kernel's share too. There is no protocol core, and no NIC.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator

import click

from bench.lib import loops
from bench.lib.common import Config, document, emit, interruptible, json_option, median, rounds
from bench.lib.veth import Host, wired
from transport.lab import LabError

MTU_BYTES = (1500, 3400, 9000)
UDP_IP_BYTES = 28
TRAIN_BYTES_MAX = 65_000
# Datapath, and datagrams of a burst. A burst of one leaves UDP sockets no segmentation offload.
CONTENDERS = {"xdp": ("xdp", 1), "udp": ("udp", 1), "udp GSO": ("udp", 32)}
COLUMNS = (
    *("mtu_bytes", "contender", "ns_per_datagram", "send_ns", "datagrams_per_s_core"),
    *("beside_udp", "beside_udp_least", "beside_udp_most", "load"),
)


def measure(contender: str, ends: tuple[Host, Host], mtu_bytes: int, count: int) -> Config:
    datapath, train = CONTENDERS[contender]
    datagram_bytes = mtu_bytes - UDP_IP_BYTES
    train = min(train, TRAIN_BYTES_MAX // datagram_bytes)
    places = [(end.descriptor, end.address, end.index) for end in ends]
    found: Config = loops.bench_datagrams(
        datapath, *places[0], *places[1], count, datagram_bytes, train
    )
    if found["received"] < found["sent"]:
        raise click.ClickException(
            f"{contender} at {mtu_bytes} B: {found['received']} of {found['sent']} arrived"
        )
    return found | {"load": os.getloadavg()[0]}


def rows_of(mtu_bytes: int, runs: dict[str, list[Config]]) -> Iterator[Config]:
    """One row for each contender; ratios are those of runs of the same round."""
    for name, found in runs.items():
        pairs = zip(runs["udp"], found, strict=False)
        ratios = [plain["cpu_ns"] / one["cpu_ns"] for plain, one in pairs]
        if not ratios:
            continue
        ns = median(found, "cpu_ns")
        yield {
            "mtu_bytes": mtu_bytes,
            "contender": name,
            "ns_per_datagram": ns,
            "send_ns": median(found, "send_ns"),
            "datagrams_per_s_core": 1e9 / ns,
            "beside_udp": statistics.median(ratios),
            "beside_udp_least": min(ratios),
            "beside_udp_most": max(ratios),
            "load": median(found, "load"),
            "datagrams_per_call": sum(one["sent"] for one in found)
            / sum(one["calls"] for one in found),
            **{
                f"{what}_share": sum(one[what] for one in found)
                / sum(one["received"] for one in found)
                for what in ("bypassed", "stamped")
            },
        }


@click.command("xdp")
@click.option("--datagrams", default=20_000, show_default=True, type=click.IntRange(100))
@click.option("--repeats", default=9, show_default=True, type=click.IntRange(1), help="Rounds.")
@click.option(
    "--mtu", "mtus", multiple=True, type=click.IntRange(576, 9216), help="MTU; may be repeated."
)
@json_option
def command(datagrams: int, repeats: int, mtus: tuple[int, ...], json_path: str | None) -> None:
    """Measures the cost of a datagram through AF_XDP, beside UDP sockets, over a veth pair.

    `ns_per_datagram` is the processor time of both ends and of the kernel for a datagram as long as
    the MTU allows; `beside_udp` is that of UDP sockets without segmentation offload, divided by it,
    in the same round. Over veth a train of GSO stays one packet, which no NIC can do. Needs root.
    """
    loops.load()
    rows: list[Config] = []
    with interruptible() as cut:
        for mtu_bytes in mtus or MTU_BYTES:
            runs: dict[str, list[Config]] = {name: [] for name in CONTENDERS}
            try:
                with wired(mtu_bytes) as ends:
                    for _, name in rounds(repeats, tuple(CONTENDERS)):
                        runs[name].append(measure(name, ends, mtu_bytes, datagrams))
            except (LabError, ValueError, PermissionError) as error:
                raise click.ClickException(str(error)) from None
            rows += rows_of(mtu_bytes, runs)
    notes = ["copy mode over veth: a NIC with zero-copy mode does less, and has not been measured"]
    emit(document("xdp", rows), json_path, COLUMNS, notes, cut)
