"""`weft plan assign`: chooses the paths of a job and writes them into the plan of the fabric."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transport.cli.options import JSON, FiniteRange, output_file
from transport.cli.output import json_option, print_table, write_json
from transport.ground.units import bytes_text

if TYPE_CHECKING:
    from transport.plan.assign import Assigned
    from transport.plan.demand import Demand
    from transport.plan.routes import Routes

ROWS_MAX = 32

plan_option = click.option(
    "--plan",
    "plan_file",
    type=output_file(*JSON),
    default="plan.json",
    show_default=True,
    help="The plan of the fabric; all jobs share one file.",
)
job_option = click.option("--job", default="job", show_default=True, help="Name of the job.")
wait_option = click.option(
    "--wait",
    type=FiniteRange(0, 3_600),
    default=10.0,
    show_default=True,
    help="Seconds to wait while another planner changes the plan.",
)


def by_number(name: str) -> list[tuple[str, int]]:
    """A key that sorts host2 before host10."""
    return [(word, int(number or 0)) for word, number in re.findall(r"(\D*)(\d*)", name)]


def demand_of(
    trace: Path | None, ring: str | None, demand: Path | None, routes: Routes, job: str | None
) -> Demand:
    """The bytes that the job sends between NICs, from --trace, --ring or --demand."""
    from transport.plan import demand as demands

    given = [one for one in (trace, ring, demand) if one is not None]
    if len(given) != 1:
        raise click.UsageError("say what the job sends: one of --trace, --ring and --demand")
    if trace is not None:
        found = demands.of_trace(trace, job)
    elif demand is not None:
        found = demands.of_file(demand)
    else:
        hosts = sorted({end.partition("/")[0] for end, _, _ in routes.of}, key=by_number)
        named = hosts if ring == "all" else [one.strip() for one in str(ring).split(",")]
        found = demands.of_ring(named)
    return demands.over_ends(found, routes)


@click.command("assign")
@click.argument("routes", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="What the hosts of this trace sent.",
)
@click.option("--trace-job", metavar="NAME", help="The job, if the trace has several.")
@click.option(
    "--ring",
    metavar="HOST,HOST,...|all",
    help="Each host sends the same amount to the next one; all: every host, sorted by name.",
)
@click.option(
    "--demand",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML or JSON with rows of from, to, bytes.",
)
@click.option(
    "--paths",
    type=click.IntRange(1, 256),
    default=8,
    show_default=True,
    help="Paths of each pair of NICs: the WEFT_PATHS of the job.",
)
@click.option(
    "--engines",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Engines of each process (WEFT_ENGINES); they share the ports that were probed.",
)
@click.option("--avoid", multiple=True, metavar="LINK", help="A link not to use, as leaf0-spine1.")
@click.option(
    "--fabric",
    default="",
    metavar="NAME",
    help="Name of the fabric, for jobs whose hosts were probed in separate runs.",
)
@job_option
@plan_option
@wait_option
@json_option
def command(
    routes: tuple[Path, ...],
    trace: Path | None,
    trace_job: str | None,
    ring: str | None,
    demand: Path | None,
    paths: int,
    engines: int,
    avoid: tuple[str, ...],
    fabric: str,
    job: str,
    plan_file: Path,
    wait: float,
    json_path: str | None,
) -> None:
    """Choose the paths of a job over the ROUTES of weft plan probe, and add them to the plan.

    It minimizes the bytes on the busiest link of the fabric, and counts the traffic of other jobs
    of the plan. The job finds its ports in the plan with WEFT_PLAN and WEFT_PORT_BASE.

    Example: weft plan assign routes.json --ring host0,host1,host2,host3 --job a
    """
    from transport.errors import InvalidArgumentError
    from transport.plan import planfile, routes as files
    from transport.plan.bases import assign_ports

    try:
        known = files.merged([files.read(one) for one in routes])
        sent = demand_of(trace, ring, demand, known, trace_job)
        _check_links(avoid, known)
        assign = partial(assign_ports, known, sent, paths=paths, engines=engines, avoid=avoid)
        name = fabric or known.fingerprint()
        with planfile.changing(plan_file, name, wait_s=wait) as plan:
            first, result = assign(base=plan.load(without=job), taken=plan.ports(without=job))
            planfile.write(plan.with_job(job, result.pairs), plan_file)
    except InvalidArgumentError as error:
        raise click.ClickException(str(error)) from None
    if job in plan.jobs:
        click.echo(
            f"note: replaced the job {job} of {plan_file}; --job names another one", err=True
        )
    others = sorted(set(plan.jobs) - {job})
    if json_path is not None:
        made = document(result, job, plan.fabric, others)
        write_json(made | {"port_base": first}, json_path)
    else:
        show(result, job, plan_file, others)
        if first is not None:
            variables = f"WEFT_PORT_BASE={first} WEFT_PATHS={paths} WEFT_ENGINES={engines}"
            click.echo(f"run the job with WEFT_PLAN={plan_file} {variables}")


def _check_links(avoid: tuple[str, ...], routes: Routes) -> None:
    """UsageError for a link that the routes do not have."""
    unknown = [one for one in avoid if not is_link(one, routes)]
    if unknown:
        raise click.UsageError(f"--avoid {unknown[0]}: the routes have no such link")


def is_link(name: str, routes: Routes) -> bool:
    from transport.plan.routes import undirected

    return any(name in (link, undirected(link)) for link in routes.links)


def document(result: Assigned, job: str, fabric: str, others: list[str]) -> dict[str, Any]:
    return {
        "job": job,
        "fabric": fabric,
        "other_jobs": others,
        "pairs": len(result.pairs),
        "busiest_link": result.busiest_link,
        "busiest_bytes": round(result.busiest_bytes),
        "bound_bytes": round(result.bound_bytes),
        "ecmp_mean_bytes": round(result.ecmp_bytes),
        "ecmp_worst_bytes": round(result.ecmp_most_bytes),
        "notes": list(result.notes),
    }


def show(result: Assigned, job: str, plan_file: Path, others: list[str]) -> None:
    rows = []
    sending = [pair for pair in result.pairs if pair.sent_bytes > len(pair.paths)]
    for pair in sending[:ROWS_MAX]:
        nodes = [link.partition(">")[2] for links in pair.links for link in links[1:-2]]
        counts = {node: nodes.count(node) for node in sorted(set(nodes))}
        over = ", ".join(f"{node} {count}" for node, count in counts.items()) or "one way"
        rows.append((pair.source, pair.target, bytes_text(pair.sent_bytes), over))
    print_table(("from", "to", "sends", "paths over"), rows)
    if len(sending) > ROWS_MAX:
        click.echo(f"... {len(sending) - ROWS_MAX} more pairs")
    for note in result.notes:
        click.echo(f"note: {note}")
    click.echo(
        f"busiest link {result.busiest_link}: {bytes_text(result.busiest_bytes)}; at best "
        f"{bytes_text(result.bound_bytes)}; random ports (ECMP): {bytes_text(result.ecmp_bytes)} "
        f"on average, {bytes_text(result.ecmp_most_bytes)} in the worst of 32 draws"
    )
    beside = f", beside {', '.join(others)}" if others else ""
    click.echo(f"wrote {plan_file}: job {job}, {len(sending)} pairs{beside}")


@click.command("release")
@job_option
@plan_option
@wait_option
def release(job: str, plan_file: Path, wait: float) -> None:
    """Remove a job from the plan, when it has ended."""
    from transport.plan import planfile

    try:
        with planfile.changing(plan_file, planfile.read(plan_file).fabric, wait_s=wait) as plan:
            if job not in plan.jobs:
                named = ", ".join(sorted(plan.jobs)) or "none"
                raise click.UsageError(f"{plan_file} has no job {job}; its jobs: {named}")
            planfile.write(plan.with_job(job, ()), plan_file)
    except planfile.PlanError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{plan_file}: released {job}")
