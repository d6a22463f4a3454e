"""`weft estimate compare`: how long systems of accelerators take to sum a model's gradients."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transport.cli.estimate_options import links_file_option, usage_errors
from transport.cli.options import HTML, CountType, InputFile, TimeType, output_file
from transport.cli.output import json_option, print_table, write_file, write_json
from transport.cli.packages import PAGES, PLOTS, need_packages
from transport.cli.plots import prepared, save
from transport.estimate.names import size_of
from transport.ground.units import bytes_text, percent, time_text

if TYPE_CHECKING:
    from transport.estimate.systems import Sync, System

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
PARAMETERS_MAX, TOKENS_MAX = 10**15, 10**12
HEADS = (
    *("system", "accelerators", "sum of gradients", "algorithm", "sent by each", "limited by"),
    *("computation", "hidden", "exposed"),
)
COST_HEADS = ("system", "state", "memory of each", "fits", "power", "an hour")


@click.command("compare", short_help="Compare systems by how long they sum gradients.")
@click.argument("systems", nargs=-1, required=True)
@click.option(
    "--model-parameters",
    "parameters",
    type=CountType(PARAMETERS_MAX),
    default="10B",
    show_default=True,
    help="Parameters whose gradients are summed.",
)
@click.option(
    "--gradient-bytes",
    default=2,
    show_default=True,
    type=click.IntRange(1, 8),
    help="Bytes of a gradient as it is sent; 2: bf16.",
)
@click.option(
    "--compute",
    "compute_ns",
    type=TimeType(),
    help="Time that a step computes, such as 500ms; without a unit in ns.",
)
@click.option(
    "--tokens",
    type=CountType(TOKENS_MAX),
    help="Tokens of a step on each accelerator, such as 2K, instead of --compute: each computes "
    "them at its own rate.",
)
@click.option(
    "--operation",
    "operations",
    metavar="OPERATION",
    multiple=True,
    default=OPERATIONS,
    show_default=True,
    help="Operations to compare for each --size.",
)
@click.option(
    "--size",
    "sizes",
    metavar="SIZE",
    multiple=True,
    help="Also compare operations with a buffer of this size, such as 64 MB; may be repeated.",
)
@click.option(
    "--gpus-file",
    metavar="FILE",
    type=InputFile(),
    help="TOML file of your own accelerators.",
)
@links_file_option
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the sums of gradients, as .png or .svg.",
)
@click.option(
    "--html",
    "page",
    metavar="FILE",
    type=output_file(*HTML),
    help="Write one page with all tables and the picture.",
)
@json_option
def command(systems: tuple[str, ...], json_path: str | None, **given: Any) -> None:
    """Compare how long SYSTEMS take to sum the gradients of a model in data parallelism.

    A system says how many accelerators of which kind there are, and their links: 8 x a100 nvlink3;
    64 x h100 nvlink4 ethernet-400 8/node; tpu-v4 4x4x4 (a torus). Without a link
    inside a node, the usual one of such accelerators is taken.

    \b
    Example:
      weft estimate compare "8 x a100 nvlink3" "tpu-v4 4x4x4" --model-parameters 10B
    """
    from transport.estimate.systems import parsed, sync

    plot, page = given["plot"], given["page"]
    if page is not None:
        need_packages("--html", PAGES, PLOTS)
    if plot is not None or page is not None:
        prepared(plot or Path("page.svg"), "--plot" if plot else "--html")
    if given["compute_ns"] is not None and given["tokens"] is not None:
        raise click.UsageError("--compute and --tokens both say how long a step computes: give one")
    count, each = given["parameters"], given["gradient_bytes"]
    with usage_errors():
        found = [parsed(text, given["gpus_file"], given["links_file"]) for text in systems]
        syncs = [sync(one, count, each, given["compute_ns"], given["tokens"]) for one in found]
        timed = operations_of(found, given["operations"], given["sizes"])
    if json_path is not None:
        write_json(_as_json(count, each, syncs, timed), json_path)
        return
    tables = [
        (list(HEADS), [_row(one) for one in syncs]),
        (list(COST_HEADS), [_cost_row(one) for one in syncs]),
    ]
    if timed:
        tables.append(operations_table(found, timed))
    lines = _lines(syncs, count, each, given["tokens"] is not None)
    for heads, rows in tables:
        print_table(heads, rows)
        click.echo()
    for line in lines:
        click.echo(line)
    if plot is not None:
        save(_figure(syncs), f"Sum of the gradients of {_count_text(count)} parameters", plot)
    if page is not None:
        _write_page(page, tables, lines, syncs)


Timed = list[tuple[str, float, list[float]]]


def operations_of(systems: Sequence[System], operations: Sequence[str], sizes: Any) -> Timed:
    """Operation, bytes of the buffer, and its time in ns on each system."""
    made: Timed = []
    for operation in operations:
        for size in sizes:
            try:
                count = float(size_of(size))
            except ValueError as error:
                raise click.UsageError(f"--size: {error}") from None
            ones = [one.estimate(operation, count) for one in systems]
            made.append((ones[0].operation, count, [one.time_ns for one in ones]))
    return made


def operations_table(systems: Sequence[System], timed: Timed) -> tuple[list[str], list[list[str]]]:
    """The times on each system, and how many times that of the first one each of the others is."""
    heads = ["operation", "size", *(one.name for one in systems)]
    rows = []
    for operation, size, times in timed:
        first = times[0]
        more = [time_text(one) + (f" ({one / first:.3g} x)" if first else "") for one in times[1:]]
        rows.append([operation, bytes_text(size), time_text(first), *more])
    return heads, rows


def _row(one: Sync) -> list[str]:
    return [
        one.system.name,
        str(one.system.chips),
        time_text(one.estimate.time_ns),
        one.estimate.algorithm,
        bytes_text(one.sent_bytes),
        one.estimate.limited_by,
        _known(one.compute_ns, time_text) + _between(one.range_ns),
        _known(one.hidden_ns, time_text),
        _exposed(one),
    ]


def _between(range_ns: tuple[float, float] | None) -> str:
    """A range of times in words; empty: there is none, or both ends are equal."""
    if range_ns is None or range_ns[0] == range_ns[1]:
        return ""
    low, high = map(time_text, range_ns)
    return f" ({low} to {high})"


def _exposed(one: Sync) -> str:
    """What is exposed, and its range if computation has one: less of it hides more."""
    if one.compute_ns is None:
        return "?"
    text = time_text(one.exposed_ns(one.compute_ns))
    if one.range_ns is None:
        return text
    low, high = one.range_ns
    return text + _between((one.exposed_ns(high), one.exposed_ns(low)))


def _cost_row(one: Sync) -> list[str]:
    facts, chips = one.system.gpu.facts, one.system.chips
    price = facts.price
    return [
        one.system.name,
        bytes_text(one.needed_bytes),
        bytes_text(one.system.gpu.memory_bytes),
        one.fits,
        _known(facts.power_w, lambda watts: f"{watts * chips / 1e3:.3g} kW"),
        "?" if price is None else f"{price.dollars_per_hour * chips:,.2f} $ ({price.date})",
    ]


def _known(value: float | None, text: Callable[[float], str]) -> str:
    return "?" if value is None else text(value)


def _count_text(count: float) -> str:
    return f"{count / 1e9:g} billion" if count >= 1e9 else f"{count / 1e6:g} million"


def _lines(syncs: Sequence[Sync], count: float, each: int, by_tokens: bool) -> list[str]:
    lines = [
        f"gradients of {_count_text(count)} parameters, {each} bytes each; state: 16 bytes a "
        "parameter (mixed precision, Adam), without activations",
        "fits: whole: on each accelerator; split: among all of a system (FSDP)",
        "note: not measured: rates are those of data sheets and of NCCL's own model",
    ]
    if any(one.compute_ns is not None for one in syncs):
        lines.append("note: hidden, at most: sums run beside backward, two thirds of computation")
    if by_tokens:
        lines += _computation_notes(syncs)
    lines += [
        f"note: {one.system.name}: all in one domain, without a network between nodes"
        for one in syncs
        if one.system.is_one_domain
    ]
    if any(one.system.torus is not None for one in syncs):
        lines.append("note: torus: the latency of a call is not known and not in the times")
    return lines


def _computation_notes(syncs: Sequence[Sync]) -> list[str]:
    """Notes on what computation of --tokens is, and what it leaves out."""
    gpus = {one.system.gpu.name: one.system.gpu for one in syncs}
    shares = ", ".join(f"{percent(one.share, 0)} ({name})" for name, one in gpus.items())
    return [
        f"note: products reach {shares} of the peak, fitted to published steps, of which 8 of 10 "
        "would be in the range",
        "note: computation has products with parameters only: attention, the kernels between "
        "products and recomputation come on top; weft estimate train MODEL has them",
    ]


def _as_json(count: float, each: int, syncs: Sequence[Sync], timed: Timed) -> dict[str, Any]:
    return {
        "parameters": count,
        "gradient_bytes": each,
        "systems": [
            {
                "system": one.system.name,
                "gpu": asdict(one.system.gpu),
                "accelerators": one.system.chips,
                "all_reduce": asdict(one.estimate),
                "sent_bytes": one.sent_bytes,
                "between_bytes": one.between_bytes,
                "compute_ns": one.compute_ns,
                "compute_range_ns": one.range_ns,
                "hidden_ns": one.hidden_ns,
                "state_bytes": one.needed_bytes,
                "split_bytes": one.split_bytes,
                "fits": one.fits,
            }
            for one in syncs
        ],
        "operations": [
            {"operation": operation, "size_bytes": size, "times_ns": times}
            for operation, size, times in timed
        ],
    }


def _figure(syncs: Sequence[Sync]) -> Any:
    """Bars of the sum of gradients on each system; its hidden part is lighter, if it is known."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 1.2 + 0.5 * len(syncs)))
    axes = figure.subplots()
    names = [one.system.name for one in syncs]
    hidden = [(one.hidden_ns or 0.0) / 1e6 for one in syncs]
    exposed = [one.estimate.time_ns / 1e6 - part for one, part in zip(syncs, hidden, strict=True)]
    rows = range(len(syncs))
    axes.barh(rows, exposed, color="C0", label="exposed" if any(hidden) else "sum")
    if any(hidden):
        axes.barh(rows, hidden, left=exposed, color="C0", alpha=0.35, label="hidden, at most")
        axes.legend(fontsize=8)
    axes.set_yticks(rows, names)
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    figure.tight_layout()
    return figure


def _write_page(page: Path, tables: Any, lines: Sequence[str], syncs: Sequence[Sync]) -> None:
    from transport import pages

    rendered = pages.rendered(
        "estimate_compare.html",
        title="Sums of gradients",
        command=shlex.join(["weft", *sys.argv[1:]]),
        tables=tables,
        lines=lines,
        picture=pages.plot(_figure(syncs)),
    )
    write_file(page, rendered)
    click.echo(f"wrote {page}", err=True)
