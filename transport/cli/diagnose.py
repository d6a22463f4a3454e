"""`weft diagnose`: says which rank, NIC or path of a job is slow or hung, and why."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from transport.cli import trace_open as shared
from transport.cli.diagnose_ras import USUAL, RasType, asked
from transport.cli.http_options import access_options
from transport.cli.options import JSON, SecondsType, output_file
from transport.cli.output import json_option, write_json
from transport.cli.progress import said_if_long

if TYPE_CHECKING:
    from transport.diagnose import Diagnosis
    from transport.plan.routes import Routes


# Parameters that mean something without --live.
ONCE = ("folder", "job", "routes_file", "plan_file", "json_path", "live", "lost")
COMPARED = (
    *("baseline_file", "save_path", "inventory_file", "with_files", "kernel_logs"),
    *("ras", "save_ras"),
)


@click.command("diagnose")
@click.argument("folder", metavar="DIR", required=False, type=click.Path(path_type=Path))
@shared.job_option
@shared.routes_option
@click.option(
    "--plan",
    "plan_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The plan that the job's paths follow (WEFT_PLAN), with --routes of weft plan probe.",
)
@click.option(
    "--with",
    "with_files",
    metavar="FILE",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="A dump of PyTorch's Flight Recorder, a log of NCCL or a status of its RAS (ncclras -f "
    "json -v) of the same job, or a folder of them; may be repeated. Those in DIR are found by "
    "themselves.",
)
@click.option(
    "--ras",
    metavar="[HOST:PORT]",
    type=RasType(),
    is_flag=False,
    flag_value=USUAL,
    help="Ask the RAS service of NCCL in the running job, twice; without HOST:PORT at "
    "NCCL_RAS_ADDR or localhost:28028.",
)
@click.option(
    "--save-ras",
    metavar="FILE",
    type=output_file(*JSON),
    help="Write what RAS answered to FILE, for --with.",
)
@click.option(
    "--kernel-log",
    "kernel_logs",
    metavar="[HOST=]FILE",
    multiple=True,
    help="What dmesg or journalctl -k printed on a host of the job: XIDs of GPUs in it count. Name "
    "the HOST if its lines do not; may be repeated.",
)
@shared.inventory_option
@click.option(
    "--lost-time",
    "lost",
    is_flag=True,
    help="Print instead how long other ranks waited for each rank at collectives.",
)
@click.option(
    "--baseline",
    "baseline_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="How long the job took when it was well, as --save wrote it: compare with that.",
)
@click.option(
    "--save",
    "save_path",
    metavar="FILE",
    type=output_file(*JSON),
    help="Write how long the job takes to FILE, for --baseline; only of a healthy job.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Follow a running job until Ctrl-C. The options below need --live.",
)
@click.option(
    "--share",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="The folder that all hosts see. Each host writes a summary there.",
)
@click.option(
    "--collect", is_flag=True, help="Judge what all hosts wrote into the share. One host does this."
)
@click.option(
    "--interval",
    "interval_s",
    metavar="TIME",
    type=SecondsType(0.1, 3600),
    default="5s",
    show_default=True,
    help="Time between two readings.",
)
@click.option(
    "--window",
    "window_s",
    metavar="TIME",
    type=SecondsType(1, 86_400),
    default="60s",
    show_default=True,
    help="Judge only this much of the recent past.",
)
@click.option(
    "--iterations",
    metavar="N",
    type=click.IntRange(4, 1_000),
    default=30,
    show_default=True,
    help="Judge the last N iterations, or those of the last 2 s if these are more.",
)
@click.option(
    "--patience",
    "patience_s",
    metavar="TIME",
    type=SecondsType(0, 86_400),
    default="300s",
    show_default=True,
    help="How long a pause without other evidence is only a suspicion, as long as the job has "
    "not yet paused twice, as for checkpoints.",
)
@click.option("--count", metavar="N", type=click.IntRange(1), help="End after N intervals.")
@click.option(
    "--on-finding",
    "on_finding",
    metavar="CMD",
    help="A shell command to run for each finding, at most once. Without --act, the command is "
    "only printed.",
)
@click.option("--act", is_flag=True, help="Really run the command of --on-finding.")
@click.option(
    "--action-timeout",
    "action_s",
    metavar="TIME",
    type=SecondsType(0.1, 3600),
    default="60s",
    show_default=True,
    help="Kill that command after this time.",
)
@click.option("--listen", metavar="HOST:PORT", help="Serve verdicts to Prometheus there.")
@click.option(
    "--otlp",
    metavar="URL",
    help="Send incidents, the slowest collectives and metrics to this OpenTelemetry collector, by "
    "OTLP over HTTP; env: to where the variables OTEL_EXPORTER_OTLP_* say.",
)
@access_options
@json_option
def command(
    folder: Path | None,
    job: str | None,
    routes_file: Path | None,
    plan_file: Path | None,
    json_path: str | None,
    lost: bool,
    live: bool,
    **given: Any,
) -> None:
    """Say which rank, NIC or path of a job is slow or hung, and why.

    DIR is a folder of traces (WEFT_TRACE), also of a job that still runs. Exit status: 0 healthy,
    1 something is found, 2 an error, 3 slower but unexplained, 4 not judged: the trace has too
    little evidence. A suspicion is printed and does not count. Dumps of PyTorch's Flight Recorder,
    logs of NCCL and statuses of its RAS in DIR, or given by --with, are joined with the trace to
    one verdict; so is what --ras asks a running job. With these two, DIR may be left out.

    With --live, DIR is where the processes of this host write their traces; the default is
    WEFT_TRACE. With --json, each verdict is a line of JSON.

    \b
    Examples:
      weft diagnose /scratch/job-17
      weft diagnose /scratch/job-17 --lost-time
      weft diagnose --ras
      weft diagnose --live /scratch/job-17
      weft diagnose --live /scratch/job-17 --share /shared/job-17 --collect
    """
    with failing_with_2():
        compared = {name: given.pop(name) for name in COMPARED}
        refuse_pairs(folder, compared, lost=lost, live=live)
        if live:
            from transport.cli import diagnose_live

            named = {**given, "job": job, "routes_file": routes_file, "plan_file": plan_file}
            sys.exit(diagnose_live.run(folder, json_path, named))
        refuse_live_options()
        if folder is not None and lost:
            from transport.cli import diagnose_lost

            sys.exit(diagnose_lost.run(folder, job, json_path, compared["inventory_file"]))
        from transport.cli.known_routes import known_routes

        routes = known_routes(folder, routes_file, plan_file)
        sys.exit(once(folder, job, routes, json_path, **compared))


class Failure(click.ClickException):
    exit_code = 2


@contextmanager
def failing_with_2() -> Iterator[None]:
    """Every error ends with status 2, as 1 says that something was found."""
    try:
        yield
    except click.UsageError:
        raise
    except click.ClickException as error:
        raise Failure(error.format_message()) from None
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # Python must not fail again when it flushes standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # the reader closed the pipe, as `head` does
            sys.exit(Failure.exit_code)
        raise Failure(f"cannot write the verdicts: {error.strerror}") from None


def refuse_pairs(folder: Path | None, compared: dict[str, Any], *, lost: bool, live: bool) -> None:
    """Refuses options that do not go together, and a missing folder."""
    if live and (lost or any(compared.values())):
        raise click.UsageError(
            "--lost-time, --baseline, --save, --inventory, --with, --kernel-log and --ras are of "
            "whole jobs, not --live"
        )
    if compared["save_ras"] and not compared["ras"]:
        raise click.UsageError("--save-ras needs --ras: add it")
    beside = compared["with_files"] or compared["ras"]
    if folder is None and not live and (lost or not beside):
        raise click.UsageError("Missing argument 'DIR': give the folder of a trace")


def refuse_live_options() -> None:
    """Refuses options that were given and mean something with --live only."""
    context = click.get_current_context()
    for one in context.command.params:
        given = context.get_parameter_source(one.name or "") == ParameterSource.COMMANDLINE
        if given and one.name not in (*ONCE, *COMPARED):
            raise click.UsageError(f"{one.opts[0]} needs --live: add it")


def once(
    folder: Path | None,
    job: str | None,
    routes: Routes | None,
    json_path: str | None,
    baseline_file: Path | None,
    save_path: str | None,
    inventory_file: Path | None,
    with_files: tuple[Path, ...],
    kernel_logs: tuple[str, ...],
    ras: tuple[str, int] | None,
    save_ras: Path | None,
) -> int:
    """Diagnoses a job once; returns the exit status."""
    from transport.cli.diagnose_sources import opened, with_gpus
    from transport.diagnose import Answer, Settings, baseline as measured, report, settled_ns
    from transport.diagnose.baseline import BaselineError, as_json, read
    from transport.diagnose.located import hosts_of, located
    from transport.diagnose.sources import diagnosed

    inventory = shared.inventory_of(inventory_file)
    with shared.reporting_errors():
        answer = None if ras is None else asked(ras, save_ras)
    now_ns = time.time_ns() if folder is None else settled_ns(folder)
    with opened(folder, job, now_ns, with_files, answer) as sources, shared.reporting_errors():
        try:
            known = None if baseline_file is None else read(baseline_file)
            settings = Settings(routes=routes, now_ns=now_ns, baseline=known)
            with said_if_long("judging the trace, which takes a minute or more if it is large"):
                found = diagnosed(sources, settings)
            found = with_gpus(found, sources, inventory, kernel_logs)
            if save_path is not None and found.answer is Answer.HEALTHY:
                write_json(as_json(measured(sources[0].store)), save_path)
            if inventory is not None:
                hosts = {rank: host for one in sources[::-1] for rank, host in hosts_of(one.store)}
                found = located(found, inventory, hosts)
        except BaselineError as error:
            raise click.ClickException(str(error)) from None
    if save_path is not None and found.answer is not Answer.HEALTHY:
        click.echo(f"weft: {save_path} was not written: the job is not healthy", err=True)
    if json_path is not None:
        write_json(report.as_json(found), json_path)
    else:
        show(found, folder, routes is not None)
    return found.answer.status


def show(found: Diagnosis, folder: Path | None, with_links: bool) -> None:
    """Prints a diagnosis. folder: of a trace; None: there was none."""
    from transport.diagnose import Answer, report

    if found.answer is not Answer.FOUND:
        click.echo(f"{found.answer.value}: {report.looked_at(found)}")
        click.echo("\n".join(report.reasons_of(found)))
    shown = report.findings_to_show(found.findings)
    for one in shown:
        click.echo("\n".join(report.lines_of(one, str(folder or "DIR"))))
    if left_out := len(found.findings) - len(shown):
        click.echo(f"and {left_out} suspicion{'s' * (left_out > 1)} like these: see --json")
    if found.answer is Answer.FOUND:
        click.echo(f"looked at: {report.looked_at(found)}")
    else:
        where = 'weft docs diagnosis "What is not seen"'
        click.echo(f"note: not seen: {', '.join(report.NOT_SEEN)} ({where})")
    if folder is not None and not with_links:
        click.echo("note: without --routes no link can be named, only NICs and pairs of ranks")
    shared.show_notes(found.notes)
