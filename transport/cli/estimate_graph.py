"""`weft estimate graph`: what a graph of PyTorch or a trace of Chakra communicates and hides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from transport.cli.estimate_hlo import answer, in_file
from transport.cli.estimate_options import (
    gpu_of,
    gpu_options,
    network_of,
    network_options,
    usage_errors,
)
from transport.cli.output import json_option


@click.command("graph", short_help="Say what a graph of PyTorch, or of Chakra, communicates.")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--devices", type=click.IntRange(1, 1 << 17), help="Ranks of the job.")
@click.option(
    "--groups",
    "groups_file",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help='JSON with the ranks of process groups by name, such as {"0": [0, 1, 2, 3]}.',
)
@click.option(
    "--graph",
    "number",
    type=click.IntRange(1),
    help="Which graph, if a text has several, as TORCH_LOGS has forward and backward.",
)
@gpu_options
@network_options
@json_option
def command(
    file: Path,
    devices: int | None,
    groups_file: Path | None,
    number: int | None,
    json_path: str | None,
    **given: Any,
) -> None:
    """Say what the graph in FILE communicates, and what computation hides of it.

    FILE is text of an FX graph with functional collectives: what print(exported_program) of
    torch.export or graph_module.print_readable() writes, or TORCH_LOGS=aot_graphs; or an execution
    trace of Chakra (.et or JSON). PyTorch is not needed.

    The answer is that of `weft estimate hlo`.

    \b
    Examples:
      weft estimate graph step.txt --inside nvlink4 --between ethernet-400
      weft estimate graph trace.0.et --devices 64 --groups comm_group.json --inside nvlink4
    """
    from transport.estimate.graphs import members_of, read
    from transport.estimate.hlo import HloError

    network = network_of(given)
    is_default = given["efficiency"] is None
    with usage_errors():
        chosen = gpu_of(given)
    try:
        members = members_of(groups_file, devices)
    except HloError as error:
        raise click.UsageError(in_file(groups_file or file, error)) from None
    try:
        module, notes = read(file, members, number)
        answer(module, network, chosen, is_default, json_path, notes)
    except HloError as error:
        raise click.UsageError(in_file(file, error)) from None
