"""Options that the commands of `weft estimate` share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from transport.cli.options import FiniteRange, InputFile
from transport.estimate.sharing import NODES_PER_LEAF
from transport.ground.text import printable
from transport.ground.units import percent, rate_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transport.estimate.gpus import Gpu
    from transport.estimate.networks import Link, Network

SHARING_OPTIONS = ("gpus_per_switch", "oversubscription", "nodes_per_leaf")
LINK_OPTIONS = (
    *("between", "inside", "gpus_per_node", "nics_per_node", "pcie", "links_file"),
    *SHARING_OPTIONS,
)
SLICES_MAX = 4_096
TORUS_OPTIONS = ("inside", "links_file")  # those of them that --torus needs, too
# Field of a training plan -> the option that sets it, if their names differ.
OPTIONS = {
    "global_batch": "batch",
    "bucket_bytes": "bucket",
    "sum_once": "sum_replicas_once",
}
Command = TypeVar("Command", bound=Callable[..., Any])


def gpu_options(command: Command) -> Command:
    """Adds the options that describe a GPU."""
    from transport.estimate.gpus import EFFICIENCY, EFFICIENCY_MIN

    for option in (
        click.option(
            "--efficiency",
            default=None,
            type=FiniteRange(EFFICIENCY_MIN, 1),
            help="Part of the GPU's peak that matrix products reach; measure it on one "
            f"GPU. Default: by each product's sizes; {EFFICIENCY} in `hlo` and `graph`.",
        ),
        click.option(
            "--gpus-file",
            metavar="FILE",
            type=InputFile(),
            help="TOML file of your own accelerators, which --gpu may name.",
        ),
        click.option(
            "--gpu",
            "gpu_name",
            metavar="NAME|FILE",
            default="h200",
            show_default=True,
            help="Accelerator, such as a100-80, mi300x or tpu-v5p, or a TOML file with one.",
        ),
    ):
        command = option(command)
    return command


def gpu_of(given: dict[str, Any]) -> Gpu:
    """The GPU that the options describe; takes them out of `given`.

    Its links must be known, also if they do not count, as a wrong name would be overlooked.
    """
    from transport.estimate.gpus import gpu
    from transport.estimate.networks import own_link

    name, efficiency, file = (given.pop(key) for key in ("gpu_name", "efficiency", "gpus_file"))
    found = gpu(name, efficiency, file)
    own_link(found.name, found.facts.links, known_links())
    return found


def linked(given: dict[str, Any], gpu: Gpu) -> list[str]:
    """Sets the link inside of a node to the GPU's own, if none was given; returns notes on it."""
    if given["inside"] is not None or given["network_file"] is not None:
        return []
    name = next(iter(gpu.facts.links), None)
    if name is None or known_links()[name].is_of_torus:
        return ["without --inside every GPU is a node"]
    given["inside"] = name
    return [f"nodes have {given['gpus_per_node']} GPUs, linked by {name}: --inside changes it"]


def chosen_gpu() -> Gpu:
    """The GPU of this command's --gpu. GpuError."""
    from transport.estimate.gpus import gpu

    said = click.get_current_context().params
    return gpu(said["gpu_name"], None, said["gpus_file"])


def known_links() -> dict[str, Link]:
    """The links that this command knows: the shipped ones, and those of its --links-file."""
    from transport.estimate.networks import with_file

    return with_file(click.get_current_context().params.get("links_file"))


links_file_option = click.option(
    "--links-file",
    metavar="FILE",
    type=InputFile(),
    help="TOML file of your own links, which the options may name.",
)


def _refused(context: click.Context, _: click.Parameter, shape: str | None) -> None:
    if shape is not None:
        raise click.UsageError(
            f"--torus: `weft estimate {context.info_name}` has switches only: `weft estimate train "
            f"MODEL --torus {printable(shape)}` estimates a step on a torus, with --data, --tensor "
            "and --zero as you choose them"
        )


# Of commands on steps that know no torus: says which one does.
no_torus_option = click.option(
    "--torus", hidden=True, expose_value=False, is_eager=True, callback=_refused
)


def refusing(option: str, why: str) -> Callable[[Command], Command]:
    """A hidden option that another command has. why: what to say of it after its name."""

    def refused(_: click.Context, __: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"{option}: {why}")

    name = f"refused_{option.lstrip('-').replace('-', '_')}"
    return click.option(option, name, hidden=True, expose_value=False, callback=refused)


SHARED = (
    click.option(
        "--pcie",
        metavar="LINK",
        help="PCIe link of a GPU, which its traffic to NICs passes, such as pcie4. "
        "Default: that of --inside, or not considered.",
    ),
    click.option(
        "--gpus-per-switch",
        type=click.IntRange(1),
        help="GPUs behind one PCIe switch, whose link to the CPU they share; needs "
        "--inside of PCIe. Default: no switch is shared.",
    ),
    click.option(
        "--oversubscription",
        type=FiniteRange(1.0, 1000.0),
        help="Bandwidth of a leaf switch to its nodes, divided by that to spine switches. "
        "Default: 1.",
    ),
    click.option(
        "--nodes-per-leaf",
        type=click.IntRange(1),
        help=f"Nodes of a leaf switch; needs --oversubscription. Default: {NODES_PER_LEAF}.",
    ),
)


def network_options(
    command: Command, alone: str = "Default: every GPU is a node of its own."
) -> Command:
    """Adds the options that describe a network. alone: what counts without --inside."""
    for option in reversed(
        (
            click.option(
                "--between",
                metavar="LINK",
                default="ethernet-400",
                show_default=True,
                help="Link of each GPU to other nodes; the number is its rate in one direction, in "
                "Gbit/s.",
            ),
            click.option(
                "--inside",
                metavar="LINK",
                help="Link of a GPU to others of its node, such as nvlink4 of an H100 or pcie5. "
                f"{alone}",
            ),
            click.option(
                "--gpus-per-node",
                default=8,
                show_default=True,
                type=click.IntRange(1),
                help="GPUs of a node; needs --inside.",
            ),
            click.option(
                "--nics-per-node",
                type=click.IntRange(1),
                help="NICs of a node. Default: one for each GPU.",
            ),
            *SHARED,
            links_file_option,
            click.option(
                "--network",
                "network_file",
                metavar="FILE",
                type=InputFile(),
                help="File of a measured network, as `weft estimate calibrate` writes it, instead "
                "of the options above.",
            ),
        )
    ):
        command = option(command)
    return command


def network_of(given: dict[str, Any]) -> Network:
    """The network that the options describe; takes them out of `given`."""
    from transport.estimate.networks import load, of_links, with_file
    from transport.estimate.sharing import Sharing

    between, inside, file = (given.pop(name) for name in ("between", "inside", "network_file"))
    gpus, nics, pcie = (given.pop(name) for name in ("gpus_per_node", "nics_per_node", "pcie"))
    links_file = given.pop("links_file")
    shared = {name: given.pop(name) for name in SHARING_OPTIONS}
    source = click.get_current_context().get_parameter_source
    said = [name for name in LINK_OPTIONS if source(name) is ParameterSource.COMMANDLINE]
    if file is not None and said:
        raise click.UsageError(
            f"--network describes the whole network: leave out {_option(said[0])}"
        )
    if inside is None and "gpus_per_node" in said:
        raise click.UsageError("--gpus-per-node needs --inside: give the link inside of a node")
    if shared["nodes_per_leaf"] is not None and shared["oversubscription"] is None:
        raise click.UsageError("--nodes-per-leaf needs --oversubscription")
    with usage_errors():
        if file is not None:
            return load(file)
        sharing = Sharing(**{name: one for name, one in shared.items() if one is not None})
        return of_links(between, inside, gpus, nics, pcie, sharing, with_file(links_file))


torus_option = click.option(
    "--torus",
    metavar="SHAPE",
    help="All accelerators form a torus, such as 4x4x8, with the link of --inside or that "
    "of the accelerator's profile; tensor parallel ones fill its first axes.",
)


def torus_options(command: Command) -> Command:
    """Adds the options that describe a torus, or several slices."""
    for option in (
        click.option(
            "--slices",
            default=1,
            show_default=True,
            type=click.IntRange(1, SLICES_MAX),
            help="Tori of --torus, numbered one after the other, that a network joins: --between "
            "is then its link with the rate of one accelerator.",
        ),
        torus_option,
    ):
        command = option(command)
    return command


def torus_of(shape: str, given: dict[str, Any], gpu: Gpu, slices: int = 1) -> Network:
    """The torus that --torus gives, with the link of --inside or, without it, the accelerator's.

    slices: how many such tori there are, which the link of --between joins. Takes the options of
    networks out of `given`; those of switches may not be said.
    """
    from transport.estimate.networks import Network, link, links, own_link
    from transport.estimate.torus import check_link, parsed

    source = click.get_current_context().get_parameter_source
    known, inside, between = known_links(), given["inside"], given["between"]
    outside = _outside(between) if slices > 1 else None
    needed = (*TORUS_OPTIONS, "between") if slices > 1 else TORUS_OPTIONS
    others = [name for name in (*LINK_OPTIONS, "network_file") if name not in needed]
    for one in others:
        if source(one) is ParameterSource.COMMANDLINE:
            option = "network" if one == "network_file" else one
            raise click.UsageError(f"--torus has no switches: leave out {_option(option)}")
    for one in (*LINK_OPTIONS, "network_file"):
        given.pop(one)
    name = inside or own_link(gpu.name, gpu.facts.links, known)
    if name is None:
        raise click.UsageError("--torus: what links the accelerators? Give --inside, as tpu-v4")
    torus, used = parsed(shape), link(name, known)
    check_link(name, used)
    numbers = "numbers of links.toml" if name in links() else "numbers of your own file"
    title = f"torus {torus} of {name}"
    title = f"{slices} slices joined by {between}, each a {title}" if slices > 1 else title
    return Network(title, numbers, used, torus.chips, torus=torus, slices=slices, outside=outside)


def _outside(between: str) -> Link:
    """The link of an accelerator to other slices. A usage error if --between gives none."""
    from transport.estimate.networks import link

    source = click.get_current_context().get_parameter_source("between")
    found = link(between, known_links())
    if source is not ParameterSource.COMMANDLINE or found.is_of_torus:
        raise click.UsageError(
            "--slices: give --between, a network's link with the rate of one accelerator, such as "
            "ethernet-50 for a TPU v5p"
        )
    return found


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turns errors of estimates into usage errors (exit status 2)."""
    from transport.estimate.collectives import ShapeError
    from transport.estimate.computation import ComputationError
    from transport.estimate.gpu_profiles import GpuError
    from transport.estimate.networks import NetworkError
    from transport.estimate.plan import PlanError

    try:
        yield
    except PlanError as error:
        name, colon, rest = str(error).partition(": ")
        raise click.UsageError(f"{_option(OPTIONS.get(name, name))}{colon}{rest}") from None
    except (ComputationError, GpuError, NetworkError, ShapeError) as error:
        raise click.UsageError(str(error)) from None


def network_line(network: Network) -> str:
    """The links of a network, and what its traffic shares."""
    sharing, parts = network.sharing, [network.name]
    if sharing.nics_per_node:
        parts.append(f"NICs of a node: {sharing.nics_per_node}")
    if sharing.pcie_bytes_per_s and not sharing.is_inside:
        parts.append(f"PCIe to a NIC: {rate_text(sharing.pcie_bytes_per_s)}")
    if sharing.gpus_per_switch:
        parts.append(f"{sharing.gpus_per_switch} GPUs a PCIe switch")
    if sharing.oversubscription > 1:
        leaf = f"{sharing.nodes_per_leaf} nodes a leaf"
        parts.append(f"oversubscription {sharing.oversubscription:g}, {leaf}")
    return f"network: {'; '.join(parts)}"


LATENCY_UNKNOWN = "torus: the latency of a call is not known and not in the times"
MARK = "*"  # follows times that are extrapolated: outside of the measured range


def notes_of(network: Network, marked: bool) -> list[str]:
    """Notes on the source of the network's numbers. marked: some times are extrapolated."""
    if network.slices > 1:
        from transport.estimate.slices import SLICES_WAIT

        return [
            f"slices: each doubling makes the step {percent(SLICES_WAIT)} longer, as all wait for "
            "the slowest one: fitted to MaxText's runs on TPU v4 and v5p",
            *notes_of(replace(network, slices=1), marked),
        ]
    if network.calibrated is None:
        return ["not calibrated: rates are those of data sheets and of NCCL's own model"]
    notes = list(network.notes)
    if not marked:
        return notes
    return [*notes, f"{MARK} extrapolated: the network was fitted to {network.calibrated}"]


def torus_notes(gpu: Gpu) -> list[str]:
    """A note if such accelerators are linked as a torus, which estimates of steps do not have."""
    known = known_links()
    name = next(iter(gpu.facts.links), None)
    if name is None or not known[name].is_of_torus:
        return []
    return [
        f"{gpu.name} is usually linked as a torus ({name}), which train and hlo estimate with "
        "--torus: the links above count"
    ]
