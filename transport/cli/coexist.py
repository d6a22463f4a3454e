"""`weft policy coexist`: runs each pair of policies beside each other and prints their shares."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from congestion.registry import SHIPPED
from transport import native
from transport.cli import plots
from transport.cli.options import FiniteRange, SeedsType, output_file
from transport.cli.output import json_option, print_table, write_json
from transport.cli.packages import PLOTS, compiling, need_packages
from transport.cli.progress import progress_on_a_terminal
from transport.cli.try_options import MS_MAX, network_of, network_options, traffic_of
from transport.cli.try_policy import asked_for, chosen_policies
from transport.errors import InvalidArgumentError
from transport.ground.build_info import build_info
from transport.ground.units import bytes_text, percent, rate_text, time_text
from transport.policies.choice import PolicyRefusedError, choose, short_text
from transport.policies.matrix import Setting, cases_of, results, tables, with_harm

POLICIES_MAX = 64
SHOWN = {
    "share": "share of the goodput that the row's policy gets beside the column's",
    "harm_goodput": "harm that the column's policy does to the goodput of the row's",
}


@click.command("coexist")
@click.argument("policies", nargs=-1, metavar="[POLICY]...")
@click.option(
    "--with",
    "others",
    multiple=True,
    metavar="POLICY",
    help="A policy of another family, of all flows; may be given for several families.",
)
@click.option(
    "--flows",
    default=2,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Number of flows of each of the two policies.",
)
@click.option(
    "--stagger-ms",
    default=1.0,
    show_default=True,
    type=FiniteRange(0, MS_MAX),
    help="Time between the starts of two flows.",
)
@network_options
@click.option("--seeds", type=SeedsType(), metavar="A-B", default="1-3", show_default=True)
@click.option("-j", "--jobs", type=click.IntRange(1, 1024), help="Parallel runs.")
@click.option("--plot", type=output_file(), help="Write a heat map to this file.")
@json_option
def command(policies: tuple[str, ...], **given: Any) -> None:
    """Run each pair of policies beside each other and print who gets which share.

    POLICY is as for weft policy try; all are of one family. Default: all window policies that are
    shipped with weft. In each run, two groups of flows share one network, and begin in turn; the
    seeds take turns in which policy begins. The tables have medians over the seeds, from when the
    last flow of a run has begun: the share that the row's policy gets beside the column's, and the
    harm to it, by how much less goodput it has than without the others (Ware et al., HotNets 2019).
    The diagonal is a policy beside itself. --json also has the harm to message times, and all runs.

    \b
    Examples:
      weft policy coexist mine.py swift dctcp --queue-kb 200 --plot pairs.svg
      weft policy coexist path/reps path/oblivious --paths 8 --with swift
    """
    drawing = [PLOTS] if given["plot"] is not None else []
    files = compiling((*policies, *given["others"]))
    need_packages("weft policy coexist", *drawing, *files)
    if given["plot"] is not None:
        plots.prepared(given["plot"])
    setting = setting_of(policies or shipped_window_policies(), given)
    rows = rows_of(setting, given["seeds"], given["jobs"] or len(os.sched_getaffinity(0)))
    pairs = with_harm(rows)
    found = tables(pairs, len(setting.policies))
    names = [short_text(one) for one in setting.policies]
    if given["plot"] is not None:
        plots.save(drawn(names, found), said_of(setting), given["plot"])
    if given["json_path"] is not None:
        write_json(document(setting, names, given["seeds"], found, rows, pairs), given["json_path"])
    else:
        show(names, found)
        click.echo(f"{said_of(setting)}; {len(given['seeds'])} seeds")
    judge(rows)


def shipped_window_policies() -> tuple[str, ...]:
    head = "congestion.window."
    return tuple(f"window/{one.removeprefix(head)}" for one in SHIPPED if one.startswith(head))


def setting_of(words: Sequence[str], given: Mapping[str, Any]) -> Setting:
    """What the options describe; refuses unknown and wrong policies before any run."""
    chosen = [asked_for(word) for word in words]
    families = sorted({family for family, _ in chosen})
    if len(families) > 1:
        raise click.UsageError(
            f"POLICY names policies of several families, {' and '.join(families)}: give those of "
            "one, and the others as --with"
        )
    texts = tuple(text for _, text in chosen)
    if len(texts) < 2 or len(texts) > POLICIES_MAX:
        raise click.UsageError(f"give 2 to {POLICIES_MAX} policies, not {len(texts)}")
    twice = [one for one in texts if texts.count(one) > 1]
    if twice:
        raise click.UsageError(f"{twice[0]} is given twice: leave one out")
    others = chosen_policies(given["others"])
    if families[0] in others:
        raise click.UsageError(
            f"--with {others[families[0]]} is a {families[0]} policy, as POLICY: leave it out"
        )
    try:
        for family, text in [*chosen, *others.items()]:
            choose(native.FabricPlan(), family, text, {})  # compiles a file before processes start
    except PolicyRefusedError as error:
        raise click.ClickException(str(error)) from None
    except InvalidArgumentError as error:
        raise click.UsageError(str(error)) from None
    network, traffic = network_of(given), traffic_of(given)
    return Setting(
        family=families[0], policies=texts, others=others, network=network, traffic=traffic
    )


def rows_of(setting: Setting, seeds: Sequence[int], jobs: int) -> list[dict[str, Any]]:
    """The rows of all runs, in the order of the cases, with a progress bar."""
    cases = cases_of(setting, seeds)
    found: dict[int, list[dict[str, Any]]] = {}
    try:
        with progress_on_a_terminal("coexist") as progress:
            for index, rows in results(setting, cases, jobs):
                found[index] = rows
                progress(f"{len(found)} of {len(cases)} runs", len(found) / len(cases))
    except InvalidArgumentError as error:
        raise click.UsageError(str(error)) from None
    return [row for index in sorted(found) for row in found[index]]


def said_of(setting: Setting) -> str:
    """The network and the flows of a matrix, in a line."""
    network, traffic = setting.network, setting.traffic
    rate, delay = rate_text(network.bytes_per_s), time_text(2 * network.delay_ns)
    paths = f"{network.paths} paths of " if network.paths > 1 else ""
    queue = bytes_text(network.queue_bytes) if network.queue_bytes else "without limit"
    flows = "a flow" if traffic.flows == 1 else f"{traffic.flows} flows"
    return (
        f"{setting.family} policies in pairs: {flows} of each, {paths}{rate}, "
        f"round trip {delay}, queue {queue}"
    )


def cell(value: float | None) -> str:
    return "-" if value is None else percent(value, 0)


def show(names: Sequence[str], found: Mapping[str, list[list[float | None]]]) -> None:
    for name, said in SHOWN.items():
        rows = [
            (mine, *(cell(one) for one in values))
            for mine, values in zip(names, found[name], strict=True)
        ]
        print_table([name.partition("_")[0], *names], rows)
        click.echo(said)


def document(
    setting: Setting,
    names: Sequence[str],
    seeds: Sequence[int],
    found: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    pairs: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The results as JSON. Rows and columns of the tables, and of runs, are those of policies."""
    alone = [row for row in rows if row["alone"]]
    return {
        "family": setting.family,
        "policies": list(names),
        "others": dict(setting.others),
        "network": setting.network.__dict__,
        "traffic": setting.traffic.__dict__,
        "seeds": list(seeds),
        **found,
        "runs": [named(row, names) for row in [*alone, *pairs]],
        **build_info(),
    }


def named(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A row with names instead of numbers; of a policy alone, without what has no meaning then."""
    dropped = ("group", "share", "fair_share", "jain") if row["alone"] else ("group",)
    kept = {key: value for key, value in row.items() if key not in dropped}
    kept |= {"row": names[row["row"]], "column": names[row["column"]]}
    return kept | ({"column": None} if row["alone"] else {})


def judge(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises an error if a run failed; called after the results were shown."""
    bad = [row for row in rows if row["problem"]]
    if bad:
        raise click.ClickException(
            f"{len(bad)} of {len(rows)} rows are of runs that failed, the first with seed "
            f"{bad[0]['seed']}: {bad[0]['problem']}"
        )


def drawn(names: Sequence[str], found: Mapping[str, list[list[float | None]]]) -> Any:
    """A heat map for each table: a share from 0 (red) over the fair one to 1, and the harm."""
    from matplotlib import pyplot

    count = len(names)
    side = 2.0 + 0.55 * count
    figure, axes = pyplot.subplots(1, len(SHOWN), figsize=(len(SHOWN) * side + 1, side + 0.8))
    maps = {"share": "RdYlBu", "harm_goodput": "YlOrRd"}
    for axis, (name, said) in zip(axes, SHOWN.items(), strict=True):
        values = [[float("nan") if one is None else one for one in row] for row in found[name]]
        image = axis.imshow(values, cmap=maps[name], vmin=0, vmax=1)
        axis.set_xticks(range(count), names, rotation=45, ha="right")
        axis.set_yticks(range(count), names)
        half = len(said) // 2
        cut = said.find(" ", half)
        axis.set_title(f"{said[:cut]}\n{said[cut + 1 :]}", fontsize="small")
        for at, row in enumerate(found[name]):
            for place, one in enumerate(row):
                text = cell(one).replace(" %", "")
                red, green, blue, _ = image.cmap(image.norm(one or 0.0))
                is_dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.45
                color = "white" if is_dark and one is not None else "black"
                axis.text(place, at, text, ha="center", va="center", color=color, fontsize="small")
        figure.colorbar(image, ax=axis, fraction=0.046, format=lambda one, _: f"{one * 100:.0f} %")
    return figure
