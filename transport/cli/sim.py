"""`weft sim`: runs a simulation or a sweep, shows its progress and writes its results."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from transport.cli import plots as cli_plots
from transport.cli.memory import available_bytes
from transport.cli.options import HTML, SEED, OutputFolder, SeedsType, TimeType, output_file
from transport.cli.output import json_option, print_table, unwritten, write_json
from transport.cli.packages import PAGES, PLOTS, TRACES, compiling, need_packages
from transport.cli.rows_file import ROWS, is_parquet
from transport.cli.sim_compare import beside, own_simulation
from transport.cli.sim_routes import write_routes
from transport.cli.sim_show import ROWS_OF, Files, show, show_sweep
from transport.cli.try_policy import chosen_policies
from transport.errors import InvalidArgumentError
from transport.ground import toml
from transport.ground.units import bytes_text, count_text, time_text
from transport.policies.choice import PolicyRefusedError
from transport.sim import (
    Result,
    Scenario,
    Simulation,
    faults,
    load,
    shipped,
    sweep,
)
from transport.sim.alone import splits_a_job, with_alone
from transport.sim.errors import ScenarioError, WorkerLostError
from transport.sim.settings import applied, is_of_policies
from transport.sim.trace import write_trace
from transport.sim.trace_network import PATHS_NS
from transport.trace.layout import TraceError
from transport.trace.store import new_folder

INTERRUPTED = 130  # exit status after Ctrl-C, as in a shell
FAMILY_OPTIONS = ("window", "path", "loss", "credit")


def setting(text: str) -> tuple[str, list[Any]]:
    """Parses "network.rate=100 Gb/s,400 Gb/s" into a key and its values."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip():
        raise click.UsageError(f"--set {text}: write KEY=VALUE or KEY=VALUE,VALUE")
    parts: list[str] = []
    for part in values.split(","):
        # Policy parameters contain commas too: "swift:a=1,b=2".
        if parts and "policies." in key and "=" in part and ":" not in part:
            parts[-1] += "," + part
        else:
            parts.append(part)
    if values.lstrip().startswith("[") or re.fullmatch(r"workload(\.[0-9]+)?\.hosts", key.strip()):
        parts = [values]  # a TOML list is one value, and so is a list of hosts like "0-3,8"
    return key.strip(), [value_of(part) for part in parts]


def value_of(text: str) -> Any:
    """The text as a TOML value if it is one, else as a string."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text.strip()


def show_list(json_path: str | None) -> None:
    """Prints the scenarios that are shipped with weft."""
    rows = []
    for name, file in shipped().items():
        found = load(file)
        patterns = sorted({one["pattern"] for one in found.keys["workload"]})
        rows.append(
            {"name": name, "patterns": patterns, "about": found.keys["about"], "file": str(file)}
        )
    if json_path is not None:
        write_json(rows, json_path)
        return
    cells = [(row["name"], " ".join(row["patterns"]), row["about"]) for row in rows]
    print_table(["scenario", "workload", "what"], cells)
    click.echo(f"the scenario files are in {Path(rows[0]['file']).parent}")


def policies_of(words: Sequence[str], options: Mapping[str, str | None]) -> dict[str, str]:
    """Policies by family, from --policy and from --window, --path, --loss and --credit."""
    given = [f"{family}={text}" for family, text in options.items() if text is not None]
    return chosen_policies((*words, *given))


def check_memory(needed: int, jobs: int = 1) -> None:
    """Refuses a run that needs more memory than is available."""
    there = available_bytes()
    if there is not None and needed * jobs > there:
        many = f" each, {jobs} at once" if jobs > 1 else ""
        raise click.ClickException(
            f"the run needs about {bytes_text(needed)} of memory{many}, and {bytes_text(there)} "
            f"are available: use fewer hosts, transfers or {'-j' if jobs > 1 else 'paths'}"
        )


class Watch:
    """Shows the progress of a run or sweep on stderr, if that is a terminal."""

    def __init__(self, what: str, total: int) -> None:
        console = Console(stderr=True)
        self._began = monotonic()
        self._bar = Progress(
            *(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()),
            *(TextColumn("{task.fields[said]}"), TimeElapsedColumn()),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=total, said="")

    def __enter__(self) -> Watch:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def of_run(self, totals: Mapping[str, int | bool]) -> None:
        rate = totals["packet_hops"] / max(monotonic() - self._began, 1e-9)
        said = f"{time_text(totals['ended_ns'])}, {count_text(rate)} packet-hops/s"
        self._bar.update(self._task, completed=int(totals["transfers_done"]), said=said)

    def of_sweep(self, done: int) -> None:
        self._bar.update(self._task, completed=done)


def run_once(simulation: Simulation) -> tuple[Result, float]:
    """Runs the simulation; returns its result, partial after Ctrl-C, and the seconds it took."""
    began = monotonic()
    partial = False
    name = simulation.scenario.name
    work = simulation.scenario.work
    with Watch(name, len(work.transfers) + len(work.local)) as watch:
        try:
            while simulation.step():
                watch.of_run(simulation.totals)
        except KeyboardInterrupt:
            partial = True
    return simulation.result(partial=partial), monotonic() - began


def say_notes(scenario: Scenario) -> None:
    """Says on stderr what is missing or assumed in the workloads."""
    for note in scenario.work.notes:
        click.echo(f"note: {note}", err=True)


def say_late_faults(result: Result) -> None:
    """Says on stderr which faults begin after the run has ended."""
    end_ns = int(result.totals["ended_ns"])
    for number, one in enumerate(result.scenario.keys["faults"]):
        if "at_ns" in faults.KEYS_OF[one["kind"]] and one["at_ns"] >= end_ns:
            click.echo(
                f"note: faults.{number} ({one['kind']}) begins at {time_text(one['at_ns'])}, and "
                f"the run ended at {time_text(end_ns)}: it had no effect",
                err=True,
            )


def judge(result: Result) -> None:
    """Raises an error if the run failed; called after the results were shown."""
    if result.violation:
        raise click.ClickException(f"an invariant broke: {result.violation}")
    if result.totals["policies_failed"]:
        failed = result.totals["policies_failed"]
        times = f"{failed} time{'s' if failed > 1 else ''}"
        text = f"{result.policy_failure} and was replaced by fixed, {times}"
        raise click.ClickException(f"{text}: run weft policy check on that policy")
    if not result.finished:
        left = int((~result.done).sum())
        limit = time_text(result.scenario.keys["limit_ns"])
        what = f"{left:,} of {len(result.done):,} transfers" if left else "some computations"
        raise click.ClickException(
            f"{what} did not finish within {limit} of virtual time: give a longer --limit, or "
            "find what delays them"
        )


def run_sweep(
    scenario: Scenario, cases: list[sweep.Case], found: Iterator[tuple[int, dict[str, Any]]]
) -> tuple[dict[int, dict[str, Any]], str]:
    """Rows by case number, and why the sweep stopped early ("" if it did not)."""
    rows: dict[int, dict[str, Any]] = {}
    with Watch(scenario.name, len(cases)) as watch:
        try:
            for index, row in found:
                rows[index] = row
                watch.of_sweep(len(rows))
        except KeyboardInterrupt:
            found.close()  # type: ignore[attr-defined]
            return rows, "interrupted"
        except WorkerLostError as error:
            return rows, str(error)
    return rows, ""


@click.command("sim")
@click.argument("scenario", required=False)
@click.option(
    "--policy",
    "words",
    multiple=True,
    metavar="FILE|NAME[:PARAMS]",
    help="A policy of any family; may be given several times.",
)
@click.option("--window", help="A window policy, as --policy takes it.")
@click.option("--path", help="A path policy.")
@click.option("--loss", help="A loss policy.")
@click.option("--credit", help="A credit policy.")
@click.option("--seed", type=SEED, help="Seed; replaces the scenario's.")
@click.option("--seeds", type=SeedsType(), metavar="A-B", help="One run per seed: 1-10 or 1,5,9.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE[,VALUE...]",
    help="Replace a key of the scenario; one run per value.",
)
@click.option(
    "--threads",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Threads of one run; the result does not depend on it.",
)
@click.option("-j", "--jobs", type=click.IntRange(1, 1024), help="Parallel runs in a sweep.")
@click.option("--dask", metavar="ADDRESS", help="Sweep on a Dask cluster: tcp://HOST:PORT.")
@click.option("--limit", type=TimeType(), help='Virtual time at which a run ends, as "5 ms".')
@click.option(
    "--compare/--no-compare",
    default=None,
    help="Also run the scenario's own policies, and show both; default: as the scenario says.",
)
@click.option(
    "--harm/--no-harm",
    default=None,
    help="Where workloads name policies, also run each group of policies alone, to measure the "
    "harm that the others do to it; default: yes, but not in a sweep.",
)
@click.option("--check", is_flag=True, help="Check the protocol's invariants; runs slower.")
@click.option("--estimate", is_flag=True, help="Print how much memory the run needs, and stop.")
@click.option(
    "--routes",
    type=output_file(),
    metavar="FILE",
    help="Write the routes and the demand for weft plan assign, and stop.",
)
@click.option("--list", "listed", is_flag=True, help="List the scenarios shipped with weft.")
@json_option
@click.option(
    "--csv",
    "csv_path",
    type=output_file(*ROWS),
    help="Write a row per transfer, or per run of a sweep; Parquet if the name ends in .parquet.",
)
@click.option(
    "--rows",
    type=click.Choice(ROWS_OF),
    help="With --csv: a row per run, per job and group of message sizes, or per transfer.",
)
@click.option("--plot", type=output_file(), help="Write a plot to this file.")
@click.option(
    "--trace",
    "trace_folder",
    type=OutputFolder(),
    help="Write a trace into this folder, for weft trace.",
)
@click.option(
    "--faults",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Add the [[faults]] of this file to the scenario.",
)
@click.option(
    "--workload",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Play back this trace instead of the scenario's workloads.",
)
@click.option(
    "--scale",
    type=float,
    metavar="X",
    help="With --workload: simulated ranks divided by ranks of the trace.",
)
@click.option("--html", "html_path", type=output_file(*HTML), help="Write an HTML report.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int | None:
    """Simulate SCENARIO: a file, or the name of a scenario shipped with weft.

    The simulation runs the real protocol code on a virtual clock: the same seed gives the same
    run. A policy may be a .py file. Families without an option use the scenario's policy, or
    weft's default.

    Tables and plots show completion times (FCT), and the slowdown by message size: FCT over that
    in an empty network, as p50, p95, p99 and p99.9 where there are enough transfers.

    Example: weft sim first --policy mine.py --plot first.svg
    """
    if given["listed"]:
        show_list(given["json_path"])
        return 0
    if given["scenario"] is None:
        raise click.UsageError("give a SCENARIO: a file, or a name from weft sim --list")
    need_packages("weft sim", *packages_of(given))
    if given["rows"] is not None and given["csv_path"] is None:
        raise click.UsageError("--rows says what --csv writes: give --csv FILE too")
    paths = given["json_path"], given["csv_path"], given["plot"], given["html_path"]
    files = Files(*paths, given["rows"])
    try:
        return asked(given, files)
    except PolicyRefusedError as error:
        raise click.ClickException(str(error)) from None
    except InvalidArgumentError as error:
        raise click.UsageError(str(error)) from None


def packages_of(given: Mapping[str, Any]) -> list[str]:
    """The optional packages that the options need."""
    by_option = {"plot": PLOTS, "html_path": PAGES, "workload": TRACES, "dask": "distributed"}
    wanted = [package for option, package in by_option.items() if given[option] is not None]
    if is_parquet(given["csv_path"]):
        wanted.append(TRACES)
    policies = (*given["words"], *(given[name] for name in FAMILY_OPTIONS))
    return [*wanted, *compiling(policies)]


def asked(given: Mapping[str, Any], files: Files) -> int:
    """Runs the simulation or sweep that the options describe; returns the exit status."""
    if given["seed"] is not None and given["seeds"] is not None:
        raise click.UsageError("--seed and --seeds cannot be used together: give one")
    policies = policies_of(given["words"], {name: given[name] for name in FAMILY_OPTIONS})
    settings = settings_of(given)
    single = {key: values[0] for key, values in settings.items() if len(values) == 1}
    several = {key: values for key, values in settings.items() if len(values) > 1}
    scenario = load(given["scenario"], workload=workload_of(given["workload"], given["scale"]))
    scenario = with_faults(scenario, given["faults"])
    seeds = given["seeds"]
    if several or seeds is not None or given["dask"]:
        scenario, kept = of_all_runs(scenario, policies, single, several)
        return do_sweep(scenario, seeds or [scenario.seed], kept | several, policies, given, files)
    scenario, policies = applied(scenario, policies, single)
    if files.plot is not None:
        cli_plots.prepared(files.plot)
    simulation = Simulation(
        scenario,
        policies,
        threads=given["threads"],
        check=given["check"],
        trace_ns=PATHS_NS if given["trace_folder"] is not None else 0,
    )
    if given["estimate"]:
        say_estimate(simulation)
        return 0
    if given["routes"] is not None:
        write_routes(simulation, given["routes"])
        return 0
    check_memory(simulation.estimated_bytes)
    own = own_simulation(scenario, policies, given["compare"])
    folder = trace_folder(given["trace_folder"])
    result, seconds = run_once(simulation)
    if given["harm"] is not False:
        result = with_harm(result, given)
    results = beside(result, own, lambda one: run_once(one)[0])
    show(results, seconds, files)
    say_notes(simulation.scenario)
    if not result.partial:
        say_late_faults(result)
    if folder is not None:
        save_trace(result, folder)
    if result.partial or (own is not None and len(results) == 1):
        click.echo("weft: interrupted: the results are partial", err=True)
        return INTERRUPTED
    judge(result)
    return 0


def with_harm(result: Result, given: Mapping[str, Any]) -> Result:
    """The result with the harm to each group of policies; says on stderr why there is none."""
    job = splits_a_job(result) if result.is_mixed else None
    if job is not None:
        text = f"transfers of {job} wait for others with other policies, so no group can run alone"
        click.echo(f"note: the harm to each group is not measured: {text}", err=True)
    elif given["harm"] and not result.is_mixed:
        click.echo(
            "note: all transfers use the same policies, so there is no harm to measure", err=True
        )
    return with_alone(result, lambda one: run_once(one)[0], threads=given["threads"])


def workload_of(trace: Path | None, scale: float | None) -> list[dict[str, Any]] | None:
    """The workload that plays a trace back; None: --workload is not given."""
    if trace is None:
        if scale is not None:
            raise click.UsageError("--scale needs --workload: give the folder of a trace")
        return None
    if not trace.is_dir():
        raise click.UsageError(f"--workload: {trace} is not a folder with a trace")
    table = {
        "pattern": "trace",
        "file": str(trace.absolute()),
        "scale": 1 if scale is None else scale,
    }
    return [table]


def with_faults(scenario: Scenario, file: Path | None) -> Scenario:
    """The scenario with the [[faults]] of a file, after its own ones."""
    if file is None:
        return scenario
    try:
        tables = toml.read(file)
    except toml.TomlError as error:
        raise click.UsageError(f"--faults: {error}") from None
    found = tables.pop("faults", None)
    if tables or not isinstance(found, list) or not found:
        other = f", and it has {', '.join(tables)}" if tables else ""
        raise click.UsageError(f"--faults: {file} must have [[faults]] tables only{other}")
    try:
        return scenario.with_faults(found, str(file))
    except ScenarioError as error:
        raise click.UsageError(f"--faults: {error}") from None


def trace_folder(folder: Path | None) -> Path | None:
    """Makes the folder of --trace before the run, so that a wrong name fails at once."""
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise click.UsageError(f"--trace: {folder} is not empty: give a new folder")
    except OSError as error:
        raise click.UsageError(f"--trace: cannot write {folder}: {error.strerror}") from None
    return folder


def save_trace(result: Result, folder: Path) -> None:
    try:
        with new_folder(folder):
            hosts = write_trace(result, folder)
    except OSError as error:
        raise unwritten(error.filename or folder, error) from None
    except TraceError as error:
        raise click.UsageError(f"--trace: {error}") from None
    click.echo(f"weft: trace of {hosts} hosts: weft trace info {folder}", err=True)


def settings_of(given: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values of every key that --set, --limit or --seed sets; refuses duplicates."""
    settings: dict[str, list[Any]] = {}
    for text in given["settings"]:
        key, values = setting(text)
        if key in settings:
            raise click.UsageError(f"--set {key} is given twice: leave one out")
        settings[key] = values
    for option, key in (("limit", "limit_ns"), ("seed", "seed"), ("seeds", "seed")):
        if given[option] is not None and key in settings:
            raise click.UsageError(f"--{option} and --set {key} set the same key: leave one out")
    for option, key in (("limit", "limit_ns"), ("seed", "seed")):
        if given[option] is not None:
            settings[key] = [given[option]]
    return settings


def of_all_runs(
    scenario: Scenario,
    policies: Mapping[str, str],
    single: Mapping[str, Any],
    several: Mapping[str, list[Any]],
) -> tuple[Scenario, dict[str, list[Any]]]:
    """Applies settings that have one value; returns the scenario and the policy settings.

    Policy settings are applied to each run, because a parameter belongs to the run's policy.
    """
    mine = {key: value for key, value in single.items() if not is_of_policies(key)}
    changed, _ = applied(scenario, policies, mine)
    return changed, {key: [value] for key, value in single.items() if key not in mine}


def say_estimate(simulation: Simulation) -> None:
    there = available_bytes()
    left = "" if there is None else f" of {bytes_text(there)} available"
    click.echo(f"the run needs about {bytes_text(simulation.estimated_bytes)} of memory{left}")


def do_sweep(
    scenario: Scenario,
    seeds: list[int],
    settings: Mapping[str, list[Any]],
    policies: dict[str, str],
    given: Mapping[str, Any],
    files: Files,
) -> int:
    if given["trace_folder"] is not None:
        raise click.UsageError("--trace is for one run: remove --seeds and lists of values")
    for option in ("estimate", "harm"):
        if given[option]:
            text = f"--{option} is for one run: remove --seeds and lists of values"
            raise click.UsageError(text)
    if files.plot is not None:
        cli_plots.prepared(files.plot)
    cases = sweep.cases_of(scenario, seeds, settings, policies)
    options = {name: given[name] for name in ("threads", "check")}
    options["transfers"] = files.csv is not None and files.rows == "transfers"
    if given["dask"]:
        found = sweep.on_dask(scenario, cases, given["dask"], **options)
    else:
        jobs = given["jobs"] or len(os.sched_getaffinity(0))
        first = cases[0].simulation(scenario)
        check_memory(first.estimated_bytes, min(jobs, len(cases)))
        say_notes(first.scenario)
        del first
        found = sweep.local(scenario, cases, jobs, **options)
    rows, cut_by = run_sweep(scenario, cases, found)
    show_sweep(scenario, cases, rows, bool(cut_by), files)
    if cut_by:
        click.echo(f"weft: {cut_by}: {len(rows)} of {len(cases)} runs are done", err=True)
        return INTERRUPTED if cut_by == "interrupted" else 1
    bad = [rows[index] for index in sorted(rows) if not rows[index]["good"]]
    if bad:
        said = bad[0]["problem"] or "transfers did not finish within the time limit"
        raise click.ClickException(
            f"{len(bad)} of {len(cases)} runs failed, first seed {bad[0]['seed']}: {said}"
        )
    return 0
