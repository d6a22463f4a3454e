"""`weft policy check`: runs the conformance suite on a policy and prints the results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.console import Console

from transport.cli.lookup import named
from transport.cli.options import SEED
from transport.cli.output import json_option, print_table, write_json
from transport.cli.progress import progress_on_a_terminal
from transport.ground.units import counted

EVENTS_MAX = 100_000_000  # largest value of --events; such a run takes some hours

if TYPE_CHECKING:
    from congestion.api import Policy
    from transport.conformance import Report


def show(report: Report, unpromised: list[str], seed: int) -> None:
    """Prints the table of checks, then what is said of each one that is not ok."""
    policy = report.policy
    print_table(
        ["check", "measured", "declared, required or usual", ""],
        [
            (one.check, one.measured, one.bound, one.status(report.strict))
            for one in report.outcomes
        ],
    )
    click.echo()
    for kind, found in (("FAILED", report.failures), ("warning", report.warnings)):
        for one in found:
            click.echo(f"{kind}: {one.check}: {one.remedy} (seed {seed})")
            if one.where:
                click.echo(f"  measured with {one.where}")
    for one in report.by_design:
        click.echo(f"by design: {one.check}: {one.reason}")
    passed = sum(one.status(report.strict) == "ok" for one in report.outcomes)
    rest = f", {counted(len(report.warnings), 'warning')}" if report.warnings else ""
    rest += f", {len(report.by_design)} by design" if report.by_design else ""
    click.echo(
        f"{policy.family.name} policy {policy.name}: {passed} of {len(report.outcomes)} checks "
        f"passed in {report.seconds:.0f} s{rest}"
    )
    if report.warnings:
        click.echo("A warning is a value beyond what is usual; --strict fails it.")
    if report.needless:
        click.echo(
            "Stated as intrinsic, but every check of it passed: " + ", ".join(report.needless)
        )
    if unpromised:
        click.echo("Undeclared properties (declare one to check it): " + "; ".join(unpromised))


def as_json(report: Report, unpromised: list[str], seed: int, events: int) -> dict[str, object]:
    policy = report.policy
    return {
        "family": policy.family.name,
        "name": policy.name,
        "file": policy.module,
        "seed": seed,
        "events": events,
        "strict": report.strict,
        "passed": report.passed,
        "seconds": round(report.seconds, 3),
        "checks": [one.as_json(report.strict) for one in report.outcomes],
        "needless": list(report.needless),
        "unpromised": unpromised,
    }


def _declared(policy: str, preset: str | None) -> Policy:
    declared = named(policy)
    try:
        return declared if preset is None else declared.with_preset(preset)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--preset'") from None


@click.command("check")
@click.argument("policy", metavar="FILE|NAME")
@click.option("--quick", is_flag=True, help="Fewer events and shorter runs: a few seconds.")
@click.option(
    "--strict",
    is_flag=True,
    help="Warnings are failures: values beyond what is usual, and properties left out without a "
    "reason.",
)
@click.option("--events", type=click.IntRange(1, EVENTS_MAX), help="Number of random events.")
@click.option("--seed", default=7, show_default=True, type=SEED, help="Seed of the events.")
@click.option("--preset", help="Check the parameters of this preset, as paper, not the defaults.")
@json_option
def command(
    policy: str,
    quick: bool,
    strict: bool,
    events: int | None,
    seed: int,
    preset: str | None,
    json_path: str | None,
) -> None:
    """Check a policy against its declared properties and those required of every policy.

    Also measures what is usual in the field: the answer to marks and delay, utilization, standing
    queues, Jain's index, a newcomer's share, the rates of timers and probes, resends after
    reordering, clocks and counters beyond 2^31 and 2^32, and whether the code reads the signals
    that it declares. A value beyond its usual bound is a warning, and with --strict a failure,
    unless Promises(intrinsic={...}) gives the reason why the algorithm itself is so.

    This runs FILE, as Python and compiled: check only what you would run. FILE must belong to you
    or to root, and nobody else may be able to write to it or to its folder.
    """
    from transport.compiler.errors import ToolMissingError
    from transport.conformance import (
        FULL_EVENTS,
        QUICK_EVENTS,
        Settings,
        check_policy,
        unpromised,
    )

    declared = _declared(policy, preset)
    count = events or (QUICK_EVENTS if quick else FULL_EVENTS)
    if not quick and not Console(stderr=True).is_terminal:
        click.echo(
            f"checking {declared.name} takes some seconds to a minute; --quick: less", err=True
        )
    try:
        with progress_on_a_terminal(declared.name) as progress:
            report = check_policy(declared, Settings(count, seed, quick, strict), progress)
    except ToolMissingError as error:
        raise click.ClickException(f"{declared.name} was not checked: {error}") from None
    missing = unpromised(declared)
    if json_path is not None:
        content = as_json(report, missing, seed, count)
        write_json(content, json_path)
    else:
        show(report, missing, seed)
    if not report.passed:
        raise click.exceptions.Exit(1)
