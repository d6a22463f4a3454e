"""`weft policy try`: runs policies in a small simulated network and prints the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from congestion.api import FAMILIES
from transport.cli import plots
from transport.cli.lookup import is_file, named
from transport.cli.options import SEED, FiniteRange, output_file
from transport.cli.output import json_option, print_table, write_file, write_json
from transport.cli.packages import PLOTS, compiling, need_packages
from transport.cli.replay import sparkline
from transport.cli.try_options import MS_MAX, network_of, network_options, traffic_of
from transport.errors import InvalidArgumentError
from transport.ground.units import bytes_text, percent
from transport.policies import coexist
from transport.policies.choice import PolicyRefusedError, split
from transport.policies.trial import (
    Beside,
    Outcome,
    run,
)


def chosen_policies(words: tuple[str, ...]) -> dict[str, str]:
    """Policies by family, from arguments like "dctcp", "mine.py" or "path=reps:burst_bytes=1"."""
    chosen: dict[str, str] = {}
    for word in words:
        family, equals, policy = word.partition("=")
        if not equals or family not in FAMILIES:
            family, policy = asked_for(word)
        elif split(policy)[0].endswith((".py", ".so")):
            file = split(policy)[0]
            if not Path(file).is_file():
                raise click.UsageError(f"{file}: no such file")
        if family in chosen:
            raise click.UsageError(
                f"{chosen[family]} and {policy} are both {family} policies: give one"
            )
        chosen[family] = policy
    return chosen


def asked_for(word: str) -> tuple[str, str]:
    """The family of a named policy or file, and the text that loads it with its parameters."""
    name, colon, values = split(word)
    if name.endswith(".so"):
        raise click.UsageError(f"{name}: give the library's family, as in window={name}")
    policy = named(name)
    family = policy.family.name
    return family, (name if is_file(name) else policy.name) + colon + values


def rows_of(outcome: Outcome) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for index, flow in enumerate(outcome.report.flows):
        rows.append(
            (
                str(index),
                f"{flow.goodput_bytes_per_s / 1e9:.3f}",
                str(flow.messages),
                f"{flow.message_ns_p50 / 1e6:.2f}",
                f"{flow.message_ns_p99 / 1e6:.2f}",
                str(flow.counters["segments_resent"]),
                str(flow.counters["spurious_resends"]),
                sparkline(outcome.trace("window_bytes")[:, index], 40),
            )
        )
    return rows


GROUPS = (
    *("policies", "flows", "share", "fair share", "Jain", "GB/s of a flow", "harm"),
    *("message p50 ms", "harm", "p99 ms", "harm"),
)


def rows_of_groups(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The rows of coexist.report as cells; "-" for times of a group of which nothing arrived."""
    return [
        (
            row["group"],
            str(row["flows"]),
            percent(row["share"]),
            percent(row["fair_share"]),
            f"{row['jain']:.3f}",
            f"{row['goodput_bytes_per_s'] / 1e9:.3f}",
            percent(row["harm_goodput"]),
            *(cell for name in ("p50", "p99") for cell in _time_and_harm(row, name)),
        )
        for row in rows
    ]


def _time_and_harm(row: Mapping[str, Any], name: str) -> tuple[str, str]:
    if f"harm_message_{name}" not in row:
        return "-", "-"
    return f"{row[f'message_ns_{name}'] / 1e6:.2f}", percent(row[f"harm_message_{name}"])


HEADINGS = ("flow", "GB/s", "messages", "p50 ms", "p99 ms", "resent", "needless", "window")


def document(
    outcome: Outcome,
    policies: dict[str, str],
    beside: Beside | None,
    groups: Sequence[Mapping[str, Any]],
    seed: int,
) -> dict[str, Any]:
    """The results as JSON. groups: the rows of coexist.report, with `beside`."""
    report = outcome.report
    shared = {} if beside is None else {"beside": beside.__dict__, "coexistence": groups}
    return shared | {
        "policies": outcome.names | policies,
        "network": outcome.network.__dict__,
        "traffic": outcome.traffic.__dict__,
        "seed": seed,
        "fingerprint": f"{report.fingerprint:016x}",
        "violation": report.violation,
        "goodput_share": outcome.goodput_share,
        "jain": report.jain,
        "message_ns_p99": report.message_ns_p99,
        "lost_datagrams": outcome.lost(),
        "policies_failed": report.policies_failed,
        "policy_failure": report.policy_failure,
        "rows": [
            {
                "flow": index,
                **({"group": outcome.labels[outcome.group_of[index]]} if outcome.labels else {}),
                "goodput_bytes_per_s": flow.goodput_bytes_per_s,
                "messages": flow.messages,
                "message_ns_p50": flow.message_ns_p50,
                "message_ns_p99": flow.message_ns_p99,
                "retransmitted_segments": flow.counters["segments_resent"],
                "needless_segments": flow.counters["spurious_resends"],
            }
            for index, flow in enumerate(report.flows)
        ],
        "path_bytes": [path.bytes for path in report.paths],
        "queue_bytes_p99": [path.queue_bytes_p99 for path in report.paths],
    }


def name_of(outcome: Outcome, flow: int) -> str:
    """A flow's name in a plot, with its policies if there are several kinds."""
    labels = outcome.labels
    return f"flow {flow}" + (f" ({labels[outcome.group_of[flow]]})" if labels else "")


def draw(pyplot: Any, outcome: Outcome, title: str, out: Path) -> None:
    """Plots windows, goodput and queues over time."""
    figure, axes = pyplot.subplots(3, 1, figsize=(9, 8), sharex=True)
    at_ms = outcome.at_ms
    windows, delivered = outcome.trace("window_bytes"), outcome.trace("delivered_bytes")
    for flow in range(windows.shape[1]):
        axes[0].plot(at_ms, windows[:, flow] / 1e3, linewidth=1, label=name_of(outcome, flow))
        rate = (
            np.gradient(delivered[:, flow], at_ms) * 1e3 if at_ms.size > 1 else delivered[:, flow]
        )
        axes[1].plot(at_ms, rate / 1e9, linewidth=1)
    queues = outcome.trace("queue_bytes")
    for path in range(queues.shape[1]):
        axes[2].plot(at_ms, queues[:, path] / 1e3, linewidth=1)
    for axis, what in zip(axes, ("window (kB)", "goodput (GB/s)", "queue (kB)"), strict=True):
        axis.set_ylabel(what)
    axes[0].legend(loc="best", fontsize="small")
    axes[2].set_xlabel("ms")
    plots.save(figure, title, out)


@click.command("try")
@click.argument("policies", nargs=-1, required=True)
@click.option("--flows", default=2, show_default=True, type=click.IntRange(1, 64))
@click.option(
    "--beside",
    "others",
    multiple=True,
    metavar="POLICY",
    help="A policy of further flows in the same network; may be given for several families. "
    "Families without it are as in POLICIES.",
)
@click.option(
    "--beside-flows",
    type=click.IntRange(1, 64),
    help="Number of these flows; default: as many as --flows.",
)
@click.option(
    "--stagger-ms",
    default=5.0,
    show_default=True,
    type=FiniteRange(0, MS_MAX),
    help="Time between the starts of two flows.",
)
@network_options
@click.option("--seed", default=1, show_default=True, type=SEED)
@click.option("--plot", type=output_file(), help="Write a plot to this file.")
@click.option(
    "--record",
    type=output_file(),
    help="Write every decision to this file, for weft policy replay.",
)
@json_option
def command(policies: tuple[str, ...], **given: Any) -> None:
    """Run POLICIES in a small simulated network and print the results.

    A policy is a registered name or a .py file, with parameters as in a WEFT_*_POLICY variable.
    A file is run: try only what you would run.
    Families without a policy use weft's defaults. The same seed gives the same run.

    With --beside, flows of both kinds begin in turn and share the network, and the table says how
    fairly, and what harm each kind does to the other: by how much goodput and message times are
    worse than without the other flows (Ware et al., HotNets 2019).

    \b
    Examples:
      weft policy try mine.py path=reps --paths 4 --loss 0.001 --plot mine.svg
      weft policy try mine.py --beside dctcp --flows 2 --beside-flows 6
    """
    plot, record, seed = given["plot"], given["record"], given["seed"]
    drawing = [PLOTS] if plot is not None else []
    need_packages("weft policy try", *drawing, *compiling((*policies, *given["others"])))
    chosen, beside = chosen_policies(policies), beside_of(given)
    pyplot = plots.prepared(plot) if plot is not None else None

    def simulate(alone: int | None = None) -> Outcome:
        keep = record is not None and alone is None
        return simulated(chosen, beside, given, record=keep, alone=alone)

    outcome = simulate()
    groups = [] if beside is None else coexist.report(outcome, [simulate(0), simulate(1)])
    if record is not None:
        write_file(record, outcome.report.recording)
    if plot is not None:
        draw(pyplot, outcome, " ".join(policies), plot)
    if given["json_path"] is not None:
        write_json(document(outcome, chosen, beside, groups, seed), given["json_path"])
    else:
        show(outcome, groups)
    judge(outcome)


def beside_of(given: Mapping[str, Any]) -> Beside | None:
    """The further flows that the options describe; None: there are none."""
    if not given["others"]:
        if given["beside_flows"] is not None:
            raise click.UsageError("--beside-flows needs --beside: name a policy of these flows")
        return None
    flows = given["beside_flows"] or given["flows"]
    return Beside(policies=chosen_policies(given["others"]), flows=flows)


def judge(outcome: Outcome) -> None:
    """Raises an error if the run failed; called after the results were shown."""
    report = outcome.report
    if report.violation:
        raise click.ClickException(f"an invariant broke: {report.violation}")
    if report.policies_failed:
        times = f"{report.policies_failed} time{'s' if report.policies_failed > 1 else ''}"
        text = f"{report.policy_failure} and was replaced by fixed, {times}"
        raise click.ClickException(f"{text}: run weft policy check on that policy")


def simulated(
    chosen: dict[str, str],
    beside: Beside | None,
    given: Mapping[str, Any],
    *,
    record: bool = False,
    alone: int | None = None,
) -> Outcome:
    """Runs the simulator; exit status 1 if it refuses a policy, 2 for other (usage) errors."""
    network, traffic, samples = network_of(given), traffic_of(given), 500 if alone is None else 0
    try:
        return run(
            chosen,
            network,
            traffic,
            seed=given["seed"],
            samples=samples,
            record=record,
            beside=beside,
            alone=alone,
        )
    except PolicyRefusedError as error:
        raise click.ClickException(str(error)) from None
    except InvalidArgumentError as error:
        raise click.UsageError(str(error)) from None


def show(outcome: Outcome, groups: Sequence[Mapping[str, Any]]) -> None:
    rows: list[tuple[str, ...]] = rows_of(outcome)
    headings: tuple[str, ...] = HEADINGS
    if groups:
        names = [outcome.labels[one] for one in outcome.group_of]
        rows = [(row[0], name, *row[1:]) for row, name in zip(rows, names, strict=True)]
        headings = (HEADINGS[0], "policies", *HEADINGS[1:])
    print_table(headings, rows)
    if groups:
        print_table(GROUPS, rows_of_groups(groups))
    report = outcome.report
    shares = [path.bytes for path in report.paths]
    whole = max(sum(shares), 1)
    click.echo(
        f"{percent(outcome.goodput_share)} of the paths' rate, Jain {report.jain:.3f}, "
        f"{outcome.lost()} datagrams lost, queue p99 "
        f"{bytes_text(max(path.queue_bytes_p99 for path in report.paths))}"
        + (
            f", path shares {' '.join(f'{percent(one / whole, 0)}' for one in shares)}"
            if shares[1:]
            else ""
        )
    )
