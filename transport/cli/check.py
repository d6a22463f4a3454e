"""`weft policy check`: runs the conformance suite on a policy and prints the results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.console import Console

from transport.cli.lookup import named
from transport.cli.options import SEED
from transport.cli.output import json_option, print_table, write_json
from transport.cli.progress import progress_on_a_terminal

EVENTS_MAX = 100_000_000  # largest value of --events; such a run takes some hours

if TYPE_CHECKING:
    from transport.conformance import Report


def show(report: Report, unpromised: list[str], seed: int) -> None:
    """Prints the table of checks, then a remedy for each failure."""
    policy = report.policy
    print_table(
        ["check", "measured", "declared or required", ""],
        [
            (one.check, one.measured, one.bound, "ok" if one.passed else "FAILED")
            for one in report.outcomes
        ],
    )
    click.echo()
    for one in report.failures:
        click.echo(f"{one.check}: {one.remedy} (seed {seed})")
    passed = len(report.outcomes) - len(report.failures)
    click.echo(
        f"{policy.family.name} policy {policy.name}: {passed} of {len(report.outcomes)} checks "
        f"passed in {report.seconds:.0f} s"
    )
    if unpromised:
        click.echo("Undeclared properties (declare one to check it): " + "; ".join(unpromised))


@click.command("check")
@click.argument("policy", metavar="FILE|NAME")
@click.option("--quick", is_flag=True, help="Fewer events and shorter runs: a few seconds.")
@click.option("--events", type=click.IntRange(1, EVENTS_MAX), help="Number of random events.")
@click.option("--seed", default=7, show_default=True, type=SEED, help="Seed of the events.")
@json_option
def command(policy: str, quick: bool, events: int | None, seed: int, json_path: str | None) -> None:
    """Check a policy against its declared properties and those required of every policy.

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

    declared = named(policy)
    count = events or (QUICK_EVENTS if quick else FULL_EVENTS)
    if not quick and not Console(stderr=True).is_terminal:
        click.echo(
            f"checking {declared.name} takes some seconds to a minute; --quick: less", err=True
        )
    try:
        with progress_on_a_terminal(declared.name) as progress:
            report = check_policy(declared, Settings(count, seed, quick), progress)
    except ToolMissingError as error:
        raise click.ClickException(f"{declared.name} was not checked: {error}") from None
    missing = unpromised(declared)
    if json_path is not None:
        content = {
            "family": declared.family.name,
            "name": declared.name,
            "file": declared.module,
            "seed": seed,
            "events": count,
            "passed": report.passed,
            "seconds": round(report.seconds, 3),
            "checks": [one.as_json() for one in report.outcomes],
            "unpromised": missing,
        }
        write_json(content, json_path)
    else:
        show(report, missing, seed)
    if not report.passed:
        raise click.exceptions.Exit(1)
