"""`weft estimate tolerate`: the latency and bandwidth between nodes that a step tolerates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transport.cli.estimate_configs import configured
from transport.cli.estimate_options import (
    network_of,
    network_options,
    no_torus_option,
    notes_of,
    usage_errors,
)
from transport.cli.estimate_report import computation_notes, unchecked_note
from transport.cli.estimate_sites import SiteOptions, site_notes, sites_options
from transport.cli.estimate_train import (
    GPU_OPTIONS,
    PLAN_OPTIONS,
    SIZES,
    Computing,
    model_of,
    number_options,
    plan_of,
)
from transport.cli.output import json_option, print_table, write_json
from transport.cli.plots import prepared, save
from transport.estimate.plan import RANKS_MAX
from transport.ground.units import percent, rate_text, time_text

if TYPE_CHECKING:
    from transport.estimate.models import Model
    from transport.estimate.networks import Link, Network
    from transport.estimate.ranges import Range
    from transport.estimate.tolerate import Bound, Tolerance
    from transport.estimate.training import Training

GPUS = (8, 64, 512)
STEPS_MAX = 64  # largest number of models times numbers of GPUs of a call
SHARE_MAX = 1_000.0  # in percent
LINKS = (
    *("infiniband-200", "infiniband-400", "infiniband-800"),
    *("ethernet-100", "ethernet-200", "ethernet-400", "ethernet-800"),
)
HEADS = [
    *("model", "GPUs", "fits", "step", "range", "exposed", "longest step"),
    *("latency tolerated", "bandwidth needed"),
]


class ShareType(click.ParamType[float]):
    """Parses a share such as 5% into 0.05."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip()
        try:
            found = float(text.removesuffix("%"))
        except ValueError:
            found = 0.0
        if not (text.endswith("%") and 0.01 <= found <= SHARE_MAX):
            self.fail(f"{value}: give 0.01% to {SHARE_MAX:.0f}%, such as 5%", param, ctx)
        return found / 100


def _step_options(command: Any) -> Any:
    """Adds the options of `train`, but --data, which follows from --gpus."""
    numbers = partial(number_options, without="data")
    for option in reversed((*GPU_OPTIONS, *PLAN_OPTIONS, numbers, network_options)):
        command = option(command)
    return command


@click.command("tolerate", short_help="Find the latency and bandwidth that steps tolerate.")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option(
    "--gpus",
    "counts",
    multiple=True,
    default=GPUS,
    show_default=True,
    type=click.IntRange(1, RANKS_MAX),
    help="GPUs in all; may be repeated. Those that tensor, pipeline and context "
    "parallelism leave are data parallel.",
)
@click.option(
    "--step",
    "share",
    metavar="SHARE%",
    type=ShareType(),
    default="5%",
    show_default=True,
    help="How much longer than on the given network a step may take.",
)
@click.option(
    "--link",
    "names",
    metavar="LINK",
    multiple=True,
    default=LINKS,
    show_default=True,
    help="Links to try between nodes; may be repeated. nvlink5, pcie5 or tpu-v5p count as if a "
    "switch joined all nodes with them.",
)
@_step_options
@sites_options
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw what steps tolerate beside known links, as .png or .svg.",
)
@no_torus_option
@json_option
def command(
    models: tuple[str, ...],
    counts: tuple[int, ...],
    share: float,
    names: tuple[str, ...],
    plot: Path | None,
    json_path: str | None,
    **given: Any,
) -> None:
    """Find the latency and bandwidth between nodes that training steps of MODELs tolerate.

    The reference is the step on the network of --inside and --between (or --network). Found are
    the latency that may be added to each message between nodes, and the least bandwidth of a GPU
    between nodes, with which the step takes --step longer; and which known links between nodes
    suffice. MODEL: a preset, such as llama3-8b, a configuration file as in `train`, or `custom`
    with all sizes.

    \b
    Example:
      weft estimate tolerate llama2-7b llama3-70b --gpus 64 --gpus 512 --zero 3 --inside nvlink4
    """
    from transport.estimate.networks import link, with_file

    if plot is not None:
        prepared(plot)
    if len(models) * len(counts) > STEPS_MAX:
        raise click.UsageError(f"more than {STEPS_MAX} models x --gpus: give fewer")
    with usage_errors():
        known = with_file(given["links_file"])
        sites = SiteOptions.taken(given)
        links = {name: sites.delayed(link(name, known)) for name in dict.fromkeys(names)}
        computing = Computing.taken(given)
    network = network_of(given)
    read = [_read(name, given) for name in dict.fromkeys(models)]
    pairs = [
        _found(model, gpus, dict(options), network, computing, share, links, sites)
        for model, options, _ in read
        for gpus in dict.fromkeys(counts)
    ]
    found, ranges = [one for one, _ in pairs], [one for _, one in pairs]
    if json_path is not None:
        inputs = {"gpu": computing.gpu.name, "efficiency": computing.gpu.efficiency}
        write_json(inputs | _as_json(found, ranges, share, network, links), json_path)
    else:
        _show(found, ranges, share, network, links, computing, sites)
        click.echo("".join(f"{line}\n" for _, _, lines in read for line in lines), nl=False)
    if plot is not None:
        title = f"What steps tolerate before they take {_share_text(share)} longer"
        save(_figure(found, network, links), title, plot)


def _read(name: str, given: dict[str, Any]) -> tuple[Model, dict[str, Any], list[str]]:
    """A model, the options of its plan, and what to say of its file."""
    options = given | {"configs": ()}
    files = configured(name, options, SIZES)
    return model_of(files.model, options), options, files.lines


def _share_text(share: float) -> str:
    return f"{100 * share:g} %"


def _found(
    model: Model,
    gpus: int,
    given: dict[str, Any],
    network: Network,
    computing: Computing,
    share: float,
    links: dict[str, Link],
    sites: SiteOptions,
) -> tuple[Tolerance, Range]:
    """What a step on so many GPUs tolerates, and its range. given: the options of the plan."""
    from transport.estimate.plan import PlanError
    from transport.estimate.tolerate import tolerance

    others = given["tensor"] * given["pipeline"] * given["context"]
    if gpus % others:
        raise click.UsageError(
            f"--gpus: {gpus}: must be a multiple of the {others} GPUs that --tensor, --pipeline "
            "and --context need"
        )
    with usage_errors():
        plan = plan_of(given | {"data": gpus // others})
        try:
            computation, network = computing.of(model, plan), sites.join(network, plan)
            made = tolerance(model, plan, computing.gpu, network, share, links, computation)
            return made, computing.range_of(made.reference, model, plan)
        except PlanError as error:
            # The number of data parallel replicas follows from --gpus.
            message = str(error)
            if message.startswith("data: "):
                message = f"gpus: {message.removeprefix('data: ')}"
            raise PlanError(message) from None


def _show(
    found: Sequence[Tolerance],
    ranges: Sequence[Range],
    share: float,
    network: Network,
    links: dict[str, Link],
    computing: Computing,
    sites: SiteOptions,
) -> None:
    rows = [
        [
            one.reference.model,
            str(one.plan.gpus),
            _fits(one.reference),
            time_text(one.reference.step_ns),
            f"{time_text(expected.low_ns)} to {time_text(expected.high_ns)}",
            percent(one.reference.exposed_ns / one.reference.step_ns),
            time_text(one.limit_ns),
            _latency(one.latency_ns, sites),
            _rate(one.bytes_per_s, sites),
        ]
        for one, expected in zip(found, ranges, strict=True)
    ]
    gpu = computing.gpu
    print_table([gpu.says(one) for one in HEADS], rows)
    click.echo()
    heads = [f"between {sites.ends}", "bandwidth", "latency of a message"]
    heads += [f"{one.reference.model}, {one.plan.gpus}" for one in found]
    rows = [
        [
            name,
            rate_text(link.bytes_per_s),
            _latencies(link),
            *(_answer(one, name) for one in found),
        ]
        for name, link in links.items()
    ]
    print_table(heads, rows)
    click.echo()
    lines = _lines(found, share, network, links, sites)
    marked = any(row.extrapolated for one in found for row in one.reference.rows)
    notes = [*computation_notes(computing), *notes_of(network, marked)]
    if sites.link is not None:
        notes[:0] = dict.fromkeys(
            note for one in found for note in site_notes(sites.join(network, one.plan), one.plan)
        )
    lines += [f"note: {one}" for one in notes]
    click.echo("\n".join(map(gpu.says, lines)))


def _fits(step: Training) -> str:
    return "yes" if step.fits_surely else "may not" if step.fits else "no"


def _latency(bound: Bound, sites: SiteOptions) -> str:
    return _why(bound, sites) if bound.value is None else f"+{time_text(bound.value)}"


def _rate(bound: Bound, sites: SiteOptions) -> str:
    return _why(bound, sites) if bound.value is None else rate_text(bound.value)


def _why(bound: Bound, sites: SiteOptions) -> str:
    return bound.why.replace("nodes", sites.ends)


def _latencies(link: Link) -> str:
    """The latencies of a step of the link's protocols."""
    return ", ".join(f"{time_text(each.step_ns)} ({each.name})" for each in link.protocols)


def _answer(one: Tolerance, link: str) -> str:
    """Whether the link suffices, and how much longer than the reference the step is with it."""
    more = percent(one.links[link] / one.reference.step_ns - 1, signed=True)
    return f"{'yes' if one.suffices(link) else 'no'}, {more}"


def _lines(
    found: Sequence[Tolerance],
    share: float,
    network: Network,
    links: dict[str, Link],
    sites: SiteOptions,
) -> list[str]:
    ends = sites.ends
    of = "each GPU" if ends == "nodes" else "each site"
    node = f"{network.gpus_per_node} GPUs a node" if network.inside else "every GPU is a node"
    lines = [
        f"reference: the step on {network.name}, {node}; tolerated: {_share_text(share)} longer",
        *sites.lines(),
        f"latency tolerated: added to each message between {ends}; bandwidth needed: of {of} "
        f"between {ends}, in one direction; each while the other is that of the reference",
        f"yes, no: the step with this link between {ends}, with "
        f"{'its own latency' if sites.latency_ns is None else 'the latency above'} and bandwidth",
        "range: 8 of 10 published steps would be inside; the bounds are those of the step as "
        "estimated: if it takes longer to compute, it hides and tolerates more",
        "note: every number of GPUs has the same sequences a GPU, unless --batch is given",
    ]
    if any(one.is_of_torus for one in links.values()):
        lines.append(
            "note: links of TPUs and Trainium count as one link of each chip to a switch; a chip "
            "has several, and the latency of a call is not known and not in the times"
        )
    if not all(one.reference.fits for one in found):
        lines.append("note: fits: no: the step needs more memory than the GPU has")
    if any(_fits(one.reference) == "may not" for one in found):
        lines.append(
            "note: fits: may not: it fits by the estimate, but not if memory is as much above it "
            "as published peaks were"
        )
    unchecked = sorted({name for one in found for name in one.reference.unchecked})
    if unchecked:
        lines.append(f"note: {unchecked_note(unchecked)}")
    return lines


def _as_json(
    found: Sequence[Tolerance],
    ranges: Sequence[Range],
    share: float,
    network: Network,
    links: dict[str, Link],
) -> dict[str, Any]:
    return {
        "network": network.name,
        "share": share,
        "links": {name: asdict(one) for name, one in links.items()},
        "steps": [
            {
                "model": one.reference.model,
                "gpus": one.plan.gpus,
                "plan": vars(one.plan),
                "fits": one.reference.fits,
                "step_ns": one.reference.step_ns,
                "range": vars(expected),
                "exposed_ns": one.reference.exposed_ns,
                "limit_ns": one.limit_ns,
                "latency_ns": vars(one.latency_ns),
                "bytes_per_s": vars(one.bytes_per_s),
                "links": {
                    name: {"step_ns": ns, "suffices": one.suffices(name)}
                    for name, ns in one.links.items()
                },
            }
            for one, expected in zip(found, ranges, strict=True)
        ],
    }


def _figure(found: Sequence[Tolerance], network: Network, links: dict[str, Link]) -> Any:
    """Known links by latency and bandwidth, and a corner for each step: what it tolerates.

    Latencies are those of the last protocol, Simple. A corner is at that of the reference plus the
    tolerated one, and at the bandwidth needed; what is neither right of it nor below may suffice.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.5))
    axes = figure.subplots()
    for number, (name, link) in enumerate(links.items()):
        at = link.protocols[-1].step_ns / 1e3, link.bytes_per_s / 1e9
        axes.plot(*at, "k.")
        # Links of nearly equal figures have numbers of different parity.
        offset = 4, -8 if number % 2 else 3
        axes.annotate(name, at, fontsize=7, xytext=offset, textcoords="offset points")
    base_ns = network.between.protocols[-1].step_ns
    corners = []
    for one in found:
        latency, rate = one.latency_ns.value, one.bytes_per_s.value
        if latency is not None and rate is not None:
            label = f"{one.reference.model}, {one.plan.gpus} GPUs"
            corners.append(((base_ns + latency) / 1e3, rate / 1e9, label))
    for number, (x, y, label) in enumerate(corners):
        axes.plot([x], [y], "o", color=f"C{number}", label=label)
    axes.margins(0.12)
    axes.set_xscale("log")
    axes.set_yscale("log")
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for number, (x, y, _) in enumerate(corners):
        axes.plot([left, x, x], [y, y, top], color=f"C{number}", lw=0.8)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.set_xlabel("latency of a message between nodes, us")
    axes.set_ylabel("bandwidth of a GPU between nodes, GB/s")
    if corners:
        axes.legend(fontsize=8)
    return figure
