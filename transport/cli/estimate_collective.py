"""`weft estimate collective`: the time of one operation for several sizes and numbers of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from transport.cli.estimate_options import (
    MARK,
    network_of,
    network_options,
    notes_of,
    usage_errors,
)
from transport.cli.output import json_option, print_table, write_json
from transport.estimate.names import size_of
from transport.estimate.plan import RANKS_MAX
from transport.ground.units import bytes_text, rate_text, time_text

if TYPE_CHECKING:
    from transport.estimate.collectives import Estimate

SIZES = ("8", "64 kB", "1 MB", "16 MB", "128 MB", "1 GB")
HEADS = (
    *("ranks", "size", "algorithm", "protocol"),
    *("time", "latency", "algbw", "busbw", "limited by"),
)


@click.command("collective")
@click.argument("operation")
@click.option(
    "--ranks",
    "ranks",
    multiple=True,
    type=click.IntRange(2, RANKS_MAX),
    default=(8,),
    show_default=True,
    help="GPUs; may be given several times.",
)
@click.option(
    "--size",
    "sizes",
    metavar="SIZE",
    multiple=True,
    default=SIZES,
    show_default=True,
    help="Bytes of the buffer, as nccl-tests count them, such as 64 MB.",
)
@click.option("--algorithm", help="ring, tree, pat or pairs; by default the fastest.")
@network_options
@json_option
def command(
    operation: str,
    ranks: tuple[int, ...],
    sizes: tuple[str, ...],
    algorithm: str | None,
    json_path: str | None,
    **given: Any,
) -> None:
    """Estimate the time of OPERATION: all_reduce, all_gather, reduce_scatter, broadcast, reduce,
    all_to_all or send.

    Example: weft estimate collective all_reduce --ranks 64 --inside nvlink4 --between ethernet-400
    """
    from dataclasses import asdict

    from transport.estimate.collectives import estimate

    network = network_of(given)
    each = network.gpus_per_node
    for count in ranks:
        if count > each and count % each:
            raise click.UsageError(
                f"--ranks {count}: must be a multiple of the {each} GPUs of a node, or less"
            )
    with usage_errors():
        made = [
            estimate(network, operation, _bytes(size), count, algorithm=algorithm)
            for count in ranks
            for size in sizes
        ]

    def beyond(one: Estimate) -> bool:
        return network.extrapolates(one.operation, one.size_bytes, one.ranks)

    if json_path is not None:
        said = [asdict(one) | {"extrapolated": beyond(one)} for one in made]
        write_json({"network": asdict(network), "estimates": said}, json_path)
        return
    print_table(HEADS, [_row(one, beyond(one)) for one in made])
    click.echo(f"network: {network.name}; numbers of {network.source}")
    for note in notes_of(network, any(map(beyond, made))):
        click.echo(f"note: {note}")


def _row(one: Estimate, extrapolated: bool) -> list[str]:
    from transport.estimate.collectives import algorithm_bytes_per_s
    from transport.ground.collectives import bus_factor

    rate = algorithm_bytes_per_s(one)
    return [
        str(one.ranks),
        bytes_text(one.size_bytes),
        one.algorithm,
        one.protocol,
        time_text(one.time_ns) + MARK * extrapolated,
        time_text(one.latency_ns),
        rate_text(rate),
        rate_text(rate * bus_factor(one.operation, one.ranks)),
        one.limited_by,
    ]


def _bytes(text: str) -> float:
    try:
        return float(size_of(text))
    except ValueError as error:
        raise click.UsageError(f"--size: {error}") from None
