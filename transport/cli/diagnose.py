"""`weft diagnose`: says which rank, NIC or path of a job is slow or hung, and why."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transport.cli import trace_open as shared
from transport.cli.output import json_option, write_json
from transport.sim.units import time_text

if TYPE_CHECKING:
    from transport.diagnose import Diagnosis, Finding
    from transport.plan.routes import Routes


@click.command("diagnose")
@shared.folder_argument
@shared.job_option
@click.option(
    "--routes", "routes_file", metavar="FILE", type=click.Path(path_type=Path),
    help="The links of paths; default: routes.json in DIR, if it is there.",
)  # fmt: skip
@json_option
def command(folder: Path, job: str | None, routes_file: Path | None, json_path: str | None) -> None:
    """Say which rank, NIC or path of a job is slow or hung, and why.

    DIR is a folder of traces (WEFT_TRACE), also of a job that still runs. Exit status: 0 if nothing
    is wrong, 1 if something is found. A suspicion is printed and does not count.

    Example: weft diagnose /scratch/job-17
    """
    from transport.diagnose import Settings, diagnose, settled_ns
    from transport.plan.routes import FILE

    if routes_file is None and (folder / FILE).is_file():
        routes_file = folder / FILE
    routes = known_routes(routes_file)
    now_ns = settled_ns(folder)
    with shared.opened(folder, job, until_ns=now_ns) as store, shared.reporting_errors():
        found = diagnose(store, Settings(routes=routes, now_ns=now_ns))
    if json_path is not None:
        write_json(as_json(found), json_path)
    else:
        show(found, folder, routes is not None)
    sys.exit(0 if found.healthy else 1)


def known_routes(file: Path | None) -> Routes | None:
    from transport.plan.routes import RoutesError, read

    if file is None:
        return None
    try:
        return read(file)
    except RoutesError as error:
        raise click.UsageError(str(error)) from None


def as_json(found: Diagnosis) -> dict[str, Any]:
    findings = [asdict(one) | {"class": one.kind, "meaning": one.meaning} for one in found.findings]
    return {
        "healthy": found.healthy, "findings": findings, "ranks": found.ranks,
        "iterations": found.iterations, "iteration_ns": found.iteration_ns,
        "notes": list(found.notes),
    }  # fmt: skip


def show(found: Diagnosis, folder: Path, with_links: bool) -> None:
    looked = (
        f"{found.ranks} ranks, {found.iterations} iterations of {time_text(found.iteration_ns)}"
    )
    certain = [one for one in found.findings if one.certain]
    if not certain:
        click.echo(f"healthy: {looked}")
    for one in found.findings:
        show_finding(one, folder)
    if certain:
        click.echo(f"looked at: {looked}")
    if not with_links:
        click.echo("note: without --routes no link can be named, only NICs and pairs of ranks")
    shared.show_notes(found.notes)


def show_finding(one: Finding, folder: Path) -> None:
    head = "" if one.certain else "suspicion: "
    side = f" ({one.place.side} side)" if one.place.side else ""
    click.echo(f"{head}{one.kind}: {one.place.name}{side}, confidence {one.confidence:.0%}")
    if one.place.candidates:
        click.echo(f"  cannot be told from: {', '.join(one.place.candidates)}")
    click.echo(f"  what:     {one.meaning}")
    click.echo(f"  evidence: {one.evidence}")
    click.echo(f"  for:      {time_text(one.to_ns - one.from_ns)}, until {one.to_ns} ns")
    click.echo(f"  query:    weft trace query {folder} {one.query!r}")
    click.echo(f"  do:       {one.advice}")
