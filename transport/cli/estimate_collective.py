"""`weft estimate collective`: the time of one operation for several sizes and numbers of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from transport.cli.estimate_options import (
    LINK_OPTIONS,
    MARK,
    network_line,
    network_of,
    network_options,
    notes_of,
    usage_errors,
)
from transport.cli.output import json_option, print_table, write_json
from transport.estimate.names import matched, size_of
from transport.estimate.plan import RANKS_MAX
from transport.ground.units import bytes_text, rate_text, time_text

if TYPE_CHECKING:
    from transport.estimate.collectives import Estimate
    from transport.estimate.networks import Network
    from transport.estimate.ranges import Range

SIZES = ("8", "64 kB", "1 MB", "16 MB", "128 MB", "1 GB")
HEADS = [
    *("ranks", "size", "algorithm", "protocol"),
    *("time", "latency", "algbw", "busbw", "limited by"),
]
ROCE = (
    "Ethernet is RoCE v2 here, whose small operations are fitted to one published table; those of "
    "another took 7 to 36 % longer, and over TCP all take longer"
)


@click.command("collective", short_help="Estimate the time of a collective operation.")
@click.argument("operation")
@click.argument("more_sizes", metavar="[SIZE]...", nargs=-1)
@click.option(
    "--torus",
    "shape",
    metavar="SHAPE",
    help="Accelerators with links to their neighbours, such as 4x4x8; 4x4x8:open and 4x4x8:open=z "
    "have no wrap-around on all axes or on some; 4x4x8:twisted is a twisted torus.",
)
@click.option(
    "--link",
    metavar="LINK",
    help="Link between neighbours of a torus, such as tpu-v4.",
)
@click.option(
    "--axes", metavar="AXES", help="Axes of the torus that the operation runs along, such as x,y."
)
@click.option(
    "--ranks",
    "ranks",
    multiple=True,
    type=click.IntRange(2, RANKS_MAX),
    default=(8,),
    show_default=True,
    help="GPUs of the operation; may be repeated.",
)
@click.option(
    "--size",
    "sizes",
    metavar="SIZE",
    multiple=True,
    default=SIZES,
    show_default=True,
    help="Size of the buffer, such as 64 MB, or 64M for 64 MiB; without a unit in bytes. Of "
    "all_gather and reduce_scatter it is that of all ranks together, as in nccl-tests.",
)
@click.option(
    "--algorithm",
    metavar="NAME",
    help="ring, tree, nvls (NVLink SHARP), pat or pairs. Default: the fastest.",
)
@network_options
@json_option
def command(
    operation: str,
    more_sizes: tuple[str, ...],
    ranks: tuple[int, ...],
    sizes: tuple[str, ...],
    algorithm: str | None,
    json_path: str | None,
    **given: Any,
) -> None:
    """Estimate the time of OPERATION: all_reduce, all_gather, reduce_scatter, broadcast, reduce,
    all_to_all or send, for each SIZE.

    By default every GPU is a node of its own: --inside says what links GPUs of a node.

    \b
    Examples:
      weft estimate collective all_reduce --ranks 64 --inside nvlink4 --between ethernet-400
      weft estimate collective all_reduce 1G --torus 4x4x4 --link tpu-v4
    """
    if more_sizes:
        sizes = (*more_sizes, *(sizes if _was_given("sizes") else ()))
    torus = {key: given.pop(key) for key in ("shape", "link", "axes")}
    if torus["shape"] is not None:
        _show_torus(operation, sizes, json_path, links_file=given["links_file"], **torus)
        return
    for key in ("link", "axes"):
        if torus[key] is not None:
            raise click.UsageError(f"--{key} is of a torus: give its shape with --torus")
    _show_network(operation, sizes, ranks, algorithm, json_path, given)


def _show_network(
    operation: str,
    sizes: tuple[str, ...],
    ranks: tuple[int, ...],
    algorithm: str | None,
    json_path: str | None,
    given: dict[str, Any],
) -> None:
    from dataclasses import asdict

    from transport.estimate.collectives import estimate
    from transport.estimate.ranges import range_of_operation

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

    ranges = [range_of_operation(one, network) for one in made]
    if json_path is not None:
        said = [
            asdict(one) | {"extrapolated": beyond(one), "range": None if of is None else asdict(of)}
            for one, of in zip(made, ranges, strict=True)
        ]
        write_json({"network": asdict(network), "estimates": said}, json_path)
        return
    rows = [
        [*_row(one, beyond(one)), _range_text(of)] for one, of in zip(made, ranges, strict=True)
    ]
    print_table([*HEADS, "range"], rows)
    click.echo(f"{network_line(network)}; numbers of {network.source}")
    roce = [ROCE] if network.between.ll_more_ns and max(ranks) > each else []
    notes = [*_notes(network, ranges), *roce, *notes_of(network, any(map(beyond, made)))]
    for note in notes:
        click.echo(f"note: {note}")


def _range_text(expected: Range | None) -> str:
    if expected is None:
        return "?"
    return f"{time_text(expected.low_ns)} to {time_text(expected.high_ns)}"


def _notes(network: Network, ranges: Sequence[Range | None]) -> list[str]:
    """Notes on the ranges of the times, and on Ethernet."""
    known = [one for one in ranges if one is not None]
    source = "95 of 100 measurements" if network.calibrated else "8 of 10 published AllReduces"
    notes = [f"range: {source} would be inside"] if known else []
    reasons = dict.fromkeys(one for each in known for one in each.wider)
    notes += [f"ranges are wider: {one}" for one in reasons]
    return notes


# Options that describe another network than a torus.
OTHERS = (
    *("ranks", "algorithm", "network_file"),
    *(one for one in LINK_OPTIONS if one != "links_file"),
)


def _show_torus(
    operation: str,
    sizes: tuple[str, ...],
    json_path: str | None,
    shape: str,
    link: str | None,
    axes: str | None,
    links_file: Path | None,
) -> None:
    from dataclasses import asdict

    from transport.estimate import networks, torus

    if other := next(filter(_was_given, OTHERS), None):
        option = "--network" if other == "network_file" else f"--{other.replace('_', '-')}"
        raise click.UsageError(f"--torus describes the whole network: leave out {option}")
    if link is None:
        raise click.UsageError("--torus needs --link: the link between neighbours, such as tpu-v4")
    with usage_errors():
        known = networks.with_file(links_file)
        whole, one_link = torus.parsed(shape), networks.link(link, known)
        torus.check_link(link, one_link)
        used = whole if axes is None else whole.along(axes)
        made = [torus.estimate(used, one_link, operation, _bytes(size)) for size in sizes]
    if json_path is not None:
        said = {"torus": asdict(whole) | {"link": asdict(one_link)}}
        along = [one.name for one in used.axes]
        write_json({**said, "along": along, "estimates": [asdict(one) for one in made]}, json_path)
        return
    print_table(HEADS, [_row(one, extrapolated=False) for one in made])
    words = "" if axes is None else f" along {', '.join(one.name for one in used.axes)}"
    name = matched(link, known)
    source = "links.toml" if name in networks.links() else str(links_file)
    click.echo(f"torus: {whole} of {name}{words}; numbers of {source}")
    click.echo("note: not measured; the latency of a call is not known and not in the times")


def _was_given(name: str) -> bool:
    source = click.get_current_context().get_parameter_source
    return source(name) is ParameterSource.COMMANDLINE


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
